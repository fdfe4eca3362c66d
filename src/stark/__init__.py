"""STARK: a team of agents that makes PyTorch models faster with custom kernels.

import stark
result = stark.optimize(module, (x,), model="anthropic:claude-sonnet-4-6")
model.block = result.module
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stark.run.api import aoptimize, baseline, bound, judge, load, optimize, resume

    __version__: str

__all__ = ["__version__", "aoptimize", "baseline", "bound", "judge", "load", "optimize", "resume"]

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


def __dir__() -> list[str]:
    return sorted(__all__)
