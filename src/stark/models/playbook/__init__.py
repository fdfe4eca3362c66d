"""The playbook: a chat model without an LLM that knows a library of optimisation moves."""
