"""Policies choose the node to build upon; stops end a search early."""
