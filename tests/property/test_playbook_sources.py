"""The playbook's answers are well-formed for any chain of known operations."""

from __future__ import annotations

import ast
import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stark.agents.anchors import find_violations
from stark.agents.prompts import PromptContext, Prompts
from stark.agents.replies import CODE_FORM, PLAN_FORM, SOLO_FORM, read_kernel, read_plan
from stark.agents.template_files import load_templates
from stark.agents.windows import Window
from stark.core.settings import Settings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role
from stark.models.playbook.model import PlaybookModel
from stark.models.playbook.moves import parse_moves
from stark.run.methods import resolve
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Target

OK = EvalReport(Outcome.OK, Timing((1.0,)))
LINES = (
    "x = torch.relu(x)",
    "x = x * self.weight + 0.5",
    "x = torch.sigmoid(x) * x",
    "x = x.exp().clamp(max=3.0)",
    "x = F.gelu(x)",
    "x = x - x.mean(dim=-1, keepdim=True)",
    "x = torch.softmax(x, dim=-1)",
    "x = F.layer_norm(x, (COLUMNS,), self.weight)",
    "x = x / x.norm(dim=-1, keepdim=True)",
    "x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-5)",
    "x = self.linear(x)",
    "x = x / x.abs().sum()",
)
ENDS = (
    "return x",
    "return x.mean()",
    "return x.sum(dim=-1)",
    "return x.argmax(dim=-1)",
    "return F.log_softmax(x, dim=-1)",
    "return x.var()",
)


def task_source(body: list[str], shape: str, rows: int, columns: int) -> str:
    return (
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n"
        f"ROWS = {rows}\nCOLUMNS = {columns}\n\n\nclass Model(nn.Module):\n    def __init__(self, columns):\n"
        "        super().__init__()\n        self.weight = nn.Parameter(torch.randn(columns))\n"
        "        self.linear = nn.Linear(columns, columns)\n\n    def forward(self, x):\n"
        + "".join(f"        {line}\n" for line in body)
        + f"\n\ndef get_inputs():\n    return [torch.randn({shape})]\n\n\n"
        + "def get_init_inputs():\n    return [COLUMNS]\n"
    )


bodies = st.builds(
    lambda lines, end: [*lines, end], st.lists(st.sampled_from(LINES), min_size=1, max_size=6), st.sampled_from(ENDS)
)
shapes = st.sampled_from(("ROWS, COLUMNS", "2, ROWS, COLUMNS", "COLUMNS,"))
tasks = st.builds(task_source, bodies, shapes, st.integers(1, 40), st.integers(2, 40))
# a total whose argument takes two passes over each row, in a kernel that has no row of its own to keep anything in
KEPT_FOR_A_TOTAL = [
    "x = torch.relu(x)",
    "x = torch.relu(x)",
    "x = torch.softmax(x, dim=-1)",
    "x = x / x.abs().sum()",
    "return x",
]


def answer(prompts, form, calls):
    return asyncio.run(PlaybookModel("playbook", calls).reply(prompts, form))


@given(tasks, st.sampled_from((Target.CPU, Target.TRITON)), st.integers(0, 1000))
@example(task_source(KEPT_FOR_A_TOTAL, "ROWS, COLUMNS", 1, 2), Target.CPU, 0)
@settings(max_examples=25, deadline=None)
def test_plans_are_grounded_and_kernels_are_python_that_defines_modelnew(task, target, calls):
    chosen = resolve(Settings(evaluation={"target": target}))
    prompts = Prompts(
        load_templates(chosen.prompts), PromptContext.of(Task("random", task), DeviceFacts("a device", target), chosen)
    )
    root = selected = Node(ROOT_ID, None, Attempt(Role.REFERENCE, task, OK))
    for number in range(1, 4):  # a branch that grows: each node from the one before
        window = Window(selected, root, (root,) if selected is root else (root, selected))
        plan = read_plan(answer(prompts.plan(window, None), PLAN_FORM, calls + number), PLAN_FORM)
        assert plan.source is not None
        assert find_violations(plan.source, selected.source or "") == ()
        made = read_kernel(answer(prompts.code(window, Plan(plan.text, plan.source)), CODE_FORM, calls)).source
        assert made is not None
        assert_kernel(made)
        assert parse_moves(made) != parse_moves(selected.source or "")
        selected = Node(number, selected.id, Attempt(Role.CODE, made, OK))
    alone = read_kernel(answer(prompts.solo(Window(root, root, (root,))), SOLO_FORM, calls)).source
    assert alone is not None
    assert_kernel(alone)


def assert_kernel(source: str) -> None:
    tree = ast.parse(source)
    assert any(isinstance(each, ast.ClassDef) and each.name == "ModelNew" for each in tree.body)
    assert "<<<" not in source
