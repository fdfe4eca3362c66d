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

from stark_worker.compiler.ptxas import MAX_LINES, MAX_NAME_LENGTH

PROFILED_CALLS = 3
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\b_GLOBAL__N_\w*::")
_MANGLED = re.compile(r"_Z[NLK]*(?=\d)")
_TRITON_SUFFIX = re.compile(r"(_\d[\dcde]*)+$")  # of older versions: which arguments are constants
_MACRO_OF_KERNELS = re.compile(r"#\s*define\s+(\w+)\((?:\\\s*\n|[^\n])*__global__")


@dataclass(frozen=True)
class Row:
    """A kernel or an operator with its time in one call; ``own`` is True if the candidate defines it."""

    ms: float
    what: str
    own: bool


def profile_call(call: Callable[[], Any], gpu: bool, source: str) -> list[Row]:
    """Return the GPU's kernels or the host's operators with their times, the longest first."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if gpu else [])]
    with torch.profiler.profile(activities=kinds) as recorded:
        began = time.perf_counter()
        for _ in range(PROFILED_CALLS):
            call()
        took_ms = (time.perf_counter() - began) * 1e3 / PROFILED_CALLS
        if gpu:
            torch.cuda.synchronize()
    rows = _kernels(recorded, source) if gpu else _operators(recorded, took_ms)
    return sorted(rows, key=lambda row: -row.ms)


def format_table(rows: Sequence[Row]) -> str:
    """Format the longest rows as text."""
    total = sum(row.ms for row in rows) or 1.0
    return "\n".join(f"{row.ms:9.4f} ms {row.ms / total:4.0%}  {row.what}" for row in rows[:MAX_LINES])


def own_share(rows: Sequence[Row]) -> float:
    """Return the share of the time in the candidate's own kernels."""
    return sum(row.ms for row in rows if row.own) / (sum(row.ms for row in rows) or 1.0)


def _operators(recorded: torch.profiler.profile, took_ms: float) -> list[Row]:
    """Return each operator's own time and the rest: a candidate's own kernel is no operator."""
    events = [event for event in recorded.key_averages() if event.device_type.name == "CPU"]
    rows = [
        Row(
            event.self_cpu_time_total / 1e3 / PROFILED_CALLS,
            f"{event.key[:MAX_NAME_LENGTH]} x{event.count // PROFILED_CALLS}",
            False,
        )
        for event in events
    ]
    others_ms = max(took_ms - sum(row.ms for row in rows), 0.0)
    return [*rows, Row(others_ms, "outside torch's operators", True)]


def _kernels(recorded: torch.profiler.profile, source: str) -> list[Row]:
    """Return the time of each kernel with its launch and occupancy, which only the exported trace has."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    times: dict[tuple[str, bool], float] = {}
    for event in events:
        if event.get("cat") == "kernel":
            what = (
                f"{event['name'][:MAX_NAME_LENGTH]} {_format_launch(event.get('args', {}))}",
                is_defined_in(source, event["name"]),
            )
            times[what] = times.get(what, 0.0) + event["dur"] / 1e3 / PROFILED_CALLS
    return [Row(ms, what, own) for (what, own), ms in times.items()]


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


def _format_launch(facts: dict[str, Any]) -> str:
    return (
        f"grid {facts.get('grid')} block {facts.get('block')}, {facts.get('registers per thread')} registers, "
        f"{facts.get('shared memory')} bytes shared, occupancy {facts.get('est. achieved occupancy %')} %"
    )
