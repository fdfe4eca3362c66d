"""Reads a task and traces its forward pass into operations on values."""
