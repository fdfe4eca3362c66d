"""Proposes candidates: prompts, replies, anchors, windows, roles and workflows."""
