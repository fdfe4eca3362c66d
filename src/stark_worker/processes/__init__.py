"""Starts, talks to and ends processes."""
