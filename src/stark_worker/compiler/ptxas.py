"""Registers, spills, shared memory and warnings of kernels, from the output of the assembler ptxas. No torch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass

_KERNEL = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LOSS = re.compile(r"Potential Performance Loss: (.+)")
_IN_FUNCTION = re.compile(r"\s*in (?:the )?function '?(\w+)'?.*")


@dataclass(frozen=True)
class Resources:
    """The resources of a kernel. ``name`` is demangled; ``shared_bytes`` is its static shared memory."""

    name: str
    registers: int
    shared_bytes: int
    spilled_bytes: int


@dataclass(frozen=True)
class Assembly:
    """All kernels of a build, and the assembler's warnings of slow code."""

    kernels: tuple[Resources, ...] = ()
    warnings: tuple[str, ...] = ()


def parse_assembly(output: str, demangle: Callable[[str], str]) -> Assembly:
    """Return the facts in the assembler's output."""
    names, parts = _KERNEL.findall(output), _KERNEL.split(output)[1:][1::2]
    kernels = tuple(_resources(demangle(name), part) for name, part in zip(names, parts, strict=True))
    warnings = dict.fromkeys(_warning(text, demangle) for text in _LOSS.findall(output))
    return Assembly(kernels, tuple(warnings))


def write_assembly(assembly: Assembly) -> str:
    """Return the facts as JSON."""
    return json.dumps(asdict(assembly))


def read_assembly(text: str) -> Assembly:
    """Return the facts that ``write_assembly`` wrote."""
    data = json.loads(text)
    return Assembly(tuple(Resources(**each) for each in data["kernels"]), tuple(data["warnings"]))


def _resources(name: str, part: str) -> Resources:
    used, spills, shared = _REGISTERS.search(part), _SPILLS.search(part), _SHARED.search(part)
    return Resources(
        name,
        int(used[1]) if used else 0,
        int(shared[1]) if shared else 0,
        sum(map(int, spills.groups())) if spills else 0,
    )


def _warning(text: str, demangle: Callable[[str], str]) -> str:
    """Return a warning with the demangled name of its function in front."""
    if found := _IN_FUNCTION.search(text):
        return f"{demangle(found[1])}: {text[: found.start()].strip()}"
    return text.strip()
