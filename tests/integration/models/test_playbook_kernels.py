"""The playbook's C++ compiled and compared with PyTorch, and a run with it from task to verified kernel."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest
import torch

from paths import ROOT
from stark.agents.prompts import PromptContext, Prompts
from stark.agents.replies import DEBUG_FORM, read_kernel
from stark.agents.template_files import load_templates
from stark.agents.windows import Window
from stark.core.settings import Settings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Attempt, Node, Plan, Role
from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.codegen.cpp import CPP
from stark.models.playbook.model import PlaybookModel
from stark.models.playbook.moves import find_applicable, parse_moves
from stark.models.playbook.planner import format_apply
from stark.models.playbook.trace.program import read_task
from stark.run.methods import resolve
from stark.store.open import open_store
from stark_process import stark_command
from stark_worker.compiler import extension
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing

TASKS = sorted((ROOT / "examples" / "tasks").glob("*.py"))


def odd_task(forward: str, shape: str, columns: int) -> str:
    return (
        "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\nclass Model(nn.Module):\n"
        "    def __init__(self, columns):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.randn(columns))\n"
        "        self.table = nn.Parameter(torch.randn(3, 1, columns))\n"
        "        self.square = nn.Parameter(0.1 * torch.randn(columns, columns))\n\n"
        f"    def forward(self, x):\n        {forward}\n\n\n"
        f"def get_inputs():\n    return [torch.randn({shape})]\n\n\ndef get_init_inputs():\n    return [{columns}]\n"
    )


ODD = {
    "a vector": odd_task("return torch.tanh(x) * self.weight", "101", 101),
    "one long row": odd_task("return F.layer_norm(x, (1003,), self.weight)", "1, 1003", 1003),
    "a softmax of odd rows": odd_task("return torch.softmax(x.tanh() * self.weight, dim=-1)", "3, 5, 33", 33),
    "a table per group of rows": odd_task("return F.softplus(x + self.table).sqrt()", "2, 3, 5, 17", 17),
    "the spread of rows": odd_task("return x.std(dim=-1) + x.amax(dim=-1)", "19, 65", 65),
    "a total that comes back": odd_task("return x / x.abs().sum() + x.max()", "19, 65", 65),
    "a vector's own": odd_task("return (x / x.norm()).argmax(dim=-1), x.sum(), x.var()", "101", 101),
    "the spread of everything": odd_task("return x.var() * x", "19, 65", 65),
    "several results": odd_task("return x.log_softmax(dim=-1), x.mean(), x.argmax(dim=1)", "19, 65", 65),
    "totals of elements and of rows": odd_task("return x.abs().sum() + x.mean(dim=-1).sum()", "19, 65", 65),
    "a softmax of long rows": odd_task("return torch.softmax(x * 9.0, dim=-1)", "5, 3001", 3001),
    "layers in tiles": odd_task("return F.gelu(torch.tanh(x) @ self.square).softmax(dim=-1)", "6000, 96", 96),
    "layers, and what is returned besides": odd_task(
        "h = x.relu() @ self.square\n        return (h + 1.0).reshape(-1), h.tanh() @ self.square, h.argmax(dim=-1)",
        "100, 96",
        96,
    ),
    "losses": odd_task(
        "t = torch.sigmoid(x * self.weight)\n        return (\n            F.mse_loss(x, t),\n"
        "            F.l1_loss(x, t, reduction='sum'),\n            F.huber_loss(x, t, delta=0.5),\n"
        "            F.smooth_l1_loss(x, t, beta=2.0),\n            F.binary_cross_entropy_with_logits(x, t),\n"
        "            F.binary_cross_entropy_with_logits(9.0 * x, t, reduction='none'),\n        )",
        "19, 65",
        65,
    ),
    "columns reduced, then all": odd_task("return torch.logsumexp(x, dim=-1).mean()", "19, 65", 65),
}
SOURCES = {path.stem: path.read_text() for path in TASKS} | ODD


@pytest.fixture(scope="module", autouse=True)
def fast_builds(tmp_path_factory):
    loaders = {name: getattr(torch.utils.cpp_extension, name) for name in ("load", "load_inline")}
    folder = tmp_path_factory.mktemp("extensions")
    extension.install(extension.cached_builder(folder, folder))
    yield
    for name, loader in loaders.items():
        setattr(torch.utils.cpp_extension, name, loader)


def load(text: str, path: Path):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SOURCES)
def test_all_safe_moves_together_compute_the_same(name, tmp_path):
    source = SOURCES[name]
    task = load(source, tmp_path / "task.py")
    program = read_task(source)
    moves = frozenset(move.name for move in find_applicable(program, "cpu") if move.name != "short")
    candidate = load(write_candidate(program, moves, CPP), tmp_path / "candidate.py")
    torch.manual_seed(0)
    model, new = task.Model(*task.get_init_inputs()), candidate.ModelNew(*task.get_init_inputs())
    new.load_state_dict(model.state_dict())
    inputs, others = task.get_inputs(), task.get_inputs()
    kept = [each.clone() for each in inputs]
    with torch.no_grad():
        expected, got = model(*inputs), new(*inputs)
        new(*others)  # what was returned stays what it is
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert all(map(torch.equal, inputs, kept)), "inputs are not to be written over"
    with pytest.raises(ValueError, match=r"written for .* of shape"):
        new(*(each[..., :-1] for each in inputs))


def test_weights_that_change_are_prepared_again(tmp_path):
    source = (ROOT / "examples" / "tasks" / "linear_gelu.py").read_text()
    task = load(source, tmp_path / "task.py")
    candidate = load(write_candidate(read_task(source), frozenset({"fuse", "pack"}), CPP), tmp_path / "candidate.py")
    model, new = task.Model(128, 1024), candidate.ModelNew(128, 1024)
    inputs = task.get_inputs()
    with torch.no_grad():
        new(*inputs)
        new.load_state_dict(model.state_dict())
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
        for changed in (model, new):
            changed.linear.weight.mul_(2.0)
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("moves", [{"fuse", "online"}, {"fuse", "online", "polynomial", "relax"}])
def test_an_online_softmax_of_rows_that_begin_with_infinities(moves, tmp_path):
    source = odd_task("return torch.softmax(x, dim=-1)", "3, 5000", 5000)
    new = load(write_candidate(read_task(source), frozenset(moves), CPP), tmp_path / "candidate.py").ModelNew(5000)
    x = torch.randn(3, 5000)
    x[0, :3000] = -torch.inf
    x[1, 3000:] = -torch.inf
    torch.testing.assert_close(new(x), torch.softmax(x, dim=-1))


RISKY = {
    "a variance in one pass, far from zero": ("F.layer_norm(x + 300.0, (257,), self.weight)", "one-pass", "shift"),
    "an exponential of degree 3": ("torch.exp(x * self.weight)", "short", None),
}


@pytest.mark.parametrize("case", RISKY)
def test_a_kernel_that_fails_by_a_risky_move_is_right_once_it_is_debugged(case, tmp_path):
    forward, risky, repair = RISKY[case]
    source = odd_task(f"return {forward}", "16, 257", 257)
    task, moves = load(source, tmp_path / "task.py"), frozenset({"fuse", "polynomial", "relax", risky})
    moves &= {move.name for move in find_applicable(read_task(source), "cpu")}
    wrong = write_candidate(read_task(source), moves, CPP)
    with pytest.raises(AssertionError, match="not close"):
        compare(task, load(wrong, tmp_path / "wrong.py"))
    repaired = debugged(source, wrong, format_apply(risky))
    assert parse_moves(repaired) == (moves | {repair} if repair else moves - {risky})
    compare(task, load(repaired, tmp_path / "repaired.py"))


def compare(task, candidate) -> None:
    torch.manual_seed(0)
    model, new = task.Model(257), candidate.ModelNew(257)
    new.load_state_dict(model.state_dict())
    inputs = task.get_inputs()
    with torch.no_grad():
        torch.testing.assert_close(new(*inputs), model(*inputs), rtol=1e-5, atol=5e-4)


def debugged(task: str, wrong: str, advice: str) -> str:
    """The playbook's answer to a debugger's prompt."""
    settings = resolve(Settings())
    prompt_context = PromptContext.of(Task("risky", task), DeviceFacts("a CPU", "cpu"), settings)
    root = Node(ROOT_ID, None, Attempt(Role.REFERENCE, task, EvalReport(Outcome.OK, Timing((1.0,)))))
    failed = Node(1, ROOT_ID, Attempt(Role.CODE, wrong, EvalReport(Outcome.WRONG_RESULT), plan=Plan(advice)))
    messages = Prompts(load_templates(settings.prompts), prompt_context).debug(Window(failed, root, (root, failed)))
    return read_kernel(asyncio.run(PlaybookModel("playbook").reply(messages, DEBUG_FORM))).source or ""


@pytest.mark.slow
def test_a_run_without_a_model_grows_a_tree_of_verified_kernels(tmp_path):
    task = tmp_path / "task.py"
    task.write_text(odd_task("return torch.relu(x * self.weight + 1.0) / (1.0 + x * x)", "64, 257", 257))
    folder = tmp_path / "run"
    words = ["--attempts", 2, "--run", folder, "--set", "evaluation.torch_compile=false"]
    done = stark_command("optimize", task, "--allow-weak-sandbox", *words)
    assert done.returncode in (0, 3), done.stderr  # how fast it is depends on the machine
    assert "playbook (no LLM: a library of moves)" in done.stdout
    assert "PyTorch eager" in done.stdout
    store = open_store(folder, write=False)
    nodes = store.nodes(store.runs()[0].id)
    store.close()
    assert [node.report.outcome.value for node in nodes] == ["ok"] * 3
    assert all(node.plan is not None and node.plan.grounded for node in nodes[1:])
    assert "class ModelNew" in (folder / "best.py").read_text()


@pytest.mark.parametrize(("method", "parents"), [("sampling", [0, 0]), ("reflexion", [0, 1])])
def test_a_run_of_a_single_agent_without_a_model(method, parents, tmp_path):
    task, folder = tmp_path / "task.py", tmp_path / "run"
    task.write_text(odd_task("return torch.relu(x * self.weight + 1.0) / (1.0 + x * x)", "64, 257", 257))
    words = ["--method", method, "--attempts", 2, "--run", folder, "--evaluator", "fakes:AcceptingEvaluator"]
    done = stark_command("optimize", task, "--set", "evaluation.final=false", *words)
    assert done.returncode == 0, done.stderr
    store = open_store(folder, write=False)
    made = store.nodes(store.runs()[0].id)[1:]
    store.close()
    assert [node.role for node in made] == [Role.SOLO] * 2
    assert [node.report.outcome.value for node in made] == ["ok"] * 2
    assert [node.parent_id for node in made] == parents
    assert all("fuse" in parse_moves(node.source or "") for node in made)


def test_a_task_the_playbook_does_not_know_ends_with_what_to_do(tmp_path):
    task = tmp_path / "task.py"
    task.write_text(odd_task("return torch.cumsum(x * self.weight, dim=-1)", "8, 16", 16))
    done = stark_command("optimize", task, "--allow-weak-sandbox", "--attempts", 1, "--run", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    assert "does not know torch.cumsum" in done.stderr
    assert "--model" in done.stderr
    assert "Traceback" not in done.stderr
