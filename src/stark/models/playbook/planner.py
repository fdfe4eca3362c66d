"""Which move next: what a planner, a coder, a debugger and a single agent make of what they are shown."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator

from stark.models.playbook.moves import MOVES, Move, Moves, complete, moves_of, next_moves, without
from stark.models.playbook.prompt import Prompt, Shown
from stark.models.playbook.trace.values import Unknown

MOOD = 0.02  # how far a planner's hopes stray, in log time: of moves that promise about the same it takes any
TRUST = 1.5  # how many measurements it takes to outweigh what a move usually gains
FAR = 0.15  # how far from that, in log time, attempts have to be to be believed instead
SWEEPS = 30  # of a regression, until it has settled
ALONE: Moves = frozenset({"fuse"})  # the least that a kernel of the playbook has
STACKED = 0.5  # how likely a single agent takes a move into its stack

_APPLY = re.compile(r"^Apply ([\w-]+): ", re.MULTILINE)
_TAKE_BACK = re.compile(r"^Take back ([\w-]+): ", re.MULTILINE)


def choose_plan(prompt: Prompt, known: list[Move], rng: random.Random) -> str:
    """The advice of a planner: of all that is one move away from an attempt shown, what should be fastest.

    An attempt that fell behind thus joins the leaders. Nothing that is shown is made again, nor is a move planned that
    failed there. Raises Unknown where nothing is left.
    """
    current, gains = moves_of(prompt.latest), _gains(prompt.earlier, known)
    correct = {moves_of(each.source) for each in prompt.earlier if not each.failed} | {current}
    tried = {moves_of(each.source) for each in prompt.earlier}
    failed = _failed(prompt.earlier) - current
    usable = [each for each in known if each.name not in failed]
    fresh = sorted({target for moves in correct for target in _one_away(moves, usable)} - tried, key=sorted)
    if not fresh:
        return apply_text("fuse") if current else _advice(current, _last_resort(prompt.earlier))
    return _advice(current, max(fresh, key=lambda moves: sum(gains[name] for name in moves) + rng.gauss(0.0, MOOD)))


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
    return _last_resort(prompt.earlier)


def stack(prompt: Prompt, known: list[Move], rng: random.Random) -> Moves:
    """What a single agent writes at once: a random stack of moves, or a few changes to the latest attempt's."""
    current = moves_of(prompt.latest)
    usable = [each for each in known if each.gain]
    if not current:
        return complete(frozenset(each.name for each in usable if each.name == "fuse" or rng.random() < STACKED))
    if prompt.latest_result.startswith("failed"):
        suspects = sorted(name for name in current - {"fuse"} if MOVES[name].risky) or sorted(current - {"fuse"})
        return without(current, rng.choice(suspects)) if suspects else _last_resort(prompt.earlier)
    changed = rng.sample(usable, k=min(len(usable), rng.randint(1, 3)))
    return complete(frozenset(current ^ {each.name for each in changed}) | {"fuse"})


def _one_away(moves: Moves, known: list[Move]) -> Iterator[Moves]:
    """A move more, together with what is essential to it; or one less."""
    for each in next_moves(moves, known):
        together = {more.name for more in known if more.essential and each.name in more.after}
        yield moves | {each.name} | together
    for name in moves - {"fuse"}:
        yield without(moves, name)


def _gains(shown: Iterable[Shown], known: list[Move]) -> dict[str, float]:
    """What each move is believed to gain, in log time: what it usually does, as far as the attempts shown agree.

    A regression of their times on their moves, drawn to what is usual: else one lucky time would speak against every
    move that was tried next.
    """
    speeds = {moves_of(each.source): -math.log(each.ms) for each in shown if each.ms and moves_of(each.source)}
    usual = {name: move.gain / 100 for name, move in MOVES.items()}
    gains, level = dict(usual), 0.0
    for _ in range(SWEEPS if speeds else 0):
        left = {moves: speed - sum(gains[name] for name in moves) for moves, speed in speeds.items()}
        level = sum(left.values()) / len(left)
        for move in known:
            with_it = [
                speeds[moves] - level - sum(gains[name] for name in moves - {move.name})
                for moves in speeds
                if move.name in moves
            ]
            trust = TRUST / (1 + ((gains[move.name] - usual[move.name]) / FAR) ** 2)
            gains[move.name] = (trust * usual[move.name] + sum(with_it)) / (trust + len(with_it))
    return gains


def _advice(current: Moves, target: Moves) -> str:
    """How to get from one set of moves to another."""
    back = [
        f"Take back {name}: the attempts shown suggest that it costs more than it gains here."
        for name in MOVES
        if name in current - target
    ]
    return "\n".join([*back, *(apply_text(name) for name in MOVES if name in target - current)])


def _failed(shown: Iterable[Shown]) -> Moves:
    """Moves to blame for failures: what a failed attempt has or was asked for and no correct one shown has.

    Every kernel has ``fuse``: that is to blame only where it failed by itself.
    """
    shown = list(shown)
    right = {name for each in shown if not each.failed for name in moves_of(each.source)}
    blamed = {name for each in shown if each.failed for name in (*moves_of(each.source), *named_moves(each.advice))}
    alone = any(each.failed and moves_of(each.source) == ALONE for each in shown)
    return frozenset(blamed - right - (set() if alone else ALONE))


def _last_resort(shown: Iterable[Shown]) -> Moves:
    """What is left when nothing near is new: ``fuse`` alone. Where that failed: what an attempt shown got right."""
    shown = list(shown)
    failure = next((each.result for each in shown if each.failed and moves_of(each.source) == ALONE), None)
    if failure is None:
        return ALONE
    right = [each for each in shown if each.ms and moves_of(each.source)]
    if not right:
        raise Unknown(f"what else to do where `fuse` by itself {failure.rstrip('.')}")
    return moves_of(min(right, key=lambda each: each.ms or math.inf).source)


def _repairs(current: Moves, asked: list[str], numerical: bool) -> Iterator[Moves]:
    risky = [name for name in MOVES if name in current and MOVES[name].risky]
    if numerical:
        for name in risky:
            fix = MOVES[name].repair
            yield current | {fix} if fix else without(current, name)
    for name in itertools.chain(reversed(asked), risky, reversed(MOVES)):
        if name in current:
            yield without(current, name)
