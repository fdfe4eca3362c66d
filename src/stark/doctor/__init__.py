"""Tries all that a run needs, and says how to get what is missing."""
