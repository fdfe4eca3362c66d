"""Rendered prompts stand in tests/golden/prompts. After a wanted change: STARK_UPDATE_GOLDEN=1 pytest this file."""

from __future__ import annotations

import ast
import hashlib
import os
import random
from dataclasses import replace

import pytest

from paths import TESTS
from stark.agents import anchors
from stark.agents.prompts import STRATEGIES, PromptContext, Prompts, sample_strategy
from stark.agents.template_files import VARIABLES, WORDINGS, load_templates
from stark.agents.windows import Window
from stark.core.chat import Message
from stark.core.errors import SettingsError
from stark.core.settings import AnchorSettings, PromptSettings, WindowSettings
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Plan, Role
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Precision, Target

GOLDEN = TESTS / "golden" / "prompts"

TASK_SOURCE = '''import torch


class Model(torch.nn.Module):
    """Scales by {{ not a variable }}."""

    def forward(self, x):
        return torch.relu(x) * 2


def get_inputs():
    return [torch.rand(8)]


def get_init_inputs():
    return []
'''
NEW_SOURCE = TASK_SOURCE[: TASK_SOURCE.index("def get_inputs")].rstrip().replace("Model", "ModelNew") + "\n"
SCAFFOLD = NEW_SOURCE.replace(
    "        return", f"        # {anchors.BEGIN}\n        # fuse both into one kernel\n        return"
).replace("* 2\n", f"* 2\n        # {anchors.END}\n")
DEVICES = {
    Target.CUDA: DeviceFacts(
        "NVIDIA H200", "gpu", "sm_90", 139.8, 4800.0, 227.0, 132, {"torch": "2.13", "nvcc": "13.0"}
    ),
    Target.TRITON: DeviceFacts("NVIDIA A100", "gpu", "sm_80", 39.4, 1555.0, toolchain={"triton": "3.6"}),
    Target.CPU: DeviceFacts("a CPU", "cpu", cores=2),
}
ROOT = Node(0, None, Attempt(Role.REFERENCE, TASK_SOURCE, EvalReport(Outcome.OK, Timing((2.0,)))))
FAST = Node(
    3,
    0,
    Attempt(
        Role.CODE,
        NEW_SOURCE,
        EvalReport(Outcome.OK, Timing((0.5, 0.5, 0.7)), log="warning: unused", profile="relu 80 %, mul 20 %"),
        plan=Plan("Fuse relu and the product.", SCAFFOLD),
    ),
)
BROKEN = Node(
    7,
    3,
    Attempt(
        Role.CODE,
        NEW_SOURCE.replace("* 2", "* three  # ```"),
        EvalReport(Outcome.COMPILE_ERROR, log="error: 'three' was not declared ```` here"),
        plan=Plan("Use float4 loads.", SCAFFOLD),
    ),
)
REJECTED = Node(8, 3, Attempt(Role.DEBUG, NEW_SOURCE + "# again\n", EvalReport(Outcome.REJECTED, rule="no-fallback")))


def scene(target: Target = Target.CPU, **changes: object) -> PromptContext:
    made = PromptContext(
        Task("scaled_relu", TASK_SOURCE), DEVICES[target], target, Precision.FP32, WindowSettings(), AnchorSettings()
    )
    return replace(made, **changes)


def prompts(made: PromptContext, **settings: str) -> Prompts:
    return Prompts(load_templates(PromptSettings(**settings)), made)


@pytest.mark.parametrize("target", [Target.CUDA, Target.TRITON])
@pytest.mark.parametrize(
    ("conditions", "precise_enough"),
    [({}, False), ({"tf32": True}, True), ({"precision": Precision.BF16}, True), ({"precision": Precision.FP16}, True)],
)
def test_tensor_cores_are_recommended_where_they_are_precise_enough(target, conditions, precise_enough):
    system, task = ask(prompts(scene(target, **conditions)), "plan")
    assert ("tensor cores" in system.content) is ("tensor cores" in task.content) is precise_enough
    assert ("TF32" in task.content) is conditions.get("tf32", False)


def ask(made: Prompts, role: str) -> list[Message]:
    window = Window(FAST, ROOT, (ROOT, FAST, BROKEN, REJECTED))
    if role == "plan":
        return made.plan(window, strategy=None)
    if role == "code":
        return made.code(window, Plan("Unroll the loop by {four}.", SCAFFOLD))
    if role == "debug":
        return made.debug(Window(BROKEN, ROOT, (ROOT, BROKEN, REJECTED)))
    return made.solo(Window(FAST, ROOT, (ROOT, FAST)))


def compare(name: str, messages: list[Message]) -> None:
    text = "".join(f"===== {message.role} =====\n{message.content}" for message in messages)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("STARK_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("role", ["plan", "code", "debug", "solo"])
def test_each_role_on_each_target(role, target):
    compare(f"{role}-{target}", ask(prompts(scene(target)), role))


@pytest.mark.parametrize("role", ["plan", "code", "debug"])
def test_with_anchors_off(role):
    messages = ask(prompts(scene(anchors=AnchorSettings(mode="off"))), role)
    assert "IMPROVE" not in messages[0].content + messages[1].content
    compare(f"{role}-anchors-off", messages)


def test_a_stripped_scaffold_is_kept_from_coder_and_debugger_but_asked_for():
    made = prompts(scene(anchors=AnchorSettings(mode="stripped")))
    assert anchors.BEGIN in ask(made, "plan")[1].content
    assert all("IMPROVE" not in ask(made, role)[1].content for role in ("code", "debug"))


def test_a_scaffold_that_broke_a_rule_is_not_shown():
    window = Window(FAST, ROOT, (ROOT, FAST))
    messages = prompts(scene()).code(window, Plan("Unroll.", SCAFFOLD, ("a rule",)))
    assert "IMPROVE" not in messages[1].content
    assert "Unroll." in messages[1].content


def test_with_a_hint_a_strategy_and_half_precision():
    task = Task("scaled_relu", TASK_SOURCE, hint="Inputs are never negative.")
    made = prompts(scene(task=task, precision=Precision.BF16))
    compare("plan-hint", made.plan(Window(FAST, ROOT, (ROOT, FAST)), strategy=STRATEGIES[0]))


@pytest.mark.parametrize("wording", WORDINGS)
def test_each_system_wording(wording):
    texts = {target: ask(prompts(scene(target), system=wording), "solo")[0] for target in Target}
    compare(f"system-{wording}", list(texts.values()))


def test_at_the_root_there_is_no_latest_attempt():
    made = prompts(scene())
    bare = Window(ROOT, ROOT, (ROOT,))
    for messages in (made.solo(bare), made.plan(bare, None), made.code(bare, Plan("Fuse."))):
        assert "Latest attempt" not in messages[1].content
        assert messages[1].content.count("return torch.relu(x) * 2") == 1
    compare("solo-root", made.solo(bare))


def test_send_back_lists_the_reasons():
    message = prompts(scene()).send_back(["There is {no} code.", "Line 3: do not nest."])
    assert message.role == "user"
    compare("send-back", [message])


def test_values_are_not_rendered_again_and_fences_outgrow_backticks():
    text = ask(prompts(scene()), "debug")[1].content
    assert "{{ not a variable }}" in text
    assert "\n````python\n" in text  # around a source with three backticks
    assert "\n`````text\n" in text  # around a log with four


def test_a_long_log_keeps_both_ends():
    report = replace(BROKEN.report, log="first" + "x" * 500 + "last")
    long = replace(BROKEN, attempt=replace(BROKEN.attempt, report=report))
    text = prompts(scene(windows=WindowSettings(log_characters=20))).debug(Window(long, ROOT, (long,)))[1].content
    assert "firstxxxxx\n[... 489 characters left out ...]\nxxxxxxlast" in text
    text = prompts(scene(windows=WindowSettings(log_characters=0))).debug(Window(long, ROOT, (long,)))[1].content
    assert "Compiler and run log" not in text


def test_profiles_can_be_left_out():
    assert "relu 80 %" in ask(prompts(scene()), "plan")[1].content
    assert "relu 80 %" not in ask(prompts(scene(windows=WindowSettings(profile=False))), "plan")[1].content


@pytest.mark.parametrize("target", list(Target))
def test_the_examples_are_python_with_the_right_class(target):
    templates = load_templates(PromptSettings())
    for key, name in (("example_model", "Model"), (f"example_{target}_new", "ModelNew")):
        tree = ast.parse(templates[key])
        assert name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]


def test_a_sampled_strategy_is_one_of_many_and_repeatable():
    drawn = [sample_strategy(random.Random(seed)) for seed in range(50)]
    assert drawn == [sample_strategy(random.Random(seed)) for seed in range(50)]
    assert len(set(drawn)) > 5


# -- templates of the user ------------------------------------------------------------------------------------------


def test_user_templates_replace_the_built_in_ones(tmp_path):
    (tmp_path / "me.j2").write_text("{{ role }} for {{ task_name }}: {{ task_source | fenced }}")
    (tmp_path / "sys.j2").write_text("{% for fact in device %}{{ fact }}{% endfor %}")
    made = prompts(scene(), code=str(tmp_path / "me.j2"), system=str(tmp_path / "sys.j2"))
    system, user = ask(made, "code")
    assert system.content == "Device: a CPUCores: 2\n"
    assert user.content == f"code for scaled_relu: ```python\n{TASK_SOURCE.rstrip()}\n```\n"
    assert ask(made, "debug")[1] == ask(prompts(scene()), "debug")[1]


def test_every_documented_variable_can_be_used_in_every_template(tmp_path):
    everything = "{% include 'context.j2' %}" + "".join(f"{{{{ {name} }}}}" for name in VARIABLES)
    (tmp_path / "all.j2").write_text(everything)
    chosen = {key: str(tmp_path / "all.j2") for key in ("system", "plan", "code", "debug", "solo")}
    made = prompts(scene(), **chosen)
    assert all(TASK_SOURCE in ask(made, role)[1].content for role in ("plan", "code", "debug", "solo"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fine\n{{ task_sorce }}", "line 2: there is no variable 'task_sorce'; the nearest is 'task_source'"),
        ("fine\n\n{% if hint %}", "line 3: "),
        ("{{ hint | shout }}", "line 1: No filter named 'shout'"),
        ("{% include 'contxt.j2' %}", "no template 'contxt.j2'"),
    ],
)
@pytest.mark.parametrize("key", ["system", "plan"])
def test_a_broken_template_is_refused_with_its_place(tmp_path, key, text, says):
    path = tmp_path / "mine.j2"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        load_templates(PromptSettings(**{key: str(path)}))
    assert f"prompts.{key}" in caught.value.message
    assert str(path) in caught.value.message
    assert says in caught.value.message


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"prompts\.debug is .*none\.j2"):
        load_templates(PromptSettings(debug=str(tmp_path / "none.j2")))


def test_an_unknown_wording_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="alternative-2"):
        load_templates(PromptSettings(system="alternative-3"))


@pytest.mark.parametrize("text", ["{{ entries[0].colour }}", "{{ device.append('x') }}", "{{ role.__class__ }}"])
def test_a_template_that_fails_while_it_is_filled_is_the_settings_fault(tmp_path, text):
    (tmp_path / "mine.j2").write_text(text)
    with pytest.raises(SettingsError, match=r"prompts\.plan"):
        ask(prompts(scene(), plan=str(tmp_path / "mine.j2")), "plan")


# -- the frozen wording ---------------------------------------------------------------------------------------------


def test_the_papers_wording_is_frozen():
    """A change of these files changes what configs/paper.toml reproduces: give a new wording another name."""
    texts = load_templates(PromptSettings(wording="paper"))
    digest = hashlib.sha256("\0".join(texts[key] for key in sorted(texts)).encode()).hexdigest()
    assert digest[:16] == "dbbb5a0141c155a3"
