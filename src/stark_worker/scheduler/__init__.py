"""Decides which request runs where and when; no torch."""
