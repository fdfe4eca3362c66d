"""Hardware facts of the device. A fact that cannot be read is None."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from stark_worker.processes.channel import Channel
from stark_worker.processes.environment import usable_cores
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import MachineryFault
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Target

COPY_BYTES = 64 * 2**20
GPU_COPY_BYTES = 2**30
COPIES = 8


@functools.cache
def device_facts(target: Target = Target.CPU) -> DeviceFacts:
    """Return the facts of the device that runs kernels for this target."""
    return _cpu_facts() if target is Target.CPU else _gpu_facts()


def measure_device(target: Target = Target.CPU) -> DeviceFacts:
    """Return the same facts with the memory bandwidth, which takes a moment to measure."""
    bandwidth = copy_bandwidth_gb_s() if target is Target.CPU else device_copy_bandwidth_gb_s()
    return dataclasses.replace(device_facts(target), bandwidth_gb_s=round(bandwidth, 1))


def main(channel: Channel) -> None:
    """Send the facts of the device. The first message names the target."""
    target = Target(channel.receive()["target"])
    if target is not Target.CPU:
        from stark_worker.device import cuda

        if missing := cuda.find_missing(target):
            channel.send(did="failed", fault=MachineryFault.kind, text=missing)
            return
    channel.send(did="measured", facts=to_json(measure_device(target)))


def _cpu_facts() -> DeviceFacts:
    return DeviceFacts(
        name=_cpu_name(),
        kind="cpu",
        architecture=platform.machine(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        cores=usable_cores(),
        toolchain=_tools({}),
    )


def _gpu_facts() -> DeviceFacts:
    import torch  # slow to import and not needed for the facts of a CPU

    from stark_worker.device.cuda import nvcc

    card = torch.cuda.get_device_properties(0)
    shared = getattr(card, "shared_memory_per_block_optin", None) or getattr(card, "shared_memory_per_block", None)
    compiler = nvcc()
    tools = {"cuda": torch.version.cuda, "driver": _driver_version(), "triton": _installed_version("triton")}
    return DeviceFacts(
        name=card.name,
        kind="cuda",
        architecture=f"sm_{card.major}{card.minor}",
        memory_gb=round(card.total_memory / 2**30, 1),
        shared_memory_kb=shared / 1024 if shared else None,
        cores=card.multi_processor_count,
        toolchain=_tools(tools | {"nvcc": _query([compiler, "--version"], r"release ([\d.]+)") if compiler else None}),
    )


def _tools(others: dict[str, str | None]) -> dict[str, str]:
    tools = {
        "python": platform.python_version(),
        "torch": _installed_version("torch"),
        "c++": compiler_version(),
    } | others
    return {name: version for name, version in tools.items() if version}


def _installed_version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _driver_version() -> str | None:
    with contextlib.suppress(OSError):
        if found := re.search(r"\b(\d{3}\.[\d.]+)\b", Path("/proc/driver/nvidia/version").read_text()):
            return found[1]
    return _query(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], r"([\d.]+)")


def copy_bandwidth_gb_s() -> float:
    """Return bytes read and written per second by the best of a few copies on all cores."""
    import torch  # slow to import and not needed for the other facts

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    target, source = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.ones(COPY_BYTES, dtype=torch.uint8)
    times = []
    for _ in range(COPIES):
        begin = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - begin)
    return 2 * COPY_BYTES / min(times) / 1e9


def device_copy_bandwidth_gb_s() -> float:
    """Return the same for copies within a GPU's own memory."""
    import torch

    target, source = (torch.zeros(GPU_COPY_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    event: Any = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    times: list[float] = []
    for _ in range(COPIES):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * GPU_COPY_BYTES / min(times) / 1e9


def compiler_version() -> str | None:
    """Return the first line of a C++ compiler's version."""
    return _query([os.environ.get("CXX", "g++"), "--version"], r"(.+)")


def _query(command: list[str], pattern: str) -> str | None:
    """Run a program and return the first group of the pattern in its output; None if there is none."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
        if found := re.search(pattern, answer):
            return found[1]
    return None


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine() or "cpu"
