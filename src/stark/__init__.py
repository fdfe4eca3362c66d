"""STARK: a team of agents that makes kernels faster."""
