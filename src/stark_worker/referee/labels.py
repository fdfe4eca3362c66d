"""What kind of kernel a correct candidate is: library calls, low precision or one shape alone are no offence, but said.

None of it decides anything. What comes from the candidate's own process is bounded and checked for its form, and as
true as that process is honest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stark_worker.protocol.report import Kernels
from stark_worker.protocol.request import Precision

# Root mean square errors, as shares of the values: rounding to 24 bits and long sums of that stay below the first,
# rounding to 11 bits below the second, to 8 bits below the third.
ERROR_CLASSES = ((1e-4, "fp32"), (9e-4, "tf32 or fp16"), (8e-3, "bf16"))
COARSER = "coarser than bf16"
OWN_ERROR_FACTOR = 2.0  # of the reference's own error; up to there the task's precision explains it
NATIVE_PACKAGES = re.compile(r"\b(ctypes|cffi|numba|cupy|pybind11)\b")


def precision_of(share: float, own_share: Callable[[], float], task: Precision) -> str:
    """The class of an error against a double-precision reference; ``own_share`` is the reference's own."""
    name = next((name for limit, name in ERROR_CLASSES if share < limit), COARSER)
    if task is not Precision.FP32 or name != "fp32":
        return task.value if share <= OWN_ERROR_FACTOR * own_share() else name
    return name


def kernels_of(told: dict[str, Any], source: str, gpu: bool) -> tuple[Kernels, float | None]:
    """Whose kernels it spends its time in, and the share of its own.

    On a GPU kernels are told apart by name: those that the source defines are the candidate's. On the host everything
    outside of torch's operators is, Python included, if an extension was built. Code that is reached by other ways is
    not seen by the profiler, so that a source which names one of these says nothing.
    """
    share = number(told.get("own_share"), 1.0)
    built = told.get("extension") is True
    if gpu and share:
        return Kernels.CUSTOM, share
    if not gpu and built:
        return Kernels.CUSTOM, share
    return (Kernels.UNKNOWN, None) if built or NATIVE_PACKAGES.search(source) else (Kernels.LIBRARY, 0.0)


def number(value: object, most: float) -> float | None:
    """A number from 0 to ``most``, if it is one."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value <= most else None  # type: ignore[operator,arg-type]
