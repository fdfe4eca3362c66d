"""Registers, spills and shared memory of kernels, from the output of the assembler ptxas. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable

MAX_LINES = 8
MAX_NAME_LENGTH = 60
UNNAMED = "(anonymous namespace)::"  # a demangled name may begin with it
WARP_SIZE = 32
SM_REGISTERS, SM_WARPS = 65_536, 64  # of one multiprocessor

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def format_resources(output: str, demangle: Callable[[str], str]) -> str:
    """Return a line for each kernel in the assembler's output."""
    found = []
    for part in _KERNEL.split(output)[1:][1::2]:
        used, spills, shared = _REGISTERS.search(part), _SPILLS.search(part), _SHARED.search(part)
        registers = int(used[1]) if used else 0
        spilled = sum(map(int, spills.groups())) if spills else 0
        found.append(
            f"{registers} registers, which allow {_occupancy(registers):.0%} occupancy; "
            f"{shared[1] if shared else 0} bytes of shared memory; {spilled} bytes spilled"
        )
    names = [demangle(name).replace(UNNAMED, "").partition("(")[0] for name in _KERNEL.findall(output)]
    return "\n".join(f"{name[:MAX_NAME_LENGTH]}: {facts}" for name, facts in zip(names, found, strict=True))


def _occupancy(registers: int) -> float:
    """Return the share of a multiprocessor's warps that its registers suffice for. Registers come in units of eight."""
    per_warp = -(-max(registers, 1) // 8) * 8 * WARP_SIZE
    return min(SM_REGISTERS // per_warp, SM_WARPS) / SM_WARPS
