"""Which move next: what a planner, a coder, a debugger and a single agent make of what they are shown."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence

from stark.models.playbook.moves import MOVES, Move, Moves, complete, moves_of, next_moves, without
from stark.models.playbook.prompt import Prompt, Shown

BOLD = 0.2  # how often something else than the most promising move is proposed
STACKED = 0.5  # how likely a single agent takes a move into its stack
_APPLY = re.compile(r"^Apply ([\w-]+): ", re.MULTILINE)
_TAKE_BACK = re.compile(r"^Take back ([\w-]+): ", re.MULTILINE)


def choose_plan(prompt: Prompt, known: list[Move], rng: random.Random) -> str:
    """The advice of a planner: one move that has not been tried; two at once, or one taken back, when none is left."""
    current = moves_of(prompt.latest)
    tried = {moves_of(each.source) for each in prompt.earlier}
    failed = set(_failed(prompt.earlier))
    fresh = [each for each in _steps(current, known) if current | {*each} not in tried and not failed & {*each}]
    if fresh:
        fewest = min(map(len, fresh))
        steps = sorted((each for each in fresh if len(each) == fewest), key=_gain, reverse=True)
        return "\n".join(map(apply_text, steps[0] if rng.random() > BOLD else rng.choice(steps)))
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


def _steps(current: Moves, known: list[Move]) -> Iterator[tuple[str, ...]]:
    """One move, or two that go together."""
    singles = next_moves(current, known)
    yield from ((each.name,) for each in singles)
    for first in singles:
        for second in next_moves(current | {first.name}, known):
            yield first.name, second.name


def _gain(step: Sequence[str]) -> int:
    return sum(MOVES[name].gain for name in step)


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
