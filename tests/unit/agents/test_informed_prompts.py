"""Prompts of the method informed. After a wanted change: STARK_UPDATE_GOLDEN=1 pytest this file."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from paths import TESTS
from stark.agents import anchors
from stark.agents.informed.directions import choose_direction, list_changes, list_designs
from stark.agents.informed.history import list_rows
from stark.agents.informed.plans import read_plan
from stark.agents.informed.prompts import InformedPrompts
from stark.agents.informed.regions import choose_regions, find_regions, make_scaffold
from stark.agents.informed.rules import list_rules
from stark.agents.informed.twins import find_twin
from stark.agents.prompts import PromptContext
from stark.agents.template_files import load_templates
from stark.core.chat import Finish, Reply, ReplyFault
from stark.core.records import InFlight, Ticket
from stark.core.settings import EvaluationSettings, PromptSettings, Settings
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Plan, Role, Tree
from stark_worker.protocol.bound import Bound, Limit, Peaks, Work
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Labels, Timing

GOLDEN = TESTS / "golden" / "informed"
TASK = '''import torch


class Model(torch.nn.Module):
    """Scales by {{ not a variable }}."""

    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(8)]
'''
SOURCE = '''import torch
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <cuda.h>

// adds (two) { numbers
template <int N>
__global__ void scale(float* x) {
    for (int i = 0; i < N; ++i) {
        if (x[i] > 0) { x[i] *= 2; }
    }
}

void launch(float* x) { scale<8><<<1, 1>>>(x); }
"""

library = load_inline(name="scaled", cpp_sources=["void launch(float* x);"], cuda_sources=[cuda_source])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return library.launch(x)
'''
H200 = DeviceFacts("NVIDIA H200", "cuda", "sm_90", 139.8, 4228.1, 227.0, 132, {"torch": "2.11", "nvcc": "13.0"})


def node(number, parent, source, ms=None, outcome=Outcome.OK, idea="", **more):
    timing = Timing((ms, ms * 1.001, ms * 0.999)) if ms else None
    labels = Labels(1.0, precision="fp32") if ms else None
    report = EvalReport(outcome, timing, labels=labels, **more)
    plan = Plan(f"Advice of {number}.", idea=idea) if number else None
    role = Role.CODE if number else Role.REFERENCE
    return Node(number, parent, Attempt(role, source, report, plan, explanation="Done as advised.\nNothing left out."))


NODES = (
    node(0, None, TASK, 2.0, profile="relu 80 %"),
    node(1, 0, SOURCE, 0.5, idea="fuse both", profile="scale 100 %"),
    node(2, 0, SOURCE.replace("* 2", "* 2.0f").replace("*= 2", "*= 2.0f"), 0.4, idea="fuse, in float"),
    node(3, 1, SOURCE.replace("1, 1", "1, N"), outcome=Outcome.COMPILE_ERROR, idea="more threads", log="N is unknown"),
    node(4, 1, SOURCE.replace("scaled", "again"), 0.5004, idea="the same again"),
    node(5, 1, SOURCE.replace("1, 1", "1, 8"), 0.4001, idea="eight threads"),
    node(6, 1, None, outcome=Outcome.UNUSABLE_REPLY),
)
TREE = Tree([*NODES[:4], replace(NODES[4], same_as=1), *NODES[5:]])


def prompts(*sets, target="cuda", **task):
    settings = Settings.model_validate({"evaluation": {"target": target}, **dict(sets)})
    made = PromptContext.of(Task("scaled", TASK, **task), H200, settings)
    return InformedPrompts(load_templates(PromptSettings(), "informed"), made)


def ticket(base=1, in_flight=(), tree=TREE):
    return Ticket(9, tree[base], tree, "0/task", tuple(in_flight))


def compare(name, messages):
    text = "".join(f"===== {message.role} =====\n{message.content}" for message in messages)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("STARK_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    return messages[1].content


def scaffold(*names):
    return make_scaffold(SOURCE, choose_regions(", ".join(names), SOURCE)[0])


@pytest.mark.parametrize("target", ["cuda", "triton", "cpu"])
def test_a_first_plan_holds_what_applies_and_nothing_else(target):
    text = compare(f"plan-first-{target}", prompts(target=target).plan(ticket(0, tree=TREE.at(1))))
    assert not any(word in text for word in ("## Attempts", "## Base", "Regions:", "In flight", "failed"))
    assert ("sm_90a" in text) is (target == "cuda")


def test_a_plan_below_the_root():
    rivals = [InFlight(7, 1, 4), InFlight(8, 1, 5, "unroll it"), InFlight(6, 2, 0, "elsewhere")]
    text = compare("plan", prompts(hint="Inputs are never negative.").plan(ticket(1, rivals)))
    assert text.count("class ModelNew") == 1, "one full source: the best differs in two lines"
    assert "equal to the best" in text
    assert "same code as #1" in text
    assert "#8: unroll it" in text
    assert "elsewhere" not in text
    assert "{{ not a variable }}" in text


def test_a_plan_that_is_asked_for_again_names_the_one_that_was_known():
    assert 'Your plan "more threads" led to code' in prompts().plan(ticket(), ["more threads"])[1].content


def test_the_coder_sees_its_source_once_with_the_regions_marked():
    plan = Plan("Unroll the loop by {four}.", scaffold("scale", "forward"))
    text = compare("code", prompts().code(ticket(), plan))
    assert text.count("class ModelNew") == 1
    assert text.count(anchors.BEGIN) == 3
    assert "N is unknown" in text


def test_the_coder_of_a_merge_gets_every_source_that_is_named():
    text = compare("code-merge", prompts().code(ticket(), Plan("Merge them.", bases=(2, 5))))
    assert NODES[2].source.rstrip() in text
    assert NODES[5].source.rstrip() in text
    assert anchors.BEGIN not in text


@pytest.mark.parametrize(("mode", "asked", "shown"), [("stripped", True, False), ("off", False, False)])
def test_regions_stripped_and_off(mode, asked, shown):
    made = prompts(("anchors", {"mode": mode}))
    assert ("Regions:" in made.plan(ticket())[1].content) is asked
    assert ("IMPROVE" in made.code(ticket(), Plan("Unroll.", scaffold("scale")))[1].content) is shown


def test_the_debugger_sees_log_advice_and_source():
    text = compare("debug", prompts().debug(ticket(3)))
    assert "N is unknown" in text
    assert "Advice of 3." in text


def test_windows_off_shows_no_other_attempt():
    text = prompts(("windows", {"enabled": False})).plan(ticket())[1].content
    assert "## Attempts" not in text
    assert "the best" not in text


def test_of_many_attempts_the_latest_and_the_fastest_have_rows():
    many = Tree([NODES[0], *(node(number, 0, f"{SOURCE}# {number}", 1 + number / 100) for number in range(1, 200))])
    rows = list_rows(many, 1)
    assert len(rows) <= 62
    assert [row.split(" ")[0] for row in rows[:3] + rows[-1:]] == ["#0", "#1", "#2", "#199"]


# -- rules ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says", "not_says"),
    [
        ({}, "about 22 bits", "TF32 in products"),
        ({"tf32": True}, "TF32 in products", "about 22 bits"),
        ({"precision": "bf16"}, "off by 0.01", "22 bits"),
        ({"score": "kernelbench", "kernelbench_version": "v0.1"}, "off by 0.01", "flushed"),
        ({"atol": 1e-3, "rtol": 0.0}, "0 of itself plus 0.001.", "spread"),
    ],
)
def test_rules_follow_the_settings(changes, says, not_says):
    settings = EvaluationSettings.model_validate({"target": "cuda", **changes})
    text = "\n".join(list_rules(settings, H200, NODES[0]))
    assert says in text
    assert not_says not in text


def test_siblings_get_directions_of_their_own_and_every_target_has_some():
    for target in ("cuda", "triton", "cpu"):
        for choices in (list_designs(target, False), list_changes(target)):
            drawn = [choose_direction(choices, "0/task", 0, sibling) for sibling in range(len(choices))]
            assert sorted(drawn) == sorted(choices)


# -- regions --------------------------------------------------------------------------------------------------------


def test_regions_are_found_in_python_and_in_strings_of_cpp():
    found = [(region.name, region.first, region.last) for region in find_regions(SOURCE)]
    assert found == [("scale", 8, 13), ("launch", 15, 15), ("ModelNew", 21, 23), ("forward", 22, 23)]


@pytest.mark.parametrize(
    "names", ["scale", "`ModelNew.forward()`", "8-13, launch", "1-23", "lines 4 to 17", "9, 11", "ModelNew, forward"]
)
def test_any_choice_of_regions_makes_a_grounded_scaffold(names):
    regions, wrong = choose_regions(names, SOURCE)
    assert not wrong
    made = make_scaffold(SOURCE, regions)
    assert anchors.find_violations(made, SOURCE) == ()
    assert anchors.remove_markers(made).split() == SOURCE.split()


@pytest.mark.parametrize("names", ["", "scaale", "40-50", "5-2", "forward, nothing_like_it"])
def test_a_wrong_region_is_named(names):
    assert choose_regions(names, SOURCE)[1]


def test_near_twins_differ_in_comments_layout_and_the_librarys_name_alone():
    same = SOURCE.replace("scaled", "other").replace("// adds (two) { numbers\n", "\n\n").replace("x[i] *=", "x[i]  *=")
    assert find_twin(TREE, f"# a comment\n{same}").id == 1
    assert find_twin(TREE, SOURCE.replace("*= 2", "*= 3")) is None


# -- replies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="Idea: tile it\nBase: #3, #5\nRegions: `scale`, 10-12\n\nUse tiles.\nOf 8."),
        Reply(
            text="**Idea:** tile it\n- **Base:** 3 and 5\n- **Regions:** scale, 10-12\n\n**Advice:** Use tiles.\nOf 8."
        ),
        Reply(
            arguments='{"idea": "tile it", "base": [3, 5], "regions": ["scale", "10-12"], '
            '"advice": "Use tiles.\\nOf 8."}'
        ),
        Reply(text='{"idea": "tile it", "base": "3, 5", "regions": "scale, 10-12", "advice": "Use tiles.\\nOf 8."}'),
    ],
)
def test_a_plan_is_read_from_lines_and_from_a_tool_call(reply):
    answer = read_plan(reply)
    assert (answer.idea, answer.bases, answer.text) == ("tile it", (3, 5), "Use tiles.\nOf 8.")
    assert answer.regions.replace("`", "") == "scale, 10-12"


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        (Reply(text=""), ReplyFault.EMPTY),
        (Reply(text="Idea: none"), ReplyFault.EMPTY),
        (Reply(arguments="{"), ReplyFault.MALFORMED),
        (Reply(text="Idea: a", finish=Finish.TRUNCATED), ReplyFault.TRUNCATED),
        (Reply(text="x" * (1 << 21)), ReplyFault.TOO_LARGE),
    ],
)
def test_an_unusable_plan_is_a_fault(reply, fault):
    assert read_plan(reply).fault is fault


def test_a_plan_without_named_lines_is_advice():
    assert read_plan(Reply(text="Use tiles: of 8.\nIdea: no header")).text == "Use tiles: of 8.\nIdea: no header"


def test_a_known_bound_stands_in_the_plan_with_the_shares_that_were_reached():
    peaks = Peaks("NVIDIA H200", 4200.0, 4400.0, 4000.0)
    bound = Bound(0.3, Limit.MEMORY, 0.3, 0.1, 0.3, Work(1, 1, 1, {}), peaks, {})
    root = replace(NODES[0], attempt=replace(NODES[0].attempt, report=replace(NODES[0].report, bound=bound)))
    text = prompts().plan(ticket(1, tree=Tree([root, *NODES[1:3]])))[1].content
    assert "Bound of the algebra as written: 0.3000 ms, limited by memory, certain." in text
    assert "#2 | on #0 | 0.4 ms, 5.00x, 75% of the bound | the best" in text
    assert "## Base: #1, 0.5 ms, 4.00x, 60% of the bound" in text
    assert "Bound" not in prompts().plan(ticket())[1].content
