"""The GPU: its cache, numeric settings, requirements of a target, and health check."""

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

HEALTH_TIMEOUT_S = 30.0
MIN_FLUSH_BYTES = 2**28
MAX_BANDWIDTH_RATIO = 1.05  # a device may have up to so many times the bandwidth it reports


def allocate_flush_buffer() -> torch.Tensor:
    """Return memory that flushes the device's cache when it is written."""
    return torch.empty(max(2 * cache_bytes(), MIN_FLUSH_BYTES), dtype=torch.uint8, device="cuda")


def describe_cache(flushed: bool) -> str:
    """Describe for a report if the device's cache was flushed."""
    if flushed:
        return "flushed before every call"
    return "not flushed, as in KernelBench v0.1: inputs may be found in it"


def floor_ms(written: int, read: int = 0, is_flushed: bool = True) -> float:
    """Return a lower bound on the time of a call that writes and reads so many bytes on this device."""
    properties: Any = torch.cuda.get_device_properties(0)
    clock_khz, bus_bits = (getattr(properties, name, 0) for name in ("memory_clock_rate", "memory_bus_width"))
    found = 0 if is_flushed else cache_bytes()
    return lower_bound_ms(written, max(read - found, 0), cache_bytes(), 2 * clock_khz * bus_bits // 8)


def lower_bound_ms(written: int, read: int, cache_bytes: int, bytes_per_ms: int) -> float:
    """Return the time to read, and to write what the cache cannot hold; 0 if the device reports no bandwidth."""
    moved = read + max(written - cache_bytes, 0)
    return moved / (MAX_BANDWIDTH_RATIO * bytes_per_ms) if bytes_per_ms else 0.0


def cache_bytes() -> int:
    """Return the size of the device's last cache."""
    return int(torch.cuda.get_device_properties(0).L2_cache_size)


def wipe_free_memory() -> None:
    """Overwrite all memory that torch holds and does not use, so that nothing of it reaches the next owner.

    Torch gives a free block to a request of exactly its size.
    """
    torch.cuda.synchronize()
    stream = torch.cuda.current_stream().cuda_stream
    free = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["stream"] == stream and tuple(segment.get("segment_pool_id", (0, 0))) == (0, 0)
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    taken = [torch.zeros(size, dtype=torch.uint8, device="cuda") for size in sorted(free, reverse=True)]
    torch.cuda.synchronize()
    del taken


def init_context() -> None:
    """Create torch's CUDA context and make it current."""
    torch.zeros(1, device="cuda")


def find_missing(target: Target) -> str | None:
    """Return a sentence on what this machine lacks for a target; None if it lacks nothing."""
    if target is Target.CPU:
        return None
    if not torch.cuda.is_available():
        return f"The target {target} needs a CUDA GPU that torch can use, and torch {torch.__version__} sees none."
    if target is Target.CUDA and nvcc() is None:
        return "The target cuda needs the compiler nvcc, and it is neither on the PATH nor under CUDA_HOME."
    if target is Target.TRITON and importlib.util.find_spec("triton") is None:
        return "The target triton needs the package triton, and it is not installed next to torch."
    return None


def nvcc() -> str | None:
    """Return the path of the CUDA compiler, found by torch's own rules; None if there is none."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    found = [str(path) for home in homes if home and (path := Path(home, "bin", "nvcc")).exists()]
    usual = Path("/usr/local/cuda/bin/nvcc")
    return next(iter(found), None) or shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def pin_precision(tf32: bool = False) -> None:
    """Set plain fp32 arithmetic, or TF32 in matrix products and convolutions, against torch's defaults."""
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "none"  # neutralise the newer switch, so that the older ones below decide
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def precision_settings() -> dict[str, object]:
    """Return the settings that decide the precision of fp32, under torch's names.

    If the newer names exist, only those are read: torch refuses the older ones once both kinds have been used.
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
    """Run a small computation on the device. Raise GpuUnhealthy if it fails or does not end in time."""
    errors: list[str | None] = []
    thread = threading.Thread(target=lambda: errors.append(_compute_error()), daemon=True)
    thread.start()
    thread.join(HEALTH_TIMEOUT_S)
    error = errors[0] if errors else f"no answer within {HEALTH_TIMEOUT_S:.0f} s"
    if error is not None:
        raise GpuUnhealthy(f"GPU unhealthy: {error}.")


def _compute_error() -> str | None:
    """Compute a sum on the device. Return the error; None if the sum is right."""
    try:
        total = int(torch.arange(4096, device="cuda").sum())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return None if total == 4095 * 2048 else f"a sum is {total}, which is wrong"
