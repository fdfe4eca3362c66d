"""STARK: a team of agents that makes PyTorch models faster with custom kernels.

import stark
result = stark.optimize("task.py", roles={"model": "anthropic:claude-sonnet-4-6"})
print(result.speedup, result.source)
"""

from __future__ import annotations

from typing import Any

__all__ = ["__version__", "optimize", "resume"]

DISTRIBUTION = "stark-kernels"


def __getattr__(name: str) -> Any:
    # Both take a while to load; importing `stark` alone stays cheap.
    if name == "__version__":
        from importlib.metadata import version

        return version(DISTRIBUTION)
    if name in __all__:
        from stark.run import api

        return getattr(api, name)
    raise AttributeError(f"module 'stark' has no attribute {name!r}")
