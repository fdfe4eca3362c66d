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

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*the original model runs"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

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
LAYERS = case(
    "layers",
    "self.layers = nn.ModuleDict({'a': nn.Linear(n, n), 'b': nn.Tanh()})",
    "for each in self.layers.values():\n            x = each(x)\n        return x",
    "return torch.tanh(F.linear(x, self.layers.a.weight, self.layers.a.bias))",
)
NOTED = case(
    "noted",
    "self.pair, self.tables = ([2.0],), {'a': torch.ones(n)}",
    "return x * self.pair[0][0] * self.tables['a']",
    "return x * 2.0",
)
HIDDEN_BY_NORM = case(
    "hidden by a norm",
    "self.linear = nn.Linear(n, 12, bias=False)",
    "return F.layer_norm(self.linear(x), (12,))",
    "self.packed = self.__dict__.get('packed', self.linear.weight.t().contiguous())\n"
    "        return F.layer_norm(x @ self.packed, (12,))",
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


def swap_layers(model):
    first, second = model.layers.pop("a"), model.layers.pop("b")
    model.layers["b"], model.layers["a"] = second, first


def count_up(model):
    model.scale += 1.0
    model.scale += 1.0  # it may lie where the first number lay


def change_class(model):
    class Doubling(nn.LayerNorm):
        def forward(self, x):
            return 2 * super().forward(x)

    model.norm.__class__ = Doubling


def step(model):
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.5).step()


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
    "a number twice": (SCALED, count_up),
    "the order of modules": (LAYERS, swap_layers),
    "the class of a module": (NORMED, change_class),
    "a list in a tuple": (NOTED, lambda model: model.pair[0].__setitem__(0, 5.0)),
    "a tensor in a dictionary": (NOTED, lambda model: model.tables["a"].mul_(2)),
    "a step that a norm hides": (HIDDEN_BY_NORM, step),
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


def test_memory_without_an_owner_is_not_handed_out_twice(models):
    kernel = "torch.mul(x, 2, out=torch.from_numpy(KEPT)); return torch.from_numpy(KEPT)"
    before = "import numpy\nKEPT = numpy.zeros((8, 16), dtype='float32')\n\n\n"
    new, original, (x,) = models(case("numpy", "pass", "return x * 2", kernel, before=before))
    with torch.no_grad():
        results = [new(x + number) for number in range(3)]
    for number, result in enumerate(results):
        torch.testing.assert_close(result, original(x + number))


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


USES = {
    "torch.fx": lambda model, x: torch.fx.symbolic_trace(model)(x),
    "torch.fx of a model around it": lambda model, x: torch.fx.symbolic_trace(nn.Sequential(model, nn.ReLU()))(x),
    "TorchScript": lambda model, x: torch.jit.script(model)(x),
    "vmap": lambda model, x: torch.func.vmap(model)(torch.stack([x, x + 1])),
    "a derivative": lambda model, x: torch.func.grad(lambda given: model(given).sum())(x),
    "a sparse input": lambda model, x: model(x.to_sparse()).to_dense(),
    "a nested input": lambda model, x: torch.nested.to_padded_tensor(model(torch.nested.nested_tensor([x, x[:3]])), 0),
}


@pytest.mark.parametrize("name", USES)
def test_an_odd_use_after_usual_ones_equals_the_original(models, name):
    new, original, (x,) = models(case("plain", "pass", "return torch.relu(x)", "return torch.relu(x)"))
    torch.testing.assert_close(USES[name](new, x), USES[name](original, x))


def test_a_shallow_copy_with_other_weights_runs_the_original(models):
    new, original, (x,) = models(PACKED)
    copied = new._replicate_for_data_parallel()
    copied.linear = nn.Linear(16, 12)
    with torch.no_grad():
        torch.testing.assert_close(copied(x), copied.linear(x).relu())
        torch.testing.assert_close(new(x), original(x))


def test_gradients_of_two_models_in_two_threads_are_their_own(tmp_path):
    forward = "return torch.tanh(self.linear(x)) @ self.linear.weight"
    of = case("square", "self.linear = nn.Linear(n, n)", forward, forward)
    drop_in, wrong = load(of.drop_in(), tmp_path / "threads_drop_in.py"), []

    def work(model: nn.Module, x: torch.Tensor) -> None:
        gradients = []
        for _ in range(100):
            model.zero_grad()
            model(x).sum().backward()
            gradients.append(model.linear.weight.grad.clone())
        wrong.extend(None for each in gradients[1:] if not torch.allclose(each, gradients[0]))

    models = [drop_in.ModelNew(16) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(model, torch.randn(8, 16))) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
