"""The verdict: calls the candidate, checks its results and times it."""
