"""The tutorial: its page quotes its file, its file runs, and its loop is STARK's."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import re
import shlex
import subprocess
import sys

import pytest

from fakes import TASK, HashEvaluator, PretendModel
from paths import ROOT
from stark.core.settings import EvaluationSettings, RoleSettings, SearchSettings
from stark.core.task import load_candidate
from stark.core.tree import Attempt, Node, Role, Tree
from stark.search.epsilon_greedy import EpsilonGreedy
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

FILE = ROOT / "examples" / "tutorial.py"
PAGE = (ROOT / "docs" / "tutorial.md").read_text()
SMALL_TASK = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        gate = torch.clamp(x * 0.75 + 0.5, 0.0, 1.0)
        return gate * x / (1.0 + x * x) + x


def get_inputs():
    return [torch.randn(64, 512)]


def get_init_inputs():
    return []
"""


@pytest.fixture(scope="module")
def tutorial():
    spec = importlib.util.spec_from_file_location("tutorial", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorial"] = module  # where its dataclasses look their types up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tutorial"]


def test_the_page_quotes_a_file_of_less_than_300_lines():
    source = FILE.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert block in source, block
    assert len(source.splitlines()) < 300


def test_the_command_of_the_page_finds_and_keeps_a_kernel(tmp_path):
    (tmp_path / "small.py").write_text(SMALL_TASK)
    _, file, _, *options = shlex.split(re.search(r"^    (\.venv/bin/python .*)$", PAGE, re.MULTILINE)[1])
    command = [sys.executable, ROOT / file, "small.py", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    times = {
        int(node): float(ms) for node, ms in re.findall(r"^#(\d+) from #\d+: ([\d.]+) ms", done.stdout, re.MULTILINE)
    }
    kept, kept_ms = re.search(
        r"PyTorch [\d.]+ ms, #(\d+) ([\d.]+) ms\. The kernel is in kernel\.py\.", done.stdout
    ).groups()
    assert float(kept_ms) == times[int(kept)] == min(times.values())
    assert "<<<IMPROVE" not in load_candidate(tmp_path / "kernel.py")


@pytest.fixture(scope="module")
def grown(tutorial):
    """A search of many attempts between stand-ins for the models and the evaluator."""
    models = {role: PretendModel(RoleSettings(model=role)) for role in (Role.PLAN, Role.CODE, Role.DEBUG)}
    search = tutorial.Search(TASK, models, HashEvaluator(EvaluationSettings()), random.Random(3))
    asyncio.run(tutorial.grow(search, 60))
    return search


def test_a_failed_node_is_debugged_and_any_other_is_planned_upon(grown):
    repaired = [node for node in grown.nodes[1:] if node.parent.failed]
    improved = [node for node in grown.nodes[1:] if not node.parent.failed]
    assert repaired
    assert len(grown.models[Role.DEBUG].prompts) == len(repaired)
    assert len(grown.models[Role.PLAN].prompts) == len(grown.models[Role.CODE].prompts) == len(improved)
    for node in repaired:
        assert (node.advice, node.scaffold) == (node.parent.advice, node.parent.scaffold)
    assert all("<<<IMPROVE BEGIN>>>" in node.scaffold for node in improved)


def test_it_selects_the_nodes_that_stark_selects(tutorial):
    policy, chosen = EpsilonGreedy(SearchSettings()), set()
    for seed in range(300):
        nodes, tree = random_tree(tutorial, random.Random(seed))
        mine, theirs = tutorial.select(nodes, random.Random(seed)), policy.select(tree, random.Random(seed))
        assert mine.id == theirs.id
        chosen.add((mine.id == 0, mine.failed, bool(mine.children)))
        best = tutorial.best_of(nodes)
        assert (best and best.id) == (tree.best and tree.best.id)
    assert {(True, False, True), (False, False, True), (False, False, False), (False, True, False)} <= chosen


def random_tree(tutorial, rng):
    """The same tree for both, with throttled roots, dead branches and replies without source among them."""
    nodes, tree = [], Tree()
    for number in range(rng.randint(1, 20)):
        parent = rng.choice([node for node in nodes[:4] if node.source]) if nodes else None
        ms = 10.0 if parent is None else rng.choice([None, None, 5.0, 8.0, 12.0])
        report = EvalReport(Outcome.OK, Timing((ms,))) if ms else EvalReport(Outcome.CRASH)
        source = f"source {number}" if ms or rng.random() < 0.8 else None
        nodes.append(tutorial.Node(number, parent, source, report))
        if parent:
            parent.children.append(nodes[-1])
        tree.add(Node(number, parent.id if parent else None, Attempt(Role.CODE, source, report)))
    return nodes, tree


@pytest.mark.parametrize(
    ("scaffold", "fault"),
    [
        ("a = 1\n# <<<IMPROVE BEGIN>>>\n# faster\nb = 2\n# <<<IMPROVE END>>>\n", ""),
        ("a = 1\nb = 2\n", "Mark at least one region"),
        ("# <<<IMPROVE END>>>\na = 1\n# <<<IMPROVE BEGIN>>>\nb = 2\n", "Mark at least one region"),
        ("a = 1\n# <<<IMPROVE BEGIN>>>\nb = 3\n# <<<IMPROVE END>>>\n", "change nothing else"),
    ],
)
def test_a_scaffold_is_its_parent_with_regions_marked(tutorial, scaffold, fault):
    objection = tutorial.objection(scaffold, "a = 1\nb = 2\n")
    assert fault in objection
    assert bool(fault) == bool(objection)
