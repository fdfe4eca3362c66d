"""Uses a drop-in in many ways, in a process of its own, and compares it with the original model.

    python uses.py DROP_IN.py TASK.py {each,pairs,all,NAME=VALUE ...} [--skip N --every N] [--backend aot_eager]

Each line of the output is the JSON of one use: its conditions, its outcome, and if the kernel ran again. The outcome is
"equal", "refused as by the original", or what went wrong. "each" tries every condition with all others as usual,
"pairs" every pair of conditions, "all" every combination.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib.util
import io
import itertools
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_map

Use = dict[str, str]
CONDITIONS = {  # the first of each is the usual one
    "dtype": ["judged", "bfloat16", "float64"],
    "device": ["judged", "cpu"],
    "inputs": ["judged", "half the batch", "strided", "misaligned"],
    "mode": ["training", "evaluation"],
    "context": ["no_grad", "gradients", "inference_mode", "autocast"],
    "way": ["call", "compile", "export", "trace", "deepcopy", "pickle", "graph"],
    "calls": ["three", "one"],
    "weights": ["fresh", "load_state_dict", "optimiser", "replaced", "moved", "data"],
}
EQUAL, REFUSED = "equal", "refused as by the original"
FIRST_CALLS = 3  # of the kernel, in the first call of a drop-in
TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 1e-2, torch.float32: 2e-4, torch.float64: 2e-4}


def uses_of(wanted: list[str]) -> Iterator[Use]:
    usual = {name: values[0] for name, values in CONDITIONS.items()}
    if wanted == ["all"]:
        yield from (dict(zip(CONDITIONS, values, strict=True)) for values in itertools.product(*CONDITIONS.values()))
    elif wanted == ["each"]:
        changed = [usual | {name: value} for name, values in CONDITIONS.items() for value in values[1:]]
        yield from (usual, *changed)
    elif wanted == ["pairs"]:
        found = [
            usual | {one: first, other: second}
            for one, other in itertools.combinations(CONDITIONS, 2)
            for first, second in itertools.product(CONDITIONS[one], CONDITIONS[other])
        ]
        yield from {json.dumps(use): use for use in found}.values()
    else:
        yield usual | dict(word.split("=") for word in wanted)


def load(path: Path) -> ModuleType:
    """Import a file under its own name, as a program that uses it does."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Trial:
    """One use of a drop-in."""

    def __init__(self, drop_in: ModuleType, task: ModuleType, use: Use, backend: str) -> None:
        self.use, self.backend = use, backend
        self.device = drop_in.DEVICE if use["device"] == "judged" else use["device"]
        self.dtype = (drop_in.CAST or torch.float32) if use["dtype"] == "judged" else getattr(torch, use["dtype"])
        self.judged = (drop_in.DEVICE, drop_in.CAST or torch.float32)
        torch.manual_seed(1)
        with torch.device(drop_in.DEVICE):
            init = task.get_init_inputs()
            self.new, self.original = drop_in.ModelNew(*init), task.Model(*init)
            self.inputs = task.get_inputs()
        self.original.load_state_dict(self.new.state_dict())

    def run(self) -> str:
        for model in (self.new, self.original):
            model.to(self.device, self.dtype).train(self.use["mode"] == "training")
        self._change_weights()
        right, refused = self._attempt(self.original, lambda model: model)
        found, error = self._attempt(self.new, self._way())
        if not error and not refused:
            return compare(found, right)
        if error and (refused or self._attempt(self.original, self._way())[1]):
            return REFUSED
        return f"raised {error}" if error else f"did not raise {refused}"

    def _attempt(self, model: nn.Module, way: Callable[[nn.Module], Any]) -> tuple[list[Any], str | None]:
        try:
            return self._call(model, way), None
        except Exception as error:  # noqa: BLE001 - whatever it raises is the outcome
            return [], f"{type(error).__name__}: {str(error)[:300]}"

    def _call(self, model: nn.Module, way: Callable[[nn.Module], Any]) -> list[Any]:
        inputs, context = self._inputs(), self.use["context"]
        if context == "gradients":
            inputs = tree_map(lambda each: each.requires_grad_() if is_float(each) else each, inputs)
            model.zero_grad()
        contexts = {
            "gradients": contextlib.nullcontext(),
            "no_grad": torch.no_grad(),
            "inference_mode": torch.inference_mode(),
            "autocast": torch.autocast(self.device, torch.bfloat16),
        }
        with contexts[context]:
            torch.manual_seed(2)
            used = way(model)
            for _ in range(2 if self.use["calls"] == "three" else 0):
                used(*inputs)  # a kernel that ran before takes a shorter way
            torch.manual_seed(3)
            results = [each for each in tree_flatten(used(*inputs))[0] if isinstance(each, torch.Tensor)]
            if context == "gradients":
                loss = sum(weigh(each) for each in results if each.requires_grad)
                if isinstance(loss, torch.Tensor):
                    loss.backward()
                results += [each.grad for each in (*inputs, *model.parameters()) if is_float(each)]
        return results

    def _inputs(self) -> list[Any]:
        return [self._input(each) if isinstance(each, torch.Tensor) else each for each in self.inputs]

    def _input(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().to(self.device)
        tensor = tensor.to(self.dtype) if is_float(tensor) else tensor.clone()
        kind = self.use["inputs"]
        if kind == "half the batch" and tensor.ndim and tensor.shape[0] > 1:
            return tensor[: tensor.shape[0] // 2].contiguous()
        if kind == "strided" and tensor.ndim > 1:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        if kind == "misaligned":
            more = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
            return more[1:].view(tensor.shape).copy_(tensor)
        return tensor.clone()

    def _change_weights(self) -> None:
        """Change the weights of both models in the same way, after a first call."""
        kind = self.use["weights"]
        if kind == "fresh":
            return
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(Exception):  # such inputs may not be taken, which the use itself shows
                self.new(*self._inputs())
        for model in (self.new, self.original):
            torch.manual_seed(4)
            CHANGES[kind](model, self)

    def _way(self) -> Callable[[nn.Module], Any]:
        inputs = self._inputs()
        return {
            "call": lambda model: model,
            "compile": lambda model: torch.compile(model, backend=self.backend),
            "export": lambda model: torch.export.export(model, tuple(inputs)).module(),
            "trace": lambda model: torch.jit.trace(model, tuple(inputs), check_trace=False),
            "deepcopy": lambda model: self._instead(copy.deepcopy(model)),
            "pickle": lambda model: self._instead(pickled(model)),
            "graph": self._graph,
        }[self.use["way"]]

    def _instead(self, model: nn.Module) -> nn.Module:
        """Look at the gradients of a copy."""
        self.new.__dict__["parameters"] = model.parameters
        return model

    def _graph(self, model: nn.Module) -> Callable[..., Any]:
        """Capture a call in a CUDA graph; on the host call it twice."""
        if self.device != "cuda" or self.use["context"] == "gradients":
            model(*self._inputs())
            return model
        static, graph = self._inputs(), torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                model(*static)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            result = model(*static)

        def replay(*given: Any) -> Any:
            for mine, tensor in zip(static, given, strict=True):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(tensor)
            graph.replay()
            return result

        return replay


def step(model: nn.Module, trial: Trial) -> None:
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    if parameters:
        torch.optim.SGD(parameters, lr=0.05).step()
        model.zero_grad()


def replace_parameters(model: nn.Module, trial: Trial) -> None:
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                setattr(module, name, nn.Parameter(torch.randn_like(parameter) * 0.1))


def move(model: nn.Module, trial: Trial) -> None:
    other = "cpu" if trial.device == "cuda" else None
    model.to(other, torch.float64).to(trial.device, trial.dtype)


def assign_data(model: nn.Module, trial: Trial) -> None:
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1


def load_weights(model: nn.Module, trial: Trial) -> None:
    model.load_state_dict(
        {name: torch.randn_like(each) * 0.1 if is_float(each) else each for name, each in model.state_dict().items()}
    )


CHANGES: dict[str, Callable[[nn.Module, Trial], None]] = {
    "load_state_dict": load_weights,
    "optimiser": step,
    "replaced": replace_parameters,
    "moved": move,
    "data": assign_data,
}


def pickled(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def weigh(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sum in which every element has a weight of its own, so that its gradient can be told."""
    weights = torch.linspace(0.1, 1, tensor.numel(), device=tensor.device)
    return (tensor.float() * weights.view_as(tensor)).sum()


def is_float(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def compare(found: list[Any], right: list[Any]) -> str:
    if len(found) != len(right):
        return f"{len(found)} tensors instead of {len(right)}"
    for number, (mine, yours) in enumerate(zip(found, right, strict=True)):
        if (mine is None) != (yours is None):
            return f"tensor {number}: {mine is not None}, expected {yours is not None}"
        if mine is None:
            continue
        if (mine.shape, mine.dtype, mine.device.type) != (yours.shape, yours.dtype, yours.device.type):
            return f"tensor {number}: {mine.dtype}{list(mine.shape)}, expected {yours.dtype}{list(yours.shape)}"
        mine, yours = mine.double(), yours.double()
        allowed = TOLERANCE.get(right[number].dtype, 0.0)
        largest = float(yours.nan_to_num().abs().max()) if yours.numel() else 0.0
        if not torch.allclose(mine, yours, rtol=allowed, atol=allowed * max(largest, 1e-3), equal_nan=True):
            return f"tensor {number} differs by {float((mine - yours).abs().max()):.3g}"
    return EQUAL


def count_calls(drop_in: ModuleType) -> list[None]:
    """Return a list that grows with every call of the kernel."""
    calls: list[None] = []
    for name in ("_call", "run_again"):
        function = getattr(drop_in._Kernel, name)
        setattr(drop_in._Kernel, name, lambda *args, function=function: (calls.append(None), function(*args))[1])
    return calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drop_in", type=Path)
    parser.add_argument("task", type=Path)
    parser.add_argument("wanted", nargs="+")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--backend", default="aot_eager")
    given = parser.parse_args()
    sys.path.insert(0, str(given.drop_in.parent))
    drop_in, task = load(given.drop_in), load(given.task)
    os.environ["PYTHONWARNINGS"] = "ignore"
    warnings.simplefilter("ignore")
    calls = count_calls(drop_in)
    for use in list(uses_of(given.wanted))[given.skip :: given.every]:
        torch.compiler.reset()
        calls.clear()
        outcome = Trial(drop_in, task, use, given.backend).run()
        is_used = len(calls) > FIRST_CALLS
        sys.stdout.write(json.dumps({"use": use, "outcome": outcome, "kernel": is_used}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
