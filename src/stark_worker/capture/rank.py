"""Finds the blocks of a model that are worth it: runs the model once, and times each block in it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stark_worker.capture.capture import capture_module
from stark_worker.capture.factory import _detach
from stark_worker.capture.faults import CaptureFault

RUNS = 5  # the first warms up
LEAST_SHARE = 0.02  # of the model's time; a smaller block is not listed
CONTAINERS = (nn.ModuleList, nn.ModuleDict)


@dataclass
class Block:
    """Equal blocks of a model: of one class, with weights and inputs of the same shapes."""

    names: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # by run, of all together
    call: tuple[Any, Any] = ((), {})
    floor_s: float = 0.0  # moving their weights, inputs and results once


class Timer:
    """Times every call of every module inside a model."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._began = model, {}  # type: ignore[var-annotated]
        self.spent: dict[str, float] = defaultdict(float)
        self.calls: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self.moved: dict[str, int] = defaultdict(int)
        self._on_gpu = any(weight.is_cuda for weight in model.parameters())

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], keeps_calls: bool) -> float:
        """Run the model once; return its seconds."""
        self.spent.clear()
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(self._begin(name, keeps_calls), with_kwargs=True))
            handles.append(module.register_forward_hook(self._end(name, keeps_calls)))
        try:
            with torch.no_grad():
                began = self._now()
                self._model(*args, **kwargs)
                return self._now() - began
        finally:
            for handle in handles:
                handle.remove()

    def _begin(self, name: str, keeps_calls: bool) -> Any:
        def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
            if keeps_calls:
                self.calls[name].append((_detach(args), _detach(kwargs)))
            self._began[name] = self._now()

        return begin

    def _end(self, name: str, keeps_calls: bool) -> Any:
        def end(module: nn.Module, args: Any, result: Any) -> None:
            self.spent[name] += self._now() - self._began[name]
            if keeps_calls:
                weights = list(module.parameters())
                self.moved[name] += sum(each.nbytes for each in (*_tensors(args), *_tensors(result), *weights))

        return end

    def _now(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()


def rank_blocks(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], best: int) -> dict[str, Any]:
    """Return the blocks by what a faster one would bring to the whole, and the tasks of the best few."""
    timer = Timer(model)
    timer.run(args, kwargs, keeps_calls=True)
    total, blocks = 0.0, _group(model, timer)
    for _ in range(RUNS):
        seconds = timer.run(args, kwargs, keeps_calls=False)
        total = min(total or seconds, seconds)
        for block in blocks:
            block.seconds.append(sum(timer.spent[name] for name in block.names))
    rate = _bytes_per_second(next((each.device for each in model.parameters()), torch.device("cpu")))
    for block in blocks:
        block.floor_s = sum(timer.moved[name] for name in block.names) / rate
    rows = [row for block in blocks if (row := _row(model, block, total))["share"] >= LEAST_SHARE]
    rows.sort(key=lambda row: row["gain"], reverse=True)
    return {"total_ms": total * 1e3, "blocks": rows, "tasks": _capture_best(model, timer, rows, best)}


def _group(model: nn.Module, timer: Timer) -> list[Block]:
    groups: dict[Any, Block] = defaultdict(Block)
    for name, module in model.named_modules():
        if not name or isinstance(module, CONTAINERS) or name not in timer.calls:
            continue
        weights = tuple((each, tuple(weight.shape)) for each, weight in module.named_parameters())
        shapes = tuple(tuple(tensor.shape) for call in timer.calls[name] for tensor in _tensors(call))
        groups[type(module), weights, shapes].names.append(name)
    return list(groups.values())


def _row(model: nn.Module, block: Block, total: float) -> dict[str, Any]:
    seconds = min(block.seconds)
    gain = max(seconds - block.floor_s, 0.0) / total
    return {
        "names": block.names,
        "class": type(model.get_submodule(block.names[0])).__name__,
        "ms": seconds * 1e3,
        "share": min(seconds / total, 1.0),
        "distance": seconds / block.floor_s if block.floor_s else None,
        "gain": min(gain, 1.0),
    }


def _capture_best(model: nn.Module, timer: Timer, rows: list[dict[str, Any]], best: int) -> list[dict[str, Any]]:
    """Capture the best blocks that no captured block holds already; note in its row why one cannot be captured."""
    tasks: list[dict[str, Any]] = []
    covered: list[str] = []
    for row in rows:
        name = row["names"][0]
        if len(tasks) == best or any(name.startswith(f"{each}.") or each.startswith(f"{name}.") for each in covered):
            continue
        try:
            captured = capture_module(model.get_submodule(name), *timer.calls[name][0])
        except CaptureFault as fault:
            row["fault"] = str(fault)
            continue
        covered += row["names"]
        file = f"{name.replace('.', '_')}.py"
        row["task"] = file
        tasks.append({"file": file, "source": captured.source, "precision": captured.precision})
    return tasks


def _bytes_per_second(device: torch.device) -> float:
    """Return how fast this device copies memory."""
    source = torch.ones(2**24, device=device)
    copy = torch.empty_like(source)
    times = []
    for _ in range(4):
        began = time.perf_counter()
        copy.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * source.nbytes / min(times)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]
