"""Which move next: what a planner, a coder, a debugger and a single agent make of what they are shown."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator

from stark.models.playbook.moves import MOVES, Move, Moves, complete, moves_of, next_moves, without
from stark.models.playbook.prompt import Prompt, Shown

BOLD = 0.2  # how often something else than the most promising move is proposed
STACKED = 0.5  # how likely a single agent takes a move into its stack
Step = tuple[str, ...]  # moves that are planned together

_APPLY = re.compile(r"^Apply ([\w-]+): ", re.MULTILINE)
_TAKE_BACK = re.compile(r"^Take back ([\w-]+): ", re.MULTILINE)


def choose_plan(prompt: Prompt, known: list[Move], rng: random.Random) -> str:
    """The advice of a planner: one move that has not been tried; two at once, or one taken back, when none is left.

    Moves that only made attempts slower come last.
    """
    current = moves_of(prompt.latest)
    tried = {moves_of(each.source) for each in prompt.earlier}
    failed, slower = set(_failed(prompt.earlier)), _slower(prompt.earlier)
    for steps in _steps(current, known):
        fresh = [each for each in steps if current | {*each} not in tried and not failed & {*each}]
        fresh = [each for each in fresh if not slower & {*each}] or fresh
        if fresh:
            best = max(fresh, key=_gain)
            return "\n".join(map(apply_text, best if rng.random() > BOLD else rng.choice(fresh)))
    taken = [name for name in MOVES if name in current - {"fuse"} and without(current, name) not in tried]
    if taken:
        name = rng.choice(taken)
        return f"Take back {name}: the attempts shown suggest that it costs more than it gains here."
    return apply_text("fuse")


def apply_text(name: str) -> str:
    """How advice names a move and says what to do."""
    return f"Apply {name}: {MOVES[name].advice}"


def named_moves(advice: str) -> list[str]:
    """The moves that advice asks for."""
    return [name for name in _APPLY.findall(advice) if name in MOVES]


def follow(prompt: Prompt, known: list[Move], rng: random.Random) -> Moves:
    """What a coder makes of advice: the latest attempt's moves and those asked for. Advice in other words: its own."""
    current = moves_of(prompt.latest)
    asked, back = named_moves(prompt.advice), _TAKE_BACK.findall(prompt.advice)
    if not asked and not back:
        asked = named_moves(choose_plan(prompt, known, rng))
    made = current | {"fuse", *asked}
    for name in back:
        made = without(made, name)
    return complete(made & {each.name for each in known})


def repair(prompt: Prompt, known: list[Move]) -> Moves:
    """What a debugger does: the smallest change that may remove the cause and that nobody shown has tried."""
    current = moves_of(prompt.latest)
    tried = {current, *(moves_of(each.source) for each in prompt.earlier)}
    names = {each.name for each in known}
    for candidate in _repairs(current, named_moves(prompt.advice), "wrong result" in prompt.latest_result):
        if candidate not in tried and candidate and candidate <= names:
            return candidate
    return frozenset({"fuse"})


def stack(prompt: Prompt, known: list[Move], rng: random.Random) -> Moves:
    """What a single agent writes at once: a random stack of moves, or a few changes to the latest attempt's."""
    current = moves_of(prompt.latest)
    usable = [each for each in known if each.gain]
    if not current:
        return complete(frozenset(each.name for each in usable if each.name == "fuse" or rng.random() < STACKED))
    if prompt.latest_result.startswith("failed"):
        suspects = sorted(name for name in current - {"fuse"} if MOVES[name].risky) or sorted(current - {"fuse"})
        return without(current, rng.choice(suspects)) if suspects else frozenset({"fuse"})
    changed = rng.sample(usable, k=min(len(usable), rng.randint(1, 3)))
    return complete(frozenset(current ^ {each.name for each in changed}) | {"fuse"})


def _steps(current: Moves, known: list[Move]) -> Iterator[list[Step]]:
    """One move with what is essential to it; two; and at last one without."""
    singles = next_moves(current, known)
    whole = [
        (each.name, *(more.name for more in known if more.essential and each.name in more.after)) for each in singles
    ]
    yield whole
    yield [(*step, more.name) for step in whole for more in next_moves(current | {*step}, known)]
    yield [(each.name,) for each in singles]


def _gain(step: Step) -> int:
    return sum(MOVES[name].gain for name in step)


def _slower(shown: Iterable[Shown]) -> Moves:
    """Moves that made every attempt slower that is shown with and without them."""
    times = {moves_of(each.source): each.ms for each in shown if each.ms is not None}
    pairs = [
        (next(iter(more - less)), times[more] > times[less])
        for less, more in itertools.permutations(times, 2)
        if less < more and len(more - less) == 1
    ]
    return frozenset(name for name, _ in pairs) - {name for name, slower in pairs if not slower}


def _failed(shown: Iterable[Shown]) -> Iterator[str]:
    """Moves that an attempt failed with; one that only failed together with others is not to blame."""
    for each in shown:
        asked = named_moves(each.advice)
        if each.failed and len(asked) == 1:
            yield asked[0]


def _repairs(current: Moves, asked: list[str], numerical: bool) -> Iterator[Moves]:
    risky = [name for name in MOVES if name in current and MOVES[name].risky]
    if numerical:
        for name in risky:
            fix = MOVES[name].repair
            yield current | {fix} if fix else without(current, name)
    for name in itertools.chain(reversed(asked), risky, reversed(MOVES)):
        if name in current:
            yield without(current, name)
