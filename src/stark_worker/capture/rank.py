"""Finds the blocks of a model that are worth it: runs the model once, and times each block in it."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from stark_worker.capture.capture import capture_module
from stark_worker.capture.factory import detach
from stark_worker.capture.faults import CaptureFault
from stark_worker.device.peaks import measure_peaks
from stark_worker.protocol.bound import Peaks
from stark_worker.protocol.request import Target
from stark_worker.roofline.speed_of_light import Conditions, make_bound
from stark_worker.roofline.trace import trace_call
from stark_worker.roofline.work import least_work

RUNS = 5  # the first warms up
LEAST_SHARE = 0.02  # of the model's time; a smaller block is not listed
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)  # not blocks themselves


@dataclass
class Block:
    """Equal blocks of a model: of one class, with weights and inputs of the same shapes."""

    names: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # by run, of all together
    call: tuple[Any, Any] = ((), {})
    bound_s: float = 0.0  # no kernel can be faster


class Timer:
    """Times every call of every module inside a model."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._began = model, {}  # type: ignore[var-annotated]
        self.spent: dict[str, float] = defaultdict(float)
        self.calls: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
        self.on_gpu = any(weight.is_cuda for weight in model.parameters())

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], keeps_calls: bool) -> float:
        """Run the model once; return its seconds."""
        self.spent.clear()
        handles = []
        for name, module in self._model.named_modules():
            handles.append(module.register_forward_pre_hook(self._begin(name, keeps_calls), with_kwargs=True))
            handles.append(module.register_forward_hook(self._end(name)))
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
                self.calls[name].append((detach(args), detach(kwargs)))
            self._began[name] = self._now()

        return begin

    def _end(self, name: str) -> Any:
        def end(module: nn.Module, args: Any, result: Any) -> None:
            self.spent[name] += self._now() - self._began[name]

        return end

    def _now(self) -> float:
        if self.on_gpu:
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
    peaks = measure_peaks(Target.CUDA if timer.on_gpu else Target.CPU)
    for block in blocks:
        if min(block.seconds) / total >= LEAST_SHARE:
            first = block.names[0]
            one_ms = sum(_bound_ms(model.get_submodule(first), call, peaks) for call in timer.calls[first])
            block.bound_s = one_ms * len(block.names) / 1e3
    rows = [row for block in blocks if (row := _row(model, block, total))["share"] >= LEAST_SHARE]
    rows.sort(key=lambda row: row["gain"], reverse=True)
    return {"total_ms": total * 1e3, "blocks": rows, "tasks": _capture_best(model, timer, rows, best)}


def _group(model: nn.Module, timer: Timer) -> list[Block]:
    groups: dict[Any, Block] = defaultdict(Block)
    for name, module in model.named_modules():
        if not name or type(module) in CONTAINERS or name not in timer.calls:
            continue
        weights = tuple((each, tuple(weight.shape)) for each, weight in module.named_parameters())
        shapes = tuple(tuple(tensor.shape) for call in timer.calls[name] for tensor in _tensors(call))
        groups[type(module), weights, shapes].names.append(name)
    return list(groups.values())


def _row(model: nn.Module, block: Block, total: float) -> dict[str, Any]:
    seconds = min(block.seconds)
    gain = max(seconds - block.bound_s, 0.0) / total
    return {
        "names": block.names,
        "class": type(model.get_submodule(block.names[0])).__name__,
        "ms": seconds * 1e3,
        "share": min(seconds / total, 1.0),
        "distance": seconds / block.bound_s if block.bound_s else None,
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


def _bound_ms(module: nn.Module, call: tuple[Any, Any], peaks: Peaks) -> float:
    """Return the bound of one call, or 0 if it cannot be traced."""
    module, (args, kwargs) = copy.deepcopy(module), call
    kept = [*module.parameters(), *module.buffers()]
    try:
        with torch.no_grad():
            trace = trace_call(lambda: _tensors(module(*args, **kwargs)), _tensors((args, kwargs)), kept)
        work, suspicions = least_work(trace)
    except RuntimeError:
        return 0.0
    return make_bound(work, peaks, suspicions, Conditions(flushed=False)).bound_ms


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]
