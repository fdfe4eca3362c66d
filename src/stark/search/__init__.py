"""Where to grow: the policies."""
