"""Capture of live modules: the task runs, computes the same, keeps names, and refuses in a sentence."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys

import pytest
import torch
from torch import nn

from stark_worker.capture.capture import capture_module
from stark_worker.capture.factory import find_block, make_inputs
from stark_worker.capture.faults import CaptureFault
from stark_worker.capture.task_file import flatten_task

HELPERS = """
import torch
from . import tables

def act(x):
    return torch.nn.functional.gelu(x) * tables.SCALE
"""
LAYERS = '''
import torch
from torch import nn
from .ops import act as activation
from . import ops

class Block(nn.Module):
    """A block."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def unused(self):
        return not_there

    def forward(self, x):
        return x + self.drop(ops.act(self.fc(self.norm(x)))) + activation(x)
'''
TASK = """
import torch
from house.layers import Block as Model

def get_inputs():
    return [torch.randn(4, 16)]

def get_init_inputs():
    return [16]
"""


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A package with local imports, and a task file beside it."""
    package = tmp_path / "house"
    package.mkdir()
    texts = {"__init__": "", "tables": "SCALE = 2.0", "ops": HELPERS, "layers": LAYERS}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text)
    (tmp_path / "task.py").write_text(TASK)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [each for each in sys.modules if each.partition(".")[0] == "house"]:
        del sys.modules[name]
    return tmp_path


def run_task(source: str) -> dict:
    names: dict = {}
    exec(compile(source, "<task>", "exec"), names)
    return names


def test_a_module_of_a_package_becomes_one_file_that_names_no_package(house):
    block = importlib.import_module("house.layers").Block().eval()
    source = capture_module(block, [torch.randn(4, 16)]).source
    assert "house" not in source.partition("\n")[2]
    assert "unused" not in source
    assert source.count("def act") == 1
    model = run_task(source)["Model"]()
    assert list(model.state_dict()) == list(block.state_dict())


def test_a_task_file_carries_the_package_beside_it(house):
    names = run_task(flatten_task(house / "task.py"))
    assert names["Model"](*names["get_init_inputs"]())(*names["get_inputs"]()).shape == (4, 16)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Mixed(nn.Module):
    """Takes keywords and a dictionary, returns a dataclass."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, batch, *, scale=None, cache=None):
        if cache is not None:
            raise ValueError("strange")
        return Output(self.fc(batch["x"]) * scale)


class Counted(nn.Module):
    """Modules of one class that differ in numbers, and weights that are tied."""

    def __init__(self):
        super().__init__()
        self.first, self.second = Scaled(8, 0.5), Scaled(8, 2.0)
        self.second.fc.weight = self.first.fc.weight

    def forward(self, x):
        return self.second(self.first(x)), x


class Scaled(nn.Module):
    def __init__(self, width, factor):
        super().__init__()
        self.fc, self.factor = nn.Linear(width, width), factor
        self.act = functools.partial(torch.clamp, max=3.0)

    def forward(self, x):
        return self.act(self.fc(x) * self.factor)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.register_buffer("mask", torch.ones(4, 4).tril())
        self.register_buffer("steps", torch.arange(4), persistent=False)

    def forward(self, x):
        y = self.body(x)
        return y @ self.mask if self.training else y @ self.mask + self.steps


def test_keywords_dictionaries_and_dataclasses_become_tensors():
    captured = capture_module(Mixed().eval(), [{"x": torch.randn(2, 8)}], {"scale": torch.rand(2, 8)})
    assert "def forward(self, batch_x, scale):" in captured.source
    assert "strange" not in captured.source, "no call in this form gets there"


def test_modules_of_one_class_share_it_and_ties_stay():
    source = capture_module(Counted().eval(), [torch.randn(2, 8)]).source
    assert source.count("class Scaled") == 1
    assert "Scaled(0.5)" in source
    model = run_task(source)["Model"]()
    assert model.first.fc.weight is model.second.fc.weight


def test_evaluation_mode_is_written_into_the_task():
    source = capture_module(Normed().eval(), [torch.randn(2, 3, 6, 6)]).source
    assert "self.training" not in source
    assert "InferenceBatchNorm" in source
    assert "nn.Dropout(p=0.0)" in source
    assert "persistent=False" in source


def test_training_mode_stays():
    assert "self.training" in capture_module(Normed().train(), [torch.randn(2, 3, 6, 6)]).source


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, ids, mask):
        return self.table(ids) * mask[..., None]


def test_integers_are_drawn_from_their_range_and_masks_are_kept():
    ids, mask = torch.randint(0, 50, (3, 20)), torch.ones(3, 20)
    mask[:, 15:] = 0
    source = capture_module(Embedded().eval(), [ids, mask]).source
    assert "torch.randint(" in source
    assert torch.equal(run_task(source)["get_inputs"]()[1], mask)


@pytest.mark.parametrize("change", ["hook", "forward"])
def test_what_cannot_be_captured_is_said(change):
    model = nn.Sequential(Scaled(8, 1.0)).eval()
    if change == "hook":
        model[0].register_forward_hook(lambda *_: None)
    else:
        model[0].forward = lambda x: x
    match = {"hook": "has hooks", "forward": "on the module itself"}
    with pytest.raises(CaptureFault, match=match[change]):
        capture_module(model, [torch.randn(2, 8)])


def test_a_value_without_source_is_named_with_its_line():
    names = {"nn": nn, "secret": object(), "__name__": "nowhere"}
    exec("class Odd(nn.Module):\n    def forward(self, x):\n        return x if secret else x\n", names)
    with pytest.raises(CaptureFault, match=r"source of nowhere\.Odd cannot be read"):
        capture_module(names["Odd"](), [torch.randn(2)])


def test_inputs_on_the_command_line_and_blocks_inside_a_model():
    args, kwargs = make_inputs(["2x8", "ids=int64:3x4"])
    assert (args[0].shape, kwargs["ids"].dtype) == ((2, 8), torch.int64)
    block, given, named = find_block(Counted(), "second.fc", args, {})
    assert isinstance(block, nn.Linear)
    assert given[0].shape == (2, 8)
    assert named == {}
    with pytest.raises(CaptureFault, match="no block nowhere; it has first"):
        find_block(Counted(), "nowhere", args, {})
