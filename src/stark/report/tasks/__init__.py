"""What a report says of each task: one row, its tree and its kernel."""
