"""STARK: a team of agents that makes PyTorch models faster with custom kernels.

import stark
result = stark.optimize("task.py", roles={"model": "anthropic:claude-sonnet-4-6"})
print(result.speedup, result.source)
"""

from __future__ import annotations

from typing import Any

__all__ = ["optimize", "resume"]


def __getattr__(name: str) -> Any:
    # The API pulls in every part of the host; importing `stark` alone stays cheap.
    if name in __all__:
        from stark.run import api

        return getattr(api, name)
    raise AttributeError(f"module 'stark' has no attribute {name!r}")
