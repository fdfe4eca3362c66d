"""Chooses moves for the roles: planner, coder, debugger and single agent."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator

from stark.models.playbook.moves import MOVES, Move, Moves, drop_unmet, next_moves, parse_moves, remove_move
from stark.models.playbook.prompt import EarlierAttempt, Prompt
from stark.models.playbook.trace.values import Unsupported

PLAN_NOISE = 0.02  # standard deviation in log time; varies the choice between moves of similar promise
PRIOR_WEIGHT = 1.5  # weight of a move's usual gain, in measurements
PRIOR_WIDTH = 0.15  # distance from the usual gain, in log time, at which its weight halves
REGRESSION_SWEEPS = 30  # until the gains have converged
FUSE_ONLY: Moves = frozenset({"fuse"})  # every kernel of the playbook has it
STACK_PROBABILITY = 0.5  # that a single agent takes a move into its first stack

_APPLY = re.compile(r"^Apply ([\w-]+): ", re.MULTILINE)
_TAKE_BACK = re.compile(r"^Take back ([\w-]+): ", re.MULTILINE)


def choose_plan(prompt: Prompt, known: list[Move], rng: random.Random) -> str:
    """Advise the most promising set of moves that is one move away from a correct attempt shown.

    Plan no set that is shown already and no move that failed there. Raise Unsupported if nothing is left.
    """
    current, gains = parse_moves(prompt.latest), _estimate_gains(prompt.earlier, known)
    correct = {parse_moves(each.source) for each in prompt.earlier if not each.failed} | {current}
    tried = {parse_moves(each.source) for each in prompt.earlier}
    failed = _find_failed(prompt.earlier) - current
    usable = [each for each in known if each.name not in failed]
    fresh = sorted({target for moves in correct for target in _find_neighbours(moves, usable)} - tried, key=sorted)
    if not fresh:
        return format_apply("fuse") if current else _format_advice(current, _last_resort(prompt.earlier))
    return _format_advice(
        current, max(fresh, key=lambda moves: sum(gains[name] for name in moves) + rng.gauss(0.0, PLAN_NOISE))
    )


def format_apply(name: str) -> str:
    """The advice that asks for one move."""
    return f"Apply {name}: {MOVES[name].advice}"


def parse_named_moves(advice: str) -> list[str]:
    """The moves that advice asks for."""
    return [name for name in _APPLY.findall(advice) if name in MOVES]


def follow_advice(prompt: Prompt, known: list[Move], rng: random.Random) -> Moves:
    """The latest attempt's moves and those the advice asks for. Without any known move, choose a plan."""
    current = parse_moves(prompt.latest)
    asked, back = parse_named_moves(prompt.advice), _TAKE_BACK.findall(prompt.advice)
    if not asked and not back:
        asked = parse_named_moves(choose_plan(prompt, known, rng))
    made = current | {"fuse", *asked}
    for name in back:
        made = remove_move(made, name)
    return drop_unmet(made & {each.name for each in known})


def choose_repair(prompt: Prompt, known: list[Move]) -> Moves:
    """Choose the smallest change that may remove the cause and that no attempt shown has tried."""
    current = parse_moves(prompt.latest)
    tried = {current, *(parse_moves(each.source) for each in prompt.earlier)}
    names = {each.name for each in known}
    for candidate in _list_repairs(current, parse_named_moves(prompt.advice), "wrong result" in prompt.latest_result):
        if candidate not in tried and candidate and candidate <= names:
            return candidate
    return _last_resort(prompt.earlier)


def choose_stack(prompt: Prompt, known: list[Move], rng: random.Random) -> Moves:
    """Choose a random stack of moves, or a few random changes to the latest attempt's."""
    current = parse_moves(prompt.latest)
    usable = [each for each in known if each.gain]
    if not current:
        return drop_unmet(
            frozenset(each.name for each in usable if each.name == "fuse" or rng.random() < STACK_PROBABILITY)
        )
    if prompt.latest_result.startswith("failed"):
        suspects = sorted(name for name in current - {"fuse"} if MOVES[name].risky) or sorted(current - {"fuse"})
        return remove_move(current, rng.choice(suspects)) if suspects else _last_resort(prompt.earlier)
    flipped = rng.sample(usable, k=min(len(usable), rng.randint(1, 3)))
    return drop_unmet(frozenset(current ^ {each.name for each in flipped}) | {"fuse"})


def _find_neighbours(moves: Moves, known: list[Move]) -> Iterator[Moves]:
    """Add a move with those essential to it, or remove one."""
    for each in next_moves(moves, known):
        together = {more.name for more in known if more.essential and each.name in more.after}
        yield moves | {each.name} | together
    for name in moves - {"fuse"}:
        yield remove_move(moves, name)


def _estimate_gains(shown: Iterable[EarlierAttempt], known: list[Move]) -> dict[str, float]:
    """Estimate the gain of each move in log time, by a regression of the attempts' times on their moves.

    Usual gains act as priors, so that one lucky time does not count against every move tried after it.
    """
    speeds = {parse_moves(each.source): -math.log(each.ms) for each in shown if each.ms and parse_moves(each.source)}
    usual = {name: move.gain / 100 for name, move in MOVES.items()}
    gains, level = dict(usual), 0.0
    for _ in range(REGRESSION_SWEEPS if speeds else 0):
        left = {moves: speed - sum(gains[name] for name in moves) for moves, speed in speeds.items()}
        level = sum(left.values()) / len(left)
        for move in known:
            with_it = [
                speeds[moves] - level - sum(gains[name] for name in moves - {move.name})
                for moves in speeds
                if move.name in moves
            ]
            weight = PRIOR_WEIGHT / (1 + ((gains[move.name] - usual[move.name]) / PRIOR_WIDTH) ** 2)
            gains[move.name] = (weight * usual[move.name] + sum(with_it)) / (weight + len(with_it))
    return gains


def _format_advice(current: Moves, target: Moves) -> str:
    """Advice that leads from one set of moves to another."""
    back = [
        f"Take back {name}: the attempts shown suggest that it costs more than it gains here."
        for name in MOVES
        if name in current - target
    ]
    forward = [name for name in MOVES if name in target - current]
    changes = [*(f"+{name}" for name in forward), *(f"-{name}" for name in MOVES if name in current - target)]
    return "\n".join([f"Moves: {' '.join(changes)}", *back, *map(format_apply, forward)])


def _find_failed(shown: Iterable[EarlierAttempt]) -> Moves:
    """The moves that only failed attempts have or were asked for. ``fuse`` counts only if it failed alone."""
    shown = list(shown)
    right = {name for each in shown if not each.failed for name in parse_moves(each.source)}
    blamed = {
        name for each in shown if each.failed for name in (*parse_moves(each.source), *parse_named_moves(each.advice))
    }
    alone = any(each.failed and parse_moves(each.source) == FUSE_ONLY for each in shown)
    return frozenset(blamed - right - (set() if alone else FUSE_ONLY))


def _last_resort(shown: Iterable[EarlierAttempt]) -> Moves:
    """``fuse`` alone, or the fastest correct attempt shown if that failed."""
    shown = list(shown)
    failure = next((each.result for each in shown if each.failed and parse_moves(each.source) == FUSE_ONLY), None)
    if failure is None:
        return FUSE_ONLY
    right = [each for each in shown if each.ms and parse_moves(each.source)]
    if not right:
        raise Unsupported(f"what else to do where `fuse` by itself {failure.rstrip('.')}")
    return parse_moves(min(right, key=lambda each: each.ms or math.inf).source)


def _list_repairs(current: Moves, asked: list[str], numerical: bool) -> Iterator[Moves]:
    risky = [name for name in MOVES if name in current and MOVES[name].risky]
    if numerical:
        for name in risky:
            fix = MOVES[name].repair
            yield current | {fix} if fix else remove_move(current, name)
    for name in itertools.chain(reversed(asked), risky, reversed(MOVES)):
        if name in current:
            yield remove_move(current, name)
