"""Profiles a call: the time of each kernel or operator.

Agents and labels use it. No verdict depends on it: it is made in the candidate's process, which may lie.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

PROFILED_CALLS, SLOW_S = 3, 0.3  # a call that takes longer is profiled once
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\b_GLOBAL__N_\w*::")
_MANGLED = re.compile(r"_Z[NLK]*(?=\d)")
_TRITON_SUFFIX = re.compile(r"(_\d[\dcde]*)+$")  # of older versions: which arguments are constants
_MACRO_OF_KERNELS = re.compile(r"#\s*define\s+(\w+)\((?:\\\s*\n|[^\n])*__global__")


@dataclass(frozen=True)
class Launch:
    """The launch of a kernel. ``shared_bytes`` is its static and dynamic shared memory; None if it is not known."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int | None
    shared_bytes: int | None


@dataclass(frozen=True)
class Row:
    """A kernel or an operator: its time and its calls in one call of the model.

    ``own`` is True if the candidate defines it.
    """

    name: str
    ms: float
    own: bool
    calls: int = 1
    launch: Launch | None = None


def profile_call(call: Callable[[], Any], gpu: bool, source: str) -> list[Row]:
    """Return the GPU's kernels or the host's operators with their times, the longest first."""
    began = time.perf_counter()
    call()
    if gpu:
        torch.cuda.synchronize()
    count = 1 if time.perf_counter() - began > SLOW_S else PROFILED_CALLS
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with torch.profiler.profile(activities=kinds) as recorded:
        began = time.perf_counter()
        for _ in range(count):
            call()
        took_ms = (time.perf_counter() - began) * 1e3 / count
        if gpu:
            torch.cuda.synchronize()
    rows = kernel_rows(_trace_events(recorded), count, source) if gpu else _operators(recorded, took_ms, count)
    return sorted(rows, key=lambda row: -row.ms)


def own_share(rows: Sequence[Row]) -> float:
    """Return the share of the time in the candidate's own kernels."""
    return sum(row.ms for row in rows if row.own) / (sum(row.ms for row in rows) or 1.0)


def _operators(recorded: torch.profiler.profile, took_ms: float, count: int) -> list[Row]:
    """Return each operator's own time and the rest: a candidate's own kernel is no operator."""
    events = [event for event in recorded.key_averages() if event.device_type.name == "CPU"]
    rows = [Row(event.key, event.self_cpu_time_total / 1e3 / count, False, event.count // count) for event in events]
    others_ms = max(took_ms - sum(row.ms for row in rows), 0.0)
    return [*rows, Row("outside torch's operators", others_ms, True)]


def _trace_events(recorded: torch.profiler.profile) -> list[dict[str, Any]]:
    """Return all events. Only the exported trace has the launches of kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return events


def kernel_rows(events: Sequence[dict[str, Any]], count: int, source: str) -> list[Row]:
    """Return a row for each kernel and each way to launch it, from the events of so many calls."""
    times: dict[tuple[str, Launch], list[float]] = {}
    for event in events:
        if event.get("cat") == "kernel":
            launch = _launch(event.get("args", {}))
            times.setdefault((event["name"], launch), []).append(event["dur"] / 1e3)
    return [
        Row(name, sum(found) / count, is_defined_in(source, name), -(-len(found) // count), launch)
        for (name, launch), found in times.items()
    ]


def _launch(facts: dict[str, Any]) -> Launch:
    grid, block = (tuple(facts.get(name) or (0, 0, 0)) for name in ("grid", "block"))
    return Launch(grid, block, facts.get("registers per thread"), facts.get("shared memory"))


def is_defined_in(source: str, kernel: str) -> bool:
    """True if a source defines this kernel under this name, by itself or by a macro, and in these namespaces.

    The namespaces tell it from kernels of libraries. The profiler's export writes ``Kernel`` for ``kernel``.
    """
    *namespaces, name = _qualified_name("kernel" if kernel == "Kernel" else kernel)
    if not name or not all(re.search(rf"\bnamespace\s[\w:\s]*\b{space}\b", source) for space in namespaces):
        return False
    return _defines(source, name) or _defines(source, _TRITON_SUFFIX.sub("", name))


def _defines(source: str, name: str) -> bool:
    if re.search(rf"(\b__global__[^;{{]*|\bdef\s+)\b{name}\s*[<(]", source):
        return True
    macros = _MACRO_OF_KERNELS.findall(source)
    return any(re.search(rf"\b{macro}\s*\([^)]*\b{name}\b", source) for macro in macros)


def _qualified_name(kernel: str) -> list[str]:
    """Return the namespaces of a kernel that have a name, and its own name last; it may be mangled."""
    if mangled := _MANGLED.search(kernel):
        return _demangled_name(kernel[mangled.end() :])
    words = re.split(r"[<(]", _UNNAMED.sub("", kernel))[0].split()
    return words[-1].split("::") if words else [""]


def _demangled_name(text: str) -> list[str]:
    """Return the parts of a mangled name; each comes after its length."""
    parts: list[str] = []
    while length := re.match(r"\d+", text):
        begin, end = length.end(), length.end() + int(length[0])
        parts.append(text[begin:end])
        text = text[end:]
    return [part for part in parts if not part.startswith("_GLOBAL__N_")] or [""]
