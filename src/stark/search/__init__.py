"""Policies: they choose the node to build upon."""
