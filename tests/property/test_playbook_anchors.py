"""A plan of the playbook marks the code that its coder then changes, and no other."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paths import ROOT
from stark.agents.anchors import BEGIN, END, find_violations, measure_outside_share
from stark.models.playbook.anchors import find_changed, find_regions, mark_regions
from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.codegen.cpp import CPP
from stark.models.playbook.codegen.triton import TRITON
from stark.models.playbook.moves import drop_unmet, find_applicable
from stark.models.playbook.trace.program import read_task

FUSE = frozenset({"fuse"})
LANGUAGES = {"cpu": CPP, "triton": TRITON}
TASKS = {path.stem: path.read_text() for path in (ROOT / "examples" / "tasks").glob("*.py")}
PROGRAMS = {name: read_task(source) for name, source in sorted(TASKS.items())}
# a change may need code outside the regions: the function that packs weights
BESIDE = "packed"


def written(name: str, target: str, moves: frozenset[str]) -> str:
    return write_candidate(PROGRAMS[name], moves, LANGUAGES[target])


def lines_outside(scaffold: str) -> list[str]:
    """The code that is not marked."""
    depth, kept = 0, []
    for line in scaffold.split("\n"):
        depth += (BEGIN in line) - (END in line)
        if not depth and END not in line and line.strip() and not line.startswith("# playbook: "):
            kept.append(line)
    return kept


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, str, frozenset[str], frozenset[str]]:
    """A task, a target, and two sets of moves: what there is and what is to be."""
    name, target = draw(st.sampled_from(sorted(PROGRAMS))), draw(st.sampled_from(sorted(LANGUAGES)))
    names = [move.name for move in find_applicable(PROGRAMS[name], target)]
    sets = st.frozensets(st.sampled_from(names)).map(lambda moves: drop_unmet(FUSE | moves))
    return name, target, draw(sets), draw(sets)


@given(steps())
@settings(max_examples=60)
def test_what_is_marked_is_what_changes(step):
    name, target, before, after = step
    source, made = written(name, target, before), written(name, target, after)
    marked = find_changed(source, made)
    scaffold = mark_regions(source, made, "Apply this.\nTake back that.", (BEGIN, END))
    assert find_violations(scaffold, source) == ()
    assert scaffold.count(BEGIN) == scaffold.count(END) == len(marked)
    differing = Counter(lines_outside(scaffold)) - Counter(made.split("\n"))
    if BESIDE not in source:
        assert not differing, "a line that is not marked is not the made source's"
        share = measure_outside_share(source, scaffold, made)
        assert share is None or share == 0.0 or BESIDE in made
    if before != after and source.split("\n")[1:] != made.split("\n")[1:]:
        texts = {each.name: each.text for each in find_regions(made)}
        assert all(each.text != texts[each.name] for each in marked), "a region that is marked stays as it is"


@given(steps())
@settings(max_examples=20)
def test_regions_do_not_overlap(step):
    name, target, before, _ = step
    found = sorted(find_regions(written(name, target, before)), key=lambda each: each.first)
    assert {each.name for each in found} >= {"kernel", "forward"}
    assert all(one.last < other.first for one, other in itertools.pairwise(found))


MARKED = {
    "one in the kernel and one of the flags": ((), ("polynomial", "wide"), {"kernel", "flags"}),
    "flags alone": ((), ("relax",), {"flags"}),
    "memory that is made once": ((), ("scratch",), {"construction", "forward"}),
    "several taken back": (("polynomial", "scratch", "relax"), ("relax",), {"kernel", "construction", "forward"}),
    "only a flag taken back": (("relax",), (), {"flags"}),
}


@pytest.mark.parametrize("case", MARKED)
def test_every_region_of_a_plan_is_marked_and_only_those(case):
    before, after, names = MARKED[case]
    source, made = (written("gated_mlp_block", "cpu", FUSE | {*moves}) for moves in (before, after))
    assert {each.name for each in find_changed(source, made)} == names


def test_what_a_launch_says_is_marked_where_the_kernel_is_launched():
    source, made = (written("softmax_rows", "triton", moves) for moves in (FUSE, FUSE | {"warps"}))
    assert [each.name for each in find_changed(source, made)] == ["forward"]


def test_of_a_task_forward_is_marked():
    for name, source in TASKS.items():
        made = written(name, "cpu", FUSE)
        assert [each.name for each in find_changed(source, made)] == ["forward"]
        assert find_violations(mark_regions(source, made, "Apply this.", (BEGIN, END)), source) == ()
