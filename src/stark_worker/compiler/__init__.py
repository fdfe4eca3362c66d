"""Turns source into a loaded library, as fast as possible."""
