"""Each task in a report: one row, its tree and its kernel."""
