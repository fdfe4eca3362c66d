"""The playbook traces tasks and picks moves."""

from __future__ import annotations

import ast
import asyncio
import random
import re
from dataclasses import replace

import pytest

from paths import ROOT
from stark.agents.anchors import BEGIN, END, find_violations
from stark.agents.prompts import PromptContext, Prompts
from stark.agents.replies import CODE_FORM, DEBUG_FORM, PLAN_FORM, SOLO_FORM, read_kernel, read_plan
from stark.agents.template_files import load_templates
from stark.agents.windows import Window
from stark.core.chat import Reply
from stark.core.errors import ModelRefused
from stark.core.settings import Settings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role
from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.codegen.cpp import CPP
from stark.models.playbook.codegen.triton import TRITON
from stark.models.playbook.fusion.access import channels_last, plain
from stark.models.playbook.fusion.kernel import Level
from stark.models.playbook.fusion.partition import plan_steps
from stark.models.playbook.fusion.tiling import split_into_tiles
from stark.models.playbook.model import PlaybookModel
from stark.models.playbook.moves import MOVES, drop_unmet, find_applicable, parse_moves, remove_move
from stark.models.playbook.planner import format_apply, parse_named_moves
from stark.models.playbook.trace.operations import FUSABLE
from stark.models.playbook.trace.program import read_task
from stark.models.playbook.trace.values import Unsupported
from stark.run.methods import resolve
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Target

TASKS = sorted((ROOT / "examples" / "tasks").glob("*.py"))


def task_source(forward: str, inputs: str = "torch.randn(4, 6)", construction: str = "pass") -> str:
    return (
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        super().__init__()\n        {construction}\n\n"
        f"    def forward(self, x):\n        return {forward}\n\n\n"
        f"def get_inputs():\n    return [{inputs}]\n\n\ndef get_init_inputs():\n    return []\n"
    )


def kernels(source):
    return [step.kernel for step in plan_steps(read_task(source)) if step.kernel is not None]


# -- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_every_example_task_is_known(path):
    program = read_task(path.read_text())
    for language in (CPP, TRITON):
        source = write_candidate(program, frozenset({"fuse"}), language)
        ast.parse(source)
        assert parse_moves(source) == {"fuse"}


def test_a_chain_becomes_one_kernel_and_a_softmax_takes_three_passes():
    (chain,) = kernels(task_source("torch.relu(x * 2.0 + 1.0).tanh()"))
    assert (chain.rows, chain.columns, len(chain.targets)) == (4, 6, 1)
    (softmax,) = kernels(task_source("torch.softmax(x, dim=-1)"))
    assert len(softmax.targets) == 3
    assert [each.op for each in softmax.reductions] == ["max", "sum"]


def test_products_stay_with_the_library_and_their_epilogue_is_one_kernel():
    source = task_source("F.gelu(self.fc(x)) * 2.0 + 1.0", construction="self.fc = nn.Linear(6, 8)")
    steps = plan_steps(read_task(source))
    assert [step.kernel is None for step in steps] == [True, False]
    (library,) = [step.value for step in steps if step.kernel is None]
    assert library.text == "self.fc({0})"


def test_reductions_over_everything_and_over_rows_are_distinct():
    (whole,) = kernels(task_source("(x * x).mean()"))
    assert whole.levels[whole.sink] is Level.TOTAL
    (rows,) = kernels(task_source("(x * x).mean(dim=-1)"))
    assert rows.levels[rows.sink] is Level.ROW
    first, second = kernels(task_source("x / x.abs().sum()"))
    assert (first.sink.shape, second.sink.shape) == ((), (4, 6))


def test_where_the_output_has_no_rows_every_pass_keeps_nothing():
    (whole,) = kernels(task_source("torch.softmax(x, dim=-1).sum()"))
    assert whole.cuts == [None] * len(whole.targets) == [None, None]
    (rows,) = kernels(task_source("torch.softmax(x, dim=-1)"))
    assert [cut.op if cut else None for cut in rows.cuts] == [None, "exp", None]


def test_rows_of_two_lengths_are_two_kernels():
    source = task_source("self.fc(x) + x.mean(dim=-1, keepdim=True)", construction="self.fc = nn.Linear(6, 8)")
    assert [kernel.sink.shape for kernel in kernels(source)] == [(4, 1), (4, 8)]


def test_weights_per_channel_are_read_by_row():
    source = task_source("x * self.s", "torch.randn(2, 3, 4, 4)", "self.s = nn.Parameter(torch.ones(3, 1, 1))")
    (kernel,) = kernels(source)
    (access,) = [access for leaf, access in kernel.leaves.items() if leaf.op == "weight"]
    assert (kernel.columns, access.row, access.column) == (4, "((row / 4) % 3)", False)
    (large,) = kernels(source.replace("2, 3, 4, 4", "64, 3, 4, 4"))
    (access,) = [access for leaf, access in large.leaves.items() if leaf.op == "weight"]
    assert (large.columns, access.row, access.column) == (16, "(row % 3)", False)


LOSSES = {
    "mse_loss": "sub mul sum div",
    "l1_loss": "sub abs sum div",
    "huber_loss": "sub abs min2 mul sub mul sum div",
    "smooth_l1_loss": "sub abs min2 mul sub mul sum div div",
    "binary_cross_entropy_with_logits": "max2 abs neg exp add log add mul sub sum div",
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_one_kernel_of_simple_operations_by_each_reduction(name):
    (kernel,) = kernels(task_source(f"F.{name}(x, self.t)", construction="self.t = nn.Parameter(torch.rand(4, 6))"))
    assert kernel.levels[kernel.sink] is Level.TOTAL
    assert [each.op for each in kernel.order] == LOSSES[name].split()
    for reduction, level in (("sum", Level.TOTAL), ("none", Level.ELEMENT)):
        loss = f"F.{name}(x, self.t, reduction='{reduction}')"
        (kernel,) = kernels(task_source(loss, construction="self.t = nn.Parameter(torch.rand(4, 6))"))
        assert kernel.levels[kernel.sink] is level


def test_the_losses_it_knows_are_the_ones_on_its_page():
    known = {name for name in FUSABLE if name.endswith("_loss") or "entropy" in name}
    assert known == LOSSES.keys()
    page = (ROOT / "docs" / "playbook.md").read_text()
    (listed,) = (line for line in page.splitlines() if "of `torch.nn.functional`" in line)
    assert set(re.findall(r"`(\w+)`", listed)) == known


UNKNOWN = {
    "F.cross_entropy(x, x)": "cross_entropy",
    "nn.CTCLoss()(x, x)": "CTCLoss",
    "F.dropout(x)": "dropout in training mode",
    "nn.BatchNorm1d(8)(x)": "batch norm in training mode",
    "F.mse_loss(x, x, reduction='batchmean')": "the reduction 'batchmean'",
    "torch.cumsum(x, dim=-1)": "torch.cumsum",
    "x.sum(dim=0)": "not the last ones",
    "x[x > 0]": "the condition",
    "torch.fft.rfft(x).abs()": "torch.fft.rfft",
    "x ** 1.7": "a power",
    "x.argmax(dim=-1) * 2": "integers",
    "x.reshape(5, 5)": "reshaped",
    "x * (1 / 0)": "ZeroDivisionError",
    "x.view(x.shape[7], -1)": "IndexError",
    "x * (2 + None)": "TypeError",
}


@pytest.mark.parametrize("number", ["math.sqrt(2 / torch.pi)", "math.tau", "-torch.inf"])
def test_numbers_of_torch_and_math_are_known(number):
    (kernel,) = kernels(f"import math\n{task_source(f'x * ({number})')}")
    assert kernel.levels[kernel.sink] is Level.ELEMENT


@pytest.mark.parametrize("forward", UNKNOWN)
def test_what_is_not_known_is_named(forward):
    with pytest.raises(Unsupported, match=UNKNOWN[forward]):
        plan_steps(read_task(task_source(forward)))


def in_triton(forward: str, inputs: str) -> str:
    return write_candidate(read_task(task_source(forward, inputs)), frozenset({"fuse"}), TRITON)


def test_a_row_that_no_triton_program_could_reduce_is_refused():
    assert "block=131072," in in_triton("torch.softmax(x, dim=-1)", "torch.randn(2, 131072)")
    assert "block=1024," in in_triton("torch.relu(x)", "torch.randn(2, 4000000)"), "what is not reduced is cut up"
    many_parts = ("(x * x).sum()", "torch.randn(131073, 4)")
    for forward, inputs in (("torch.softmax(x, dim=-1)", "torch.randn(2, 131073)"), many_parts):
        with pytest.raises(Unsupported, match=r"one Triton program reduces 131,073 elements \(it does up to 131,072\)"):
            in_triton(forward, inputs)
        assert "fused_0" in write_candidate(read_task(task_source(forward, inputs)), frozenset({"fuse"}), CPP)


def test_a_row_too_long_for_triton_ends_the_run_at_its_first_plan():
    source = task_source("torch.softmax(x, dim=-1)", "torch.randn(2, 200000)")
    messages = prompts(Target.TRITON, source).plan(Window(root(source), root(source), (root(source),)), None)
    with pytest.raises(ModelRefused, match="200,000 elements"):
        ask(messages, PLAN_FORM)


def test_modules_of_the_task_s_own_are_followed():
    source = task_source("self.block(x)", construction="self.block = Block(6)").replace(
        "class Model",
        "class Block(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.net = nn.Sequential(nn.Linear(n, n), nn.ReLU())\n\n"
        "    def forward(self, x):\n        return self.net(x) + x\n\n\nclass Model",
    )
    steps = plan_steps(read_task(source))
    assert steps[0].value.text == "self.block.net[0]({0})"
    assert "class Block" in write_candidate(read_task(source), frozenset({"fuse"}), CPP)


def test_a_task_may_be_indented_in_its_own_way():
    source = task_source("torch.relu(self.a(x))", construction="self.a = nn.Linear(6, 8)").replace("    ", "  ")
    ast.parse(write_candidate(read_task(source), frozenset({"fuse", "scratch"}), CPP))


def tile_size(source):
    tile = split_into_tiles(read_task(source))
    return tile.outputs[0].shape[0] if tile else None


LAYERS = "self.a = nn.Linear(64, 4096); self.b = nn.Linear(4096, 8)"


def test_a_batch_whose_slices_are_apart_is_taken_in_tiles_that_fit_the_cache():
    source = task_source("self.b(torch.relu(self.a(x)))", "torch.randn(1024, 64)", LAYERS)
    assert tile_size(source) == 32  # times 4096 numbers twice
    text = write_candidate(read_task(source), frozenset({"fuse", "tile"}), CPP)
    assert "for start in range(0, 1024, 32):" in text
    assert "x[start : start + 32]" in text


APART = "self.b(torch.relu(self.a(x)))"
MIXED = {
    "a total": f"{APART} / x.sum()",
    "a product over the batch": f"({APART}).t() @ {APART}",
    "a product of slices": f"{APART} @ {APART}.t()",
    "the size of the batch": f"{APART} * x.shape[0]",
    "the batch written out": f"{APART}.reshape(1024, 4, 2)",
    "one step": "torch.relu(x)",
}


@pytest.mark.parametrize("forward", MIXED.values(), ids=MIXED)
def test_a_batch_whose_slices_are_not_apart_is_taken_whole(forward):
    assert tile_size(task_source(forward, "torch.randn(1024, 64)", LAYERS)) is None


def test_scratch_is_never_what_is_returned():
    moves = frozenset({"fuse", "scratch", "in-place"})
    inner = task_source("self.b(torch.relu(self.a(x)))", "torch.randn(32, 64)", LAYERS)
    assert write_candidate(read_task(inner), moves, CPP).count("register_buffer") == 1
    last = task_source("torch.relu(self.a(x)).reshape(64, -1)", "torch.randn(32, 64)", LAYERS)
    assert "register_buffer" not in write_candidate(read_task(last), moves, CPP)


def test_pictures_between_convolutions_are_kept_channels_last_and_results_are_not():
    layers = "self.a = nn.Conv2d(3, 8, 3); self.b = nn.Conv2d(8, 8, 3); self.s = nn.Parameter(torch.ones(8, 1, 1))"
    source = task_source("torch.relu(self.b(torch.relu(self.a(x) * self.s)))", "torch.randn(4, 3, 32, 32)", layers)
    first, second = [step.kernel for step in plan_steps(read_task(source), channels_last) if step.kernel]
    assert (first.layout, first.columns) == (channels_last, 8)
    assert second.layout is plain
    text = write_candidate(read_task(source), frozenset({"fuse", "channels-last"}), CPP)
    assert "self.b.to(memory_format=torch.channels_last)" in text


def test_an_online_softmax_takes_one_pass_less():
    (softmax,) = kernels(SOFTMAX)
    assert [each.op for pair in softmax.online.items() for each in pair] == ["max", "sum"]
    plain_text, online_text = (written(SOFTMAX, "fuse", *more) for more in ((), ("online",)))
    assert plain_text.count("i < columns") == 3
    assert online_text.count("i < columns") == 1
    assert not kernels(task_source("x.exp() / x.amax(dim=-1, keepdim=True)"))[0].online


# -- moves ------------------------------------------------------------------------------------------------------------


def test_moves_stand_on_what_they_need():
    assert drop_unmet(frozenset({"fuse", "short"})) == {"fuse"}
    assert remove_move(frozenset({"fuse", "polynomial", "short", "wide"}), "polynomial") == {"fuse", "wide"}
    for move in MOVES.values():
        assert set(move.after) <= MOVES.keys()
        assert move.repair is None or move.repair in MOVES
        assert parse_named_moves(format_apply(move.name)) == [move.name]


# -- answering, through the prompts the agents really send ------------------------------------------------------------

SOFTMAX = task_source("torch.softmax(x, dim=-1)")
OK = EvalReport(Outcome.OK, Timing((1.0,)))
WRONG = EvalReport(Outcome.WRONG_RESULT, log="3 of 24 values are wrong")


def written(source: str, *moves: str) -> str:
    return write_candidate(read_task(source), frozenset(moves), CPP)


def node(number: int, moves: tuple[str, ...], report: EvalReport, asked: str = "", parent: int = ROOT_ID) -> Node:
    plan = Plan(format_apply(asked)) if asked else None
    return Node(number, parent, Attempt(Role.CODE, written(SOFTMAX, *moves), report, plan=plan))


def prompts(target: Target = Target.CPU, source: str = SOFTMAX) -> Prompts:
    settings = resolve(Settings(evaluation={"target": target}))
    prompt_context = PromptContext.of(Task("softmax", source), DeviceFacts("a CPU", "cpu"), settings)
    return Prompts(load_templates(settings.prompts), prompt_context)


def root(source: str = SOFTMAX) -> Node:
    return Node(ROOT_ID, None, Attempt(Role.REFERENCE, source, OK))


def ask(messages, form, calls: int = 0) -> Reply:
    return asyncio.run(PlaybookModel("playbook", calls).reply(messages, form))


def plan_for(selected: Node, *others: Node) -> tuple[str, str]:
    window = Window(selected, root(), (root(), selected, *others) if selected.id != ROOT_ID else (root(), *others))
    answer = read_plan(ask(prompts().plan(window, None), PLAN_FORM), PLAN_FORM)
    assert answer.fault is None
    assert answer.source is not None
    assert find_violations(answer.source, selected.source or "") == ()
    return answer.text, answer.source


def test_the_first_plan_is_to_fuse_with_what_is_essential_and_the_coder_follows_it():
    advice, scaffold = plan_for(root())
    assert parse_named_moves(advice) == ["fuse", "polynomial", "relax", "wide"]
    window = Window(root(), root(), (root(),))
    answer = read_kernel(ask(prompts().code(window, Plan(advice, scaffold)), CODE_FORM))
    assert parse_moves(answer.source or "") == {"fuse", "polynomial", "relax", "wide"}


def test_moves_that_only_made_attempts_slower_come_last():
    base, slow = ("fuse", "polynomial"), EvalReport(Outcome.OK, Timing((2.0,)))
    selected, worse = node(1, base, OK), node(2, (*base, "relax"), slow, "relax", parent=1)
    others = [node(3 + number, (*base, name), slow, name, parent=1) for number, name in enumerate(("keep", "wide"))]
    window = Window(selected, root(), (root(), selected, worse, *others))
    asked = {
        tuple(parse_named_moves(read_plan(ask(prompts().plan(window, None), PLAN_FORM, calls), PLAN_FORM).text))
        for calls in range(20)
    }
    assert not {"relax", "keep", "wide"} & {name for names in asked for name in names}


def test_moves_that_promise_about_the_same_are_not_always_planned_in_the_same_order():
    selected = node(1, ("fuse", "polynomial", "relax", "wide", "keep"), OK)
    messages = prompts().plan(Window(selected, root(), (root(), selected)), None)
    asked = {
        tuple(parse_named_moves(read_plan(ask(messages, PLAN_FORM, calls), PLAN_FORM).text)) for calls in range(20)
    }
    assert len(asked) > 1
    assert all(len(names) == 1 for names in asked)


def test_from_the_root_the_next_step_goes_beyond_what_was_tried():
    advice, _ = plan_for(root(), node(1, ("fuse",), OK, "fuse"))
    assert {"fuse"} < {*parse_named_moves(advice)}


def test_an_attempt_that_fell_behind_joins_the_leader_and_goes_one_move_beyond():
    leader, slow = ("fuse", "polynomial", "relax", "wide", "keep"), EvalReport(Outcome.OK, Timing((2.0,)))
    behind = node(2, (*leader, "online"), slow, "online", parent=1)
    advice, scaffold = plan_for(behind, node(1, leader, OK))
    window = Window(behind, root(), (root(), behind))
    made = parse_moves(read_kernel(ask(prompts().code(window, Plan(advice, scaffold)), CODE_FORM)).source or "")
    assert made > {*leader}
    assert len(made) == len(leader) + 1
    assert "online" not in made


def test_every_region_that_a_plan_changes_is_marked_with_the_whole_advice():
    leader, slow = ("fuse", "polynomial", "relax", "wide", "keep"), EvalReport(Outcome.OK, Timing((20.0,)))
    advice, scaffold = plan_for(node(2, ("fuse",), slow, parent=1), node(1, leader, OK))
    assert {"polynomial", "relax", "wide", "keep"} < {*parse_named_moves(advice)}
    kernel, flags = scaffold.split(BEGIN)[1:]
    assert 'extern "C"' in kernel.partition(END)[0]
    assert "extra_cflags" in flags.partition(END)[0]
    assert all(f"Apply {name}:" in part for name in leader[1:] for part in (kernel, flags))


def test_a_plan_that_only_takes_back_marks_what_that_changes():
    leader, slow = ("fuse", "polynomial", "relax", "wide"), EvalReport(Outcome.OK, Timing((9.0,)))
    tried = [node(3 + number, (*leader, each), slow) for number, each in enumerate(("keep", "online", "reciprocal"))]
    tried += [node(6 + number, (*leader, each), slow) for number, each in enumerate(("specialise", "unroll", "short"))]
    better = [node(10, leader[:-1], EvalReport(Outcome.OK, Timing((0.5,))))]
    advice, scaffold = plan_for(node(1, leader, OK), *tried, *better)
    assert not parse_named_moves(advice)
    assert advice.startswith("Moves: -")
    marked = [part.partition(END)[0] for part in scaffold.split(BEGIN)[1:]]
    assert marked
    assert not any("raise ValueError" in part for part in marked), "forward() stays as it is"


@pytest.mark.parametrize("name", ["keep", "wide", "reciprocal", "specialise", "unroll", "short"])
def test_a_move_that_failed_or_is_there_already_is_not_proposed(name):
    base = ("fuse", "polynomial", "relax")
    failed = node(2, (*base, name), WRONG, name, parent=1)
    for calls in range(5):
        window = Window(node(1, base, OK), root(), (root(), node(1, base, OK), failed))
        advice = read_plan(ask(prompts().plan(window, None), PLAN_FORM, calls), PLAN_FORM).text
        assert name not in parse_named_moves(advice)
        assert not set(parse_named_moves(advice)) & set(base)


FIRST = ("fuse", "polynomial", "relax", "wide")
BROKEN = EvalReport(Outcome.COMPILE_ERROR, log="error: no member named fused_0")


def failing(number: int, moves: tuple[str, ...], report: EvalReport = BROKEN, asked: str = "") -> Node:
    made = node(number, moves, report)
    return replace(made, attempt=replace(made.attempt, plan=Plan(asked or "\n".join(map(format_apply, moves)))))


def test_when_the_first_attempt_failed_the_next_plan_is_to_fuse_and_nothing_else():
    advice, _ = plan_for(root(), failing(1, FIRST))
    assert parse_named_moves(advice) == ["fuse"]


def test_every_move_of_a_failed_attempt_is_avoided_until_a_correct_one_has_it():
    blamed = failing(2, (*FIRST, "reciprocal"))
    for calls in range(5):
        for others, avoided in (((), {*FIRST[1:], "reciprocal"}), ((node(3, FIRST, OK),), {"reciprocal"})):
            selected = node(1, ("fuse",), OK)
            window = Window(selected, root(), (root(), selected, blamed, *others))
            advice = read_plan(ask(prompts().plan(window, None), PLAN_FORM, calls), PLAN_FORM).text
            assert parse_named_moves(advice)
            assert not avoided & {*parse_named_moves(advice)}


def test_where_fuse_alone_failed_there_is_nothing_left_and_that_is_said():
    alone = failing(1, ("fuse",))
    again = [
        (prompts().plan(Window(root(), root(), (root(), alone)), None), PLAN_FORM),
        (prompts().debug(Window(alone, root(), (root(), alone))), DEBUG_FORM),
        (prompts().solo(Window(alone, root(), (root(), alone))), SOLO_FORM),
    ]
    for messages, form in again:
        with pytest.raises(ModelRefused, match=r"`fuse` by itself failed \(compile error\)") as refused:
            ask(messages, form)
        assert "--model" in refused.value.next_step


def test_where_fuse_alone_failed_but_more_is_right_a_debugger_takes_that():
    right = node(2, ("fuse", "wide"), OK)
    alone = failing(1, ("fuse",))
    answer = read_kernel(ask(prompts().debug(Window(alone, root(), (root(), alone, right))), DEBUG_FORM))
    assert parse_moves(answer.source or "") == {"fuse", "wide"}


def test_when_every_move_is_there_one_is_taken_back():
    everything = tuple(move.name for move in find_applicable(read_task(SOFTMAX), "cpu"))
    advice, scaffold = plan_for(node(1, everything, OK))
    assert advice.startswith("Moves: -")
    selected = node(1, everything, OK)
    window = Window(selected, root(), (root(), selected))
    made = parse_moves(read_kernel(ask(prompts().code(window, Plan(advice, scaffold)), CODE_FORM)).source or "")
    assert made < set(everything)


def test_a_wrong_result_is_repaired_where_it_is_risky():
    failing = node(1, ("fuse", "polynomial", "wide", "short"), WRONG, "wide")
    answer = read_kernel(ask(prompts().debug(Window(failing, root(), (root(), failing))), DEBUG_FORM))
    assert parse_moves(answer.source or "") == {"fuse", "polynomial", "wide"}


LAYER_NORM = task_source("F.layer_norm(x, (6,))")
CRASHED = EvalReport(Outcome.RUNTIME_ERROR, log="RuntimeError: expected a contiguous tensor")


def repaired(
    moves: tuple[str, ...], report: EvalReport, asked: tuple[str, ...] = (), source: str = SOFTMAX
) -> set[str]:
    plan = Plan("\n".join(map(format_apply, asked))) if asked else None
    wrong = Node(1, ROOT_ID, Attempt(Role.CODE, written(source, *moves), report, plan=plan))
    messages = prompts(source=source).debug(Window(wrong, root(source), (root(source), wrong)))
    return {*parse_moves(read_kernel(ask(messages, DEBUG_FORM)).source or "")}


def test_a_variance_in_one_pass_that_is_wrong_is_shifted_and_then_taken_back():
    moves = ("fuse", "relax", "one-pass")
    assert repaired(moves, WRONG, ("one-pass",), LAYER_NORM) == {*moves, "shift"}
    assert repaired((*moves, "shift"), WRONG, ("one-pass",), LAYER_NORM) == {"fuse", "relax"}


@pytest.mark.parametrize("report", [BROKEN, CRASHED], ids=["compile error", "runtime error"])
def test_what_was_asked_for_last_is_taken_back_where_a_kernel_does_not_run(report):
    moves = ("fuse", "polynomial", "short", "keep")
    assert repaired(moves, report, ("keep",)) == {*moves} - {"keep"}
    assert repaired(moves, report, ("keep", "short")) == {*moves} - {"short"}
    assert repaired(moves, report) == {*moves} - {"short"}, "without advice the risky one is suspected"
    assert repaired(("fuse", "wide", "keep"), report) < {"fuse", "wide", "keep"}
    one_pass = ("fuse", "one-pass")
    assert repaired(one_pass, report, ("one-pass",), LAYER_NORM) == {"fuse"}, "no shift helps what does not run"


def test_a_debugger_does_not_repeat_what_a_sibling_has_tried():
    wrong, sibling = failing(1, ("fuse", "wide", "keep"), asked=format_apply("keep")), failing(2, ("fuse", "wide"))
    messages = prompts().debug(Window(wrong, root(), (root(), wrong, sibling)))
    assert parse_moves(read_kernel(ask(messages, DEBUG_FORM)).source or "") == {"fuse", "keep"}


def stacked_upon(moves: tuple[str, ...], report: EvalReport) -> list[set[str]]:
    latest = node(1, moves, report)
    messages = prompts().solo(Window(latest, root(), (root(), latest)))
    return [{*parse_moves(read_kernel(ask(messages, SOLO_FORM, calls)).source or "")} for calls in range(12)]


def test_a_single_agent_whose_attempt_failed_drops_what_is_risky_or_else_any_one_move():
    risky = ("fuse", "polynomial", "short", "wide")
    assert all(made == {*risky} - {"short"} for made in stacked_upon(risky, WRONG))
    plain_ones = ("fuse", "relax", "wide")
    made = stacked_upon(plain_ones, CRASHED)
    assert {frozenset(each) for each in made} == {frozenset({"fuse", "relax"}), frozenset({"fuse", "wide"})}


def test_a_single_agent_whose_attempt_is_right_changes_a_few_moves_of_it():
    moves = {"fuse", "polynomial", "relax", "keep"}
    made = stacked_upon(tuple(moves), OK)
    assert len({frozenset(each) for each in made}) > 3
    assert all("fuse" in each and drop_unmet(frozenset(each)) == each for each in made)
    # one that is dropped takes along what builds upon it, which here is nothing that is there
    assert all(len(each ^ moves) <= 3 for each in made)


def test_a_single_agent_stacks_moves_and_every_call_differs():
    messages = prompts().solo(Window(root(), root(), (root(),)))
    stacks = {parse_moves(read_kernel(ask(messages, SOLO_FORM, calls)).source or "") for calls in range(12)}
    assert len(stacks) > 3
    assert all("fuse" in stack for stack in stacks)


def test_the_same_call_gets_the_same_answer():
    messages = prompts().solo(Window(root(), root(), (root(),)))
    assert ask(messages, SOLO_FORM, 3) == ask(messages, SOLO_FORM, 3)


@pytest.mark.parametrize(
    ("target", "source", "reason"),
    [
        (Target.CPU, task_source("torch.cumsum(x, dim=-1)"), r"does not know torch\.cumsum"),
        (Target.CUDA, SOFTMAX, "kernels in cuda"),
    ],
)
def test_a_task_it_does_not_know_is_refused_with_the_way_to_a_real_model(target, source, reason):
    messages = prompts(target, source).plan(Window(root(source), root(source), (root(source),)), None)
    with pytest.raises(ModelRefused, match=reason) as refused:
        ask(messages, PLAN_FORM)
    assert "--model" in refused.value.next_step


def test_plans_for_triton_are_grounded_too():
    rng = random.Random(0)
    source = write_candidate(read_task(SOFTMAX), frozenset({"fuse"}), TRITON)
    selected = Node(1, ROOT_ID, Attempt(Role.CODE, source, OK))
    window = Window(selected, root(), (root(), selected))
    for _ in range(5):
        reply = ask(prompts(Target.TRITON).plan(window, None), PLAN_FORM, rng.randrange(1000))
        answer = read_plan(reply, PLAN_FORM)
        assert find_violations(answer.source or "", source) == ()
