"""The moves: optimisations with their advice and conditions. A candidate is defined by its set of moves."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from stark.models.playbook.fusion.kernel import Kernel
from stark.models.playbook.fusion.partition import Step, plan_steps
from stark.models.playbook.fusion.tiling import split_into_tiles
from stark.models.playbook.trace.program import Program
from stark.models.playbook.trace.values import TRANSCENDENTAL, Value

Moves = frozenset[str]
HEADER = re.compile(r"^# playbook: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Move:
    """One optimisation. ``gain`` is its usual gain in hundredths of log time; ``after`` are its prerequisites.

    A ``risky`` move may exceed the tolerance; ``repair`` is the move that corrects it, and without one it is taken
    back. An ``essential`` move is planned together with its prerequisites, which do not pay without it.
    """

    name: str
    gain: int
    advice: str
    applies: Callable[[Program, list[Step]], bool] = lambda program, steps: True
    after: tuple[str, ...] = ("fuse",)
    risky: bool = False
    repair: str | None = None
    targets: tuple[str, ...] = ("cpu", "triton")
    essential: bool = False


def _any_kernel(test: Callable[[Kernel], bool]) -> Callable[[Program, list[Step]], bool]:
    return lambda program, steps: any(test(step.kernel) for step in steps if step.kernel is not None)


def _has_reusable_result(kernel: Kernel) -> bool:
    """True if the kernel can overwrite the result of a library call."""
    return any(leaf.op == "library" and leaf.shape == kernel.sink.shape for leaf in kernel.leaves)


def _has_intermediates(program: Program, steps: list[Step]) -> bool:
    """True if a step writes memory that is not an output."""
    return any((step.kernel or step.value.out_call) and step.value not in program.outputs for step in steps)


def _between_convolutions(program: Program, steps: list[Step]) -> bool:
    """True if a convolution depends on another one; with a single one, both sides would be converted."""
    made: set[Value] = set()
    pending = [each for step in steps if step.value.layer for each in step.value.values]
    while pending:
        value = pending.pop()
        if value not in made:
            made.add(value)
            pending += value.values
    return any(each.layer for each in made)


CPU = ("cpu",)
TRITON = ("triton",)

MOVES: dict[str, Move] = {
    move.name: move
    for move in (
        Move(
            "fuse",
            gain=100,
            advice="Fuse each chain of elementwise operations and row reductions into one kernel, so that intermediate "
            "results never reach main memory. Rows are shared out between threads or programs and the loops over a row "
            "are vectorised; products and convolutions stay with the vendor library.",
            after=(),
        ),
        Move(
            "polynomial",
            gain=80,
            advice="Replace the calls of the mathematics library, which keep the loop scalar, by inline polynomials "
            "with a relative error near 1e-7: reduce the range by powers of two, then evaluate.",
            applies=_any_kernel(lambda kernel: kernel.has(*TRANSCENDENTAL)),
            targets=CPU,
            essential=True,
        ),
        Move(
            "relax",
            gain=8,
            advice="Clear the vectoriser's way: no errno, no trapping arithmetic and no signed zeros, so that roots, "
            "minima and maxima become vector instructions.",
            targets=CPU,
            essential=True,
        ),
        Move(
            "keep",
            gain=30,
            advice="Keep what is dear to compute and needed by a later pass: store it into the output row in the "
            "earlier pass and read it back from the cache instead of computing it again.",
            applies=_any_kernel(lambda kernel: any(kernel.cuts)),
            targets=CPU,
        ),
        Move(
            "in-place",
            gain=12,
            advice="Write the result over what the library call has just returned: no second tensor is allocated, and "
            "its pages are in the cache already.",
            applies=_any_kernel(_has_reusable_result),
        ),
        Move(
            "wide",
            gain=12,
            advice="Prefer 512-bit vectors where the processor has them: twice the elements per instruction.",
            targets=CPU,
            essential=True,
        ),
        Move(
            "tile",
            gain=1,
            advice="Block for the cache: take the batch in tiles and let each go through all library calls and kernels "
            "before the next one, so that what a step wrote is still in the cache when the next step reads it.",
            applies=lambda program, steps: split_into_tiles(program) is not None,
            targets=CPU,
        ),
        Move(
            "pack",
            gain=5,
            advice="Prepare the weights of linear layers once, in the order in which the library's products read them, "
            "and again whenever they change.",
            applies=lambda program, steps: any(step.value.packed_call for step in steps),
            targets=CPU,
        ),
        Move(
            "channels-last",
            gain=25,
            advice="Keep the pictures between convolutions with the channels of a pixel side by side in memory, which "
            "is how the library's convolutions compute: they convert nothing before and after.",
            applies=_between_convolutions,
            targets=CPU,
        ),
        Move(
            "scratch",
            gain=4,
            advice="Make the memory of intermediate results once and use it in every call. What is returned is new "
            "memory every time, for the caller may keep it.",
            applies=_has_intermediates,
        ),
        Move(
            "warps",
            gain=5,
            advice="Give each program eight warps instead of four: more loads in flight per row.",
            targets=TRITON,
        ),
        Move(
            "blocks",
            gain=20,
            advice="Let each program handle a block of several short rows, so that its vectors are full.",
            applies=_any_kernel(lambda kernel: kernel.columns < 512),
            targets=TRITON,
        ),
        Move(
            "one-pass",
            gain=6,
            advice="Compute mean and variance of a row in one pass, from the sums of the values and of their squares.",
            applies=_any_kernel(lambda kernel: kernel.has("var")),
            risky=True,
            repair="shift",
            targets=CPU,
        ),
        Move(
            "shift",
            gain=0,
            advice="Take the row's first value away before summing squares, so that the difference of two large "
            "numbers does not lose the variance.",
            applies=_any_kernel(lambda kernel: kernel.has("var")),
            after=("fuse", "one-pass"),
            targets=CPU,
        ),
        Move(
            "online",
            gain=1,
            advice="Take the largest value of a row and the sum of exponentials in one pass: go block by block, and "
            "scale the sum so far down whenever a larger value is met.",
            applies=_any_kernel(lambda kernel: bool(kernel.online)),
            targets=CPU,
        ),
        Move(
            "reciprocal",
            gain=8,
            advice="Divide once per row instead of once per element: multiply by the reciprocal of what does not "
            "change within the row.",
            applies=_any_kernel(lambda kernel: kernel.has("div")),
        ),
        Move(
            "specialise",
            gain=2,
            advice="Write the numbers of rows and columns into the kernel as constants, so that the compiler knows the "
            "trip counts and drops the tail loops.",
        ),
        Move(
            "unroll",
            gain=6,
            advice="Unroll the loops over a row and split their accumulators, so that several additions are under way "
            "at once.",
            after=("fuse", "relax"),
            targets=CPU,
        ),
        Move(
            "short",
            gain=7,
            advice="Cut the polynomial of the exponential to degree 3: a relative error near 1e-4, which the tolerance "
            "may allow.",
            applies=_any_kernel(lambda kernel: kernel.has("exp", "sigmoid", "tanh", "erf")),
            after=("fuse", "polynomial"),
            risky=True,
            targets=CPU,
        ),
    )
}


def parse_moves(source: str) -> Moves:
    """The moves in a source's header; none if the playbook did not write it."""
    found = HEADER.search(source)
    return frozenset(found[1].split(", ")).intersection(MOVES) if found else frozenset()


def format_header(moves: Moves) -> str:
    """The header of a source with these moves."""
    return f"# {format_moves(moves)}"


def format_moves(moves: Moves) -> str:
    """The moves in a line that ``parse_moves`` reads after a ``#``."""
    return f"playbook: {', '.join(name for name in MOVES if name in moves)}"


def find_applicable(program: Program, target: str) -> list[Move]:
    """The moves that apply to a task, used or not."""
    steps = plan_steps(program)
    return [move for move in MOVES.values() if target in move.targets and move.applies(program, steps)]


def next_moves(moves: Moves, known: list[Move]) -> list[Move]:
    """The moves that can be added to a candidate, without those that only repair."""
    return [move for move in known if move.name not in moves and moves.issuperset(move.after) and move.gain]


def remove_move(moves: Moves, name: str) -> Moves:
    """The moves without one and those that depend on it."""
    left = moves - {name}
    return frozenset(each for each in left if left.issuperset(MOVES[each].after))


def drop_unmet(moves: Moves) -> Moves:
    """The moves whose prerequisites are all there."""
    kept = moves
    while lost := {each for each in kept if not kept.issuperset(MOVES[each].after)}:
        kept -= lost
    return kept
