"""A profile as text, short enough for a prompt: kernels or operators, what they take of the device, and warnings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from stark_worker.candidate.kernel_names import short_name
from stark_worker.candidate.profiler import Launch, Row
from stark_worker.compiler.ptxas import Assembly, Resources
from stark_worker.device.occupancy import occupancy

MAX_ROWS, MAX_WARNINGS, MAX_UNUSED = 18, 4, 3
SMALL_SHARE = 0.002  # of the time: kernels below it are counted together
GPU_CLOCK = (
    "By the profiler's clock, in calls in a row that find data in the cache. The result is the referee's time of single"
    " calls, so the two differ: use the shares."
)
HOST_CLOCK = "By the profiler's clock, which adds time to every operator. The result is the referee's time."


@dataclass(frozen=True)
class Gpu:
    """The facts of a GPU that an occupancy depends on."""

    capability: tuple[int, int]
    multiprocessors: int


def format_profile(rows: Sequence[Row], assemblies: Sequence[Assembly], gpu: Gpu | None) -> str:
    """Return a profile of at most 25 lines; ``rows`` come with the longest first."""
    resources = {short_name(each.name): each for assembly in assemblies for each in assembly.kernels}
    total = sum(row.ms for row in rows) or 1.0
    shown = [row for row in rows[:MAX_ROWS] if row.ms >= SMALL_SHARE * total] or list(rows[:1])
    lines = [GPU_CLOCK if gpu else HOST_CLOCK]
    lines += [_format_row(row, total, resources.get(short_name(row.name)), gpu) for row in shown]
    if rest := rows[len(shown) :]:
        ms = sum(row.ms for row in rest)
        lines.append(f"{ms:9.4f} ms {ms / total:4.0%}  {len(rest)} more, with {sum(row.calls for row in rest)} calls")
    warnings = dict.fromkeys(short_warning(text) for assembly in assemblies for text in assembly.warnings)
    lines += [f"compiler warning: {text}" for text in list(warnings)[:MAX_WARNINGS]]
    return "\n".join([*lines, *_unused(resources, rows)])


def short_warning(text: str) -> str:
    """Return a warning of the assembler with the short name of its function."""
    name, colon, what = text.rpartition(": ")
    return f"{short_name(name)}{colon}{what}"


def _format_row(row: Row, total: float, known: Resources | None, gpu: Gpu | None) -> str:
    name = short_name(row.name) if row.launch else row.name
    text = f"{row.ms:9.4f} ms {row.ms / total:4.0%}  {row.calls}x {name}"
    return f"{text}: {', '.join(_launch_facts(row.launch, known, gpu))}" if row.launch and gpu else text


def _launch_facts(launch: Launch, known: Resources | None, gpu: Gpu | None) -> Iterator[str]:
    """Yield grid, block, registers, shared memory, occupancy and spills, as far as they are known."""
    yield f"grid {_format_size(launch.grid)}, block {_format_size(launch.block)}"
    registers = launch.registers or (known.registers if known else None)
    if registers is not None:
        yield f"{registers} registers"
    shared = launch.shared_bytes
    if shared is not None:
        dynamic = f" ({known.shared_bytes} static + {shared - known.shared_bytes} dynamic)" if known else ""
        yield f"{shared} bytes of shared memory{dynamic if shared else ''}"
    if gpu and registers is not None and shared is not None:
        per_processor = prod(launch.grid) / max(gpu.multiprocessors, 1)
        if found := occupancy(gpu.capability, prod(launch.block), registers, shared, per_processor):
            yield f"occupancy {found}"
    if known and known.spilled_bytes:
        yield f"{known.spilled_bytes} bytes SPILLED"


def _format_size(size: tuple[int, int, int]) -> str:
    """Return a size without dimensions of one at its end."""
    used = list(size)
    while len(used) > 1 and used[-1] == 1:
        used.pop()
    return "x".join(map(str, used))


def _unused(resources: dict[str, Resources], rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line on kernels that were built and did not run in this call."""
    ran = {short_name(row.name) for row in rows}
    if names := [name for name in resources if name not in ran]:
        more = f" and {len(names) - MAX_UNUSED} more" if len(names) > MAX_UNUSED else ""
        yield f"built, and not called on these inputs: {', '.join(names[:MAX_UNUSED])}{more}"
