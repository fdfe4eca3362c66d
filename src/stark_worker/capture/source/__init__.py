"""Source as a tree: where it is found, how it is rewritten, and how values are written."""
