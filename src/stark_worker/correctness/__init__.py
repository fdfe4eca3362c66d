"""The right answer, and the comparison of a result with it."""
