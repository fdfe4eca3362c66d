"""Measures the peaks of a device: how fast it copies, reads, writes and multiplies.

Each peak is the best of several tries. This takes about a second, so the scheduler keeps the result,
unless other processes disturbed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stark_worker.device import cuda
from stark_worker.device.facts import device_facts
from stark_worker.processes.channel import Channel
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.usage import MIN_BUSY_CORES, CpuLoad
from stark_worker.protocol.bound import Peaks
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import MachineryFault
from stark_worker.protocol.request import Target

TRIES, TRIES_S = 8, 0.15  # the most of one peak, and the time after which no more are made
HOST_BYTES, DEVICE_BYTES = 2**27, 2**30  # of one buffer, so that no cache holds it
HOST_SIZE, DEVICE_SIZE = 1024, 8192  # of square matrices
CACHE_SHARE = 4  # a buffer of this part of the cache
SHORT_REPEATS = 20  # of operations that take microseconds
LAUNCHES = 200

Measure = Callable[[Callable[[], object]], float]  # returns the best time of an operation in seconds


def main(channel: Channel) -> None:
    """Send the peaks of the device. The first message names the target."""
    target = Target(channel.receive()["target"])
    if missing := cuda.find_missing(target):
        channel.send(did="failed", fault=MachineryFault.kind, text=missing)
        return
    load = CpuLoad(time.process_time)
    try:
        peaks = measure_peaks(target)
    except RuntimeError as error:  # too little memory is left, for example
        channel.send(did="failed", fault=MachineryFault.kind, text=f"The peaks could not be measured: {error}")
        return
    is_disturbed = target is Target.CPU and load.busy_cores() >= MIN_BUSY_CORES
    channel.send(did="measured", peaks=to_json(peaks), disturbed=is_disturbed)


def measure_peaks(target: Target) -> Peaks:
    """Return the peaks of the device that runs kernels for this target."""
    with torch.no_grad():
        return _measure_host() if target is Target.CPU else _measure_gpu()


def _measure_host() -> Peaks:
    torch.set_num_threads(usable_cores())
    peaks = _measure_memory("cpu", HOST_BYTES, _host_cache_bytes(), _best_on_host)
    names = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16}
    rates = {f"{name}_tflops": _product_tflops(HOST_SIZE, dtype, "cpu", _best_on_host) for name, dtype in names.items()}
    return replace(peaks, **rates)  # type: ignore[arg-type]


def _host_cache_bytes() -> int:
    """Return the size of the last cache of the first core; 0 if the system does not report it."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(text[:-1]) * 1024 for text in sizes if text.endswith("K")), default=0)


def _measure_gpu() -> Peaks:
    cuda.pin_precision()
    best = _best_on_gpu
    free, _ = torch.cuda.mem_get_info()
    peaks = _measure_memory("cuda", min(DEVICE_BYTES, free // 8), cuda.cache_bytes(), best)
    fp32 = _product_tflops(DEVICE_SIZE // 2, torch.float32, "cuda", best)
    short = {dtype: _product_tflops(DEVICE_SIZE, dtype, "cuda", best) for dtype in (torch.float16, torch.bfloat16)}
    fp64 = _product_tflops(DEVICE_SIZE // 4, torch.float64, "cuda", best)
    has_tf32 = torch.cuda.get_device_capability()[0] >= 8
    cuda.pin_precision(tf32=True)
    tf32 = _product_tflops(DEVICE_SIZE, torch.float32, "cuda", best) if has_tf32 else None
    cuda.pin_precision()
    return replace(
        peaks,
        fp64_tflops=fp64,
        fp32_tflops=fp32,
        tf32_tflops=tf32,
        fp16_tflops=short[torch.float16],
        bf16_tflops=short[torch.bfloat16] if has_tf32 else None,
        launch_ms=_launch_ms(best),
    )


def _measure_memory(device: str, size: int, cache_bytes: int, best: Measure) -> Peaks:
    """Measure the bandwidths with two buffers of this size, and with two that the cache holds."""
    source, target = (torch.zeros(size // 4, device=device) for _ in range(2))
    copy_s, read_s, write_s = best(lambda: target.copy_(source)), best(source.max), best(lambda: target.fill_(1.0))
    copy = 2 * size / copy_s / 1e9
    cache = None
    if count := cache_bytes // CACHE_SHARE // 4:
        near, there = source[:count], target[:count]
        cache_s = best(lambda: [there.copy_(near) for _ in range(SHORT_REPEATS)]) / SHORT_REPEATS
        cache = max(2 * 4 * count / cache_s / 1e9, copy)
    facts = device_facts(Target.CPU if device == "cpu" else Target.CUDA)
    # What copies at this rate also reads and writes at it: a kernel that only reads may just be worse than the copy.
    read, write = (max(size / seconds / 1e9, copy) for seconds in (read_s, write_s))
    return Peaks(facts.name, _round(copy), _round(read), _round(write), cache and _round(cache), cache_bytes)


def _product_tflops(size: int, dtype: torch.dtype, device: str, best: Measure) -> float | None:
    """Return the speed of a product of square matrices; None if the device has none in this format."""
    try:
        one, other, out = (torch.ones(size, size, dtype=dtype, device=device) for _ in range(3))
        return _round(2 * size**3 / best(lambda: torch.mm(one, other, out=out)) / 1e12)
    except RuntimeError as error:
        if "not implemented" in str(error) or "CUBLAS_STATUS_NOT_SUPPORTED" in str(error):
            return None
        raise


def _launch_ms(best: Measure) -> float:
    """Return the time of one small kernel in a queue of many."""
    word = torch.zeros(1, device="cuda")
    return round(1e3 * best(lambda: [word.zero_() for _ in range(LAUNCHES)]) / LAUNCHES, 5)


def _best_on_host(work: Callable[[], object]) -> float:
    work()
    times: list[float] = []
    while len(times) < TRIES and sum(times) < TRIES_S:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _best_on_gpu(work: Callable[[], object]) -> float:
    """Return the best time between two events on the device."""
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    times = []
    for _ in range(TRIES):
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return float(min(times))


def _round(value: float) -> float:
    return float(f"{value:.4g}")
