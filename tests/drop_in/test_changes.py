"""A user changes a model, or torch's state, after the kernel ran: the drop-in follows, or the original runs."""

from __future__ import annotations

import importlib.util
import sys
import threading
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

from drop_in.cases import CASES, Case, case

pytestmark = pytest.mark.filterwarnings("ignore:.*the original model runs")

BY_NAME = {each.name: each for each in CASES}
PACKED, NESTED, NATIVE = (BY_NAME[name] for name in ("packed weights", "modules inside modules", "native"))
NORMED = case(
    "norm",
    "self.norm = nn.LayerNorm(n)",
    "return self.norm(x)",
    "return F.layer_norm(x, (16,), self.norm.weight, self.norm.bias)",
)
SCALED = case(
    "scaled",
    "self.scale, self.scales, self.table = 2.0, [3.0], torch.ones(n)",
    "return self.helper(x) * self.scale * self.scales[0] * self.table\n\n"
    "    def helper(self, x):\n        return x + 1",
    "return (x + 1) * 6.0",
)
FREE = case("free", "pass", "return x * factor", "return x * factor", arguments="self, x, factor=1.0, *, shift=None")


def load(text: str, path: Path):
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def models(tmp_path):
    """Both models of a case with the same weights, after two calls of the drop-in."""

    def make(of: Case):
        drop_in, task = load(of.drop_in(), tmp_path / "changed_drop_in.py"), load(of.task, tmp_path / "changed_task.py")
        new, original = drop_in.ModelNew(*task.get_init_inputs()), task.Model(*task.get_init_inputs())
        original.load_state_dict(new.state_dict())
        with torch.no_grad():
            for _ in range(3):
                new(*task.get_inputs())
        assert new._stark.kernel.reason is None
        return new, original, task.get_inputs()

    return make


def set_attribute(path: str, value):
    def change(model):
        *inner, last = path.split(".")
        setattr(model.get_submodule(".".join(inner)), last, value)

    return change


def hook(model):
    model.norm.register_forward_hook(lambda module, given, result: result + 1)


def fused_steps(model):
    torch.manual_seed(0)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()


def grow(model):
    model.scales[0] = 5.0


CHANGES = {
    "an attribute of a module inside": (NORMED, set_attribute("norm.eps", 1.0)),
    "a module inside": (NORMED, set_attribute("norm", nn.Identity())),
    "forward() of a module inside": (NORMED, set_attribute("norm.forward", lambda x: x * 3)),
    "a hook inside": (NORMED, hook),
    "a number": (SCALED, set_attribute("scale", 7.0)),
    "a list in place": (SCALED, grow),
    "a tensor that is no weight": (SCALED, lambda model: model.table.mul_(2)),
    "a method": (SCALED, set_attribute("helper", lambda x: x - 1)),
    "a fused optimiser's step": (PACKED, fused_steps),
    "a weight that becomes a slice": (
        BY_NAME["an input of integers"],
        lambda m: setattr(m.table.weight, "data", m.table.weight.data.flip(0).contiguous()),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_model_equals_the_original(models, name):
    of, change = CHANGES[name]
    new, original, inputs = models(of)
    for model in (new, original):
        change(model)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(new(*inputs), original(*inputs))


def test_keywords_reach_the_original(models):
    new, original, (x,) = models(FREE)
    with pytest.warns(UserWarning, match="the original model runs"):
        assert torch.equal(new(x, factor=3.0), original(x, factor=3.0))
    assert torch.equal(new(x, shift=1), original(x, shift=1))


def test_second_derivatives_are_the_originals(models):
    new, original, (x,) = models(PACKED)
    penalties = []
    for model in (new, original):
        for _ in range(2):
            given = x.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(given).square().sum(), given, create_graph=True)
            model.zero_grad()
            gradient.square().sum().backward()
        penalties.append(model.linear.weight.grad)
    torch.testing.assert_close(*penalties, rtol=1e-3, atol=1e-4)


def test_threads_do_not_share_kept_memory(models):
    new, original, (x,) = models(BY_NAME["the same memory every time"])
    wrong = []

    def work(number: int) -> None:
        given = x + number
        with torch.no_grad():
            wrong.extend(None for _ in range(100) if not torch.equal(new(given), original(given)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_kernel_that_keeps_derived_weights_outside_of_itself_is_not_used(tmp_path):
    of = case(
        "global cache",
        "self.linear = nn.Linear(n, 12)",
        "return self.linear(x)",
        "return x @ CACHE.setdefault(0, self.linear.weight.t().contiguous()) + self.linear.bias",
        before="CACHE = {}\n\n\n",
    )
    drop_in = load(of.drop_in(), tmp_path / "cached_drop_in.py")
    model, x = drop_in.ModelNew(16), torch.randn(8, 16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            model.linear.weight.add_(1.0)
            torch.testing.assert_close(model(x), nn.functional.linear(x, model.linear.weight, model.linear.bias))
    assert "keeps what it derived" in model._stark.kernel.reason


def test_a_subclass_that_overrides_a_method_runs_the_original(tmp_path):
    drop_in = load(SCALED.drop_in(), tmp_path / "subclassed_drop_in.py")

    class Other(drop_in.ModelNew):
        def helper(self, x):
            return x - 1

    x = torch.randn(8, 16)
    with pytest.warns(UserWarning, match="overrides helper"):
        torch.testing.assert_close(Other(16)(x), (x - 1) * 6.0)


def test_a_deleted_model_leaves_no_weights(tmp_path):
    drop_in = load(PACKED.drop_in(), tmp_path / "deleted_drop_in.py")
    model = drop_in.ModelNew(16)
    with torch.no_grad():
        model(torch.randn(8, 16))
    kept = weakref.ref(model.linear.weight)
    del model
    assert kept() is None
