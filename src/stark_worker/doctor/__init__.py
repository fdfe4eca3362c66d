"""Tries this machine out and says how to get what is missing."""
