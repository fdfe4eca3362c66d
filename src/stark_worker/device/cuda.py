"""The GPU: its cache, numeric settings, what a target needs of it, and whether it still works."""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import torch

from stark_worker.protocol.errors import GpuUnhealthy
from stark_worker.protocol.request import Target

HEALTH_S = 30.0
FLUSH_BYTES = 2**28
PEAKS = 2.0  # how many times the bandwidth that it tells a device may have after all


def allocate_flush_buffer() -> torch.Tensor:
    """Memory to write so that nothing else is left in the device's cache."""
    return torch.empty(max(2 * _cache_bytes(), FLUSH_BYTES), dtype=torch.uint8, device="cuda")


def describe_cache(flushed: bool, burst: int, size: int) -> str:
    """What was done about the device's cache, for a report."""
    if not flushed:
        return "not flushed, as in KernelBench v0.1: inputs may be found in it"
    if burst > 1:
        return f"flushed before every burst; {describe_cached_share(size)}"
    return "flushed before every call"


def describe_cached_share(size: int) -> str:
    """Whether calls on one place of an arena after another find anything in the cache, in words."""
    within = "which may stay in" if size < 2 * _cache_bytes() else "more than twice"
    return f"its calls go over {size / 2**20:.1f} MB, {within} the cache of {_cache_bytes() / 2**20:.0f} MB"


def floor_ms(written: int) -> float:
    """The least a device can take for a call that writes so many bytes: what its cache cannot keep goes to memory."""
    card: Any = torch.cuda.get_device_properties(0)
    told = getattr(card, "memory_clock_rate", 0), getattr(card, "memory_bus_width", 0)  # in kHz, twice a cycle; in bits
    return least_ms(written, int(card.L2_cache_size), 2 * told[0] * told[1] // 8)


def least_ms(written: int, cached: int, bytes_per_ms: int) -> float:
    """No more than a bound on the time for so many bytes, and nothing where the device does not tell its bandwidth."""
    return max(written - cached, 0) / (PEAKS * bytes_per_ms) if bytes_per_ms else 0.0


def _cache_bytes() -> int:
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def start() -> None:
    """Make torch's context, and make it the current one."""
    torch.zeros(1, device="cuda")


def missing(target: Target) -> str | None:
    """What this machine lacks for a target, in a sentence; None when it has everything."""
    if target is Target.CPU:
        return None
    if not torch.cuda.is_available():
        return f"The target {target} needs a CUDA GPU that torch can use, and torch {torch.__version__} sees none."
    if target is Target.CUDA and nvcc() is None:
        return "The target cuda needs the compiler nvcc, and it is neither on the PATH nor under CUDA_HOME."
    if target is Target.TRITON and importlib.util.find_spec("triton") is None:
        return "The target triton needs the package triton, and it is not installed beside torch."
    return None


def nvcc() -> str | None:
    """Where the CUDA compiler is, by the rules by which torch looks for it."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    found = [str(path) for home in homes if home and (path := Path(home, "bin", "nvcc")).exists()]
    usual = Path("/usr/local/cuda/bin/nvcc")
    return next(iter(found), None) or shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def pin_precision(tf32: bool = False) -> None:
    """Plain fp32 arithmetic, or TF32 in matrix products and convolutions, whatever the defaults of torch are."""
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "none"  # the newer switch above all; the older ones below then decide
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def precision_settings() -> dict[str, object]:
    """The settings that decide how exactly fp32 is computed, under the names by which torch has them.

    Where the newer names exist only those are read: torch refuses the older ones once both kinds have been used.
    """
    newer = hasattr(torch.backends, "fp32_precision")
    last = "fp32_precision" if newer else "allow_tf32"
    names = ["cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul"] if newer else ["cuda.matmul", "cudnn"]
    settings: dict[str, object] = {}
    for name in names:
        part: Any = torch.backends
        for step in name.split("."):
            part = getattr(part, step)
        settings[f"{name}.{last}"] = getattr(part, last)
    return settings


def check_health() -> None:
    """Run a small computation on the device; a device that fails it, or never answers, judges nobody any more."""
    seen: list[str] = []
    worker = threading.Thread(target=_compute, args=(seen,), daemon=True)
    worker.start()
    worker.join(HEALTH_S)
    if seen != ["fine"]:
        raise GpuUnhealthy(f"GPU unhealthy: {seen[0] if seen else f'no answer within {HEALTH_S:.0f} s'}.")


def _compute(seen: list[str]) -> None:
    try:
        total = int(torch.arange(4096, device="cuda").sum())
        seen.append("fine" if total == 4095 * 2048 else f"a sum is {total}, which is wrong")
    except RuntimeError as error:
        seen.append(str(error).splitlines()[0])
