"""Labels a correct candidate: kernels of its own or of a library, inferred precision.

No verdict depends on a label. Facts from the candidate's process are bounded and checked for their form, but may be
lies.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from stark_worker.protocol.report import Kernels
from stark_worker.protocol.request import Precision

# Limits of root mean square errors, as shares of the values. About 15 bits count as fp32: from there on, the largest of
# many errors exceeds the tolerance. TF32 and FP16 round to 11 bits, BF16 to 8.
ERROR_CLASSES = ((3e-5, "fp32"), (9e-4, "tf32 or fp16"), (8e-3, "bf16"))
COARSER = "coarser than bf16"
OWN_ERROR_FACTOR = 2.0  # up to this many times the reference's own error, the task's precision explains it
CUSTOM_SHARE = 0.5
NATIVE_PACKAGES = re.compile(r"\b(ctypes|cffi|numba|cupy|pybind11)\b")
HIDDEN_KERNELS = re.compile(rf"{NATIVE_PACKAGES.pattern}|\b__global__\b")


def precision_of(share: float, own_share: Callable[[], float], task: Precision) -> str:
    """Return the class of an error against double precision; ``own_share`` returns the reference's own error."""
    name = next((name for limit, name in ERROR_CLASSES if share < limit), COARSER)
    if task is not Precision.FP32 or name != "fp32":
        return task.value if share <= OWN_ERROR_FACTOR * own_share() else name
    return name


def kernels_of(profile: dict[str, Any], source: str, gpu: bool) -> tuple[Kernels, float | None]:
    """Return the kind of its kernels and the share of time in its own.

    On a GPU the kernels that the source defines are the candidate's. On the host, if an extension was built, all time
    outside torch's operators is, including Python. If none of it ran although the source has kernels, or calls code
    that no profiler sees, the kind is unknown.
    """
    share = read_number(profile.get("own_share"), 1.0)
    if not gpu and profile.get("extension") is not True:
        return (Kernels.UNKNOWN, None) if NATIVE_PACKAGES.search(source) else (Kernels.LIBRARY, 0.0)
    if not share:
        return (Kernels.UNKNOWN if share is None or HIDDEN_KERNELS.search(source) else Kernels.LIBRARY), share
    return (Kernels.CUSTOM if share >= CUSTOM_SHARE else Kernels.MIXED), share


def read_number(value: object, most: float) -> float | None:
    """Return the value if it is a number from 0 to ``most``, otherwise None."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and 0 <= value <= most else None  # type: ignore[operator,arg-type]
