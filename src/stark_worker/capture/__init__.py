"""Turns a live module into a task that can be read, and puts the result back in its place."""
