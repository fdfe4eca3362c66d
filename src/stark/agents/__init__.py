"""How to propose: prompts, replies, anchors, windows, roles and workflows."""
