"""What is measured on. Facts that cannot be read off the machine are None."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import subprocess
import time
from importlib import metadata
from pathlib import Path

from stark_worker.protocol import DeviceFacts

COPY_BYTES = 64 * 2**20
COPIES = 8


def device_facts() -> DeviceFacts:
    """This machine's processor, memory and tools."""
    tools = {"python": platform.python_version(), "torch": metadata.version("torch"), "c++": compiler_version()}
    return DeviceFacts(
        name=_cpu_name(),
        kind="cpu",
        architecture=platform.machine(),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        cores=len(os.sched_getaffinity(0)),
        toolchain={name: version for name, version in tools.items() if version},
    )


def measured_device() -> DeviceFacts:
    """The same with memory bandwidth, which takes a moment to measure."""
    return dataclasses.replace(device_facts(), bandwidth_gb_s=round(copy_bandwidth_gb_s(), 1))


def copy_bandwidth_gb_s() -> float:
    """Bytes read and written per second by the best of a few copies on all cores."""
    import torch  # not needed for the other facts, and slow to import

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    here, there = torch.zeros(COPY_BYTES, dtype=torch.uint8), torch.ones(COPY_BYTES, dtype=torch.uint8)
    times = []
    for _ in range(COPIES):
        begin = time.perf_counter()
        here.copy_(there)
        times.append(time.perf_counter() - begin)
    return 2 * COPY_BYTES / min(times) / 1e9


def compiler_version() -> str | None:
    """The first line a C++ compiler says about itself."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = [os.environ.get("CXX", "g++"), "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.splitlines()[0]
    return None


def _cpu_name() -> str:
    with contextlib.suppress(OSError):
        if found := re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return found[1].strip()
    return platform.processor() or platform.machine() or "cpu"
