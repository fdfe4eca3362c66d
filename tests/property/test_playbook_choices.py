"""A planner plans nothing that failed in the attempts it is shown."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stark.models.playbook.moves import MOVES, Moves, drop_unmet, format_header, parse_moves
from stark.models.playbook.planner import choose_plan, choose_repair, follow_advice, format_apply, parse_named_moves
from stark.models.playbook.prompt import EarlierAttempt, Prompt
from stark.models.playbook.trace.values import Unsupported

FUSE = frozenset({"fuse"})
KNOWN = [move for move in MOVES.values() if "cpu" in move.targets]
NAMES = [move.name for move in KNOWN]
FAILED = ("failed (compile error).", "failed (wrong result).", "failed (runtime error).")

move_sets = st.builds(lambda names: drop_unmet(FUSE | names), st.frozensets(st.sampled_from(NAMES), max_size=6))
advice = st.lists(st.sampled_from(NAMES), max_size=3).map(lambda names: "\n".join(map(format_apply, names)))
results = st.one_of(st.sampled_from(FAILED), st.floats(0.1, 9.0).map("correct, {:.4g} ms.".format))
attempts = st.builds(lambda moves, *rest: EarlierAttempt(format_header(moves), *rest), move_sets, advice, results)
windows = st.lists(attempts, max_size=6, unique_by=lambda each: each.source).map(tuple)
calls = st.integers(0, 1000)


def blamed(shown: tuple[EarlierAttempt, ...]) -> Moves:
    """The moves to blame, computed step by step."""
    found: set[str] = set()
    right = [parse_moves(each.source) for each in shown if not each.failed]
    for each in shown:
        if each.failed:
            found |= {*parse_moves(each.source), *parse_named_moves(each.advice)}
    if not any(each.failed and parse_moves(each.source) == FUSE for each in shown):
        found -= FUSE
    return frozenset(name for name in found if not any(name in moves for moves in right))


def prompt(latest: str, shown: tuple[EarlierAttempt, ...], asked: str = "") -> Prompt:
    return Prompt("", "cpu", "float32", latest, shown, asked, None)


@given(windows, st.data(), calls)
def test_no_planned_move_is_one_that_failed_in_the_window(shown, data, seed):
    latest = data.draw(st.sampled_from(["", *(each.source for each in shown if not each.failed)]))
    given_to = prompt(latest, shown)
    try:
        plan = choose_plan(given_to, KNOWN, random.Random(seed))
    except Unsupported:
        assert not latest
        assert "fuse" in blamed(shown)
        return
    assert not blamed(shown) & {*parse_named_moves(plan)}
    made = follow_advice(prompt(latest, (), plan), KNOWN, random.Random(seed))
    assert made not in [parse_moves(each.source) for each in shown if each.failed]


@given(windows, attempts.filter(lambda each: each.failed))
def test_no_repair_is_what_failed_in_the_window(shown, latest):
    others = tuple(each for each in shown if each.source != latest.source)
    try:
        made = choose_repair(prompt(latest.source, (latest, *others), latest.advice), KNOWN)
    except Unsupported:
        assert any(parse_moves(each.source) == FUSE and each.failed for each in (latest, *others))
        return
    assert made not in [parse_moves(each.source) for each in (latest, *others) if each.failed]
