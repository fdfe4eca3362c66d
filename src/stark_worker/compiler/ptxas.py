"""TODO."""

from __future__ import annotations

import re
from collections.abc import Callable

LINES = 8


NAME = 60


WARP, REGISTERS, WARPS = 32, 65_536, 64  # threads of a warp, and what a multiprocessor holds of registers and warps


_KERNEL = re.compile(r"Compiling entry function '(\w+)'")


_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


_USED = re.compile(r"Used (\d+) registers")


_SHARED = re.compile(r"(\d+) bytes smem")


def resources(said: str, demangled: Callable[[str], str]) -> str:
    """Registers, spills and shared memory of each kernel, from what the assembler of a GPU said."""
    found = []
    for part in _KERNEL.split(said)[1:][1::2]:
        used, spills, shared = _USED.search(part), _SPILLS.search(part), _SHARED.search(part)
        registers = int(used[1]) if used else 0
        spilled = sum(map(int, spills.groups())) if spills else 0
        found.append(
            f"{registers} registers, which allow {_occupancy(registers):.0%} occupancy; "
            f"{shared[1] if shared else 0} bytes of shared memory; {spilled} bytes spilled"
        )
    names = [demangled(name).partition("(")[0] for name in _KERNEL.findall(said)]
    return "\n".join(f"{name[:NAME]}: {facts}" for name, facts in zip(names, found, strict=True))


def _occupancy(registers: int) -> float:
    """The share of a multiprocessor's warps that its registers suffice for; they are given out in eights."""
    each = -(-max(registers, 1) // 8) * 8 * WARP
    return min(REGISTERS // each, WARPS) / WARPS
