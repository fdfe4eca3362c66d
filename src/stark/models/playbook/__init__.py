"""The playbook: an offline stand-in for an LLM. It answers the agents' prompts from a library of optimisation moves."""

from stark.models.playbook.model import PlaybookModel

__all__ = ["PlaybookModel"]
