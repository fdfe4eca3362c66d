"""One search: the loop, its parts and its result."""
