"""The untrusted side: loads the candidate and runs it on memory it is given. It decides nothing.

The model stays in train mode, as in KernelBench, under ``no_grad``, and the generator is seeded alike before every call
on both sides, so that a dropout layer of the reference draws the same mask as one in the candidate.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import torch

from stark_worker.channel import Channel
from stark_worker.logs import describe
from stark_worker.memory import JOB_FILE, SOURCE_FILE, Arena, Job, Spot, dtype_name, pack, unpack
from stark_worker.protocol import Outcome, from_json


def main(channel_descriptor: int, arena_descriptor: int) -> NoReturn:
    """Serve the referee until it kills this process."""
    channel = Channel(socket.socket(fileno=channel_descriptor))
    channel.receive()
    server = Server(channel, arena_descriptor, Path.cwd())
    channel.send(did="ready")
    server.serve(server.hand_over_only)
    model, weights = server.attempt(Outcome.COMPILE_ERROR, server.load)
    channel.send(did="loaded", weights=weights)
    server.serve(model)
    sys.exit()


class Server:
    """Answers the referee's requests in the order they come."""

    def __init__(self, channel: Channel, arena_descriptor: int, folder: Path) -> None:
        self.channel = channel
        self.source_file = folder / SOURCE_FILE
        self.job = from_json(Job, (folder / JOB_FILE).read_text(encoding="utf-8"))
        self.arena = Arena(arena_descriptor, self.job.size)
        self.places = self.arena.views(self.job.outputs)
        self._ready_made = [torch.ones_like(place) for place in self.places]
        torch.set_num_threads(self.job.threads)

    def hand_over_only(self, *_: Any) -> Any:
        """What is called before anything is loaded, to learn how long handing over takes by itself."""
        return self._ready_made

    def serve(self, model: Callable[..., Any]) -> None:
        """Answer calls until another request comes: "done" as soon as the result is there, then hand it over."""
        arguments = unpack(self.job.arguments, self.arena.views(self.job.inputs))
        while (message := self.channel.receive())["do"] == "call":
            result = self.attempt(
                Outcome.RUNTIME_ERROR, functools.partial(forward, model, arguments, int(message["seed"]))
            )
            self.channel.send(did="done")
            hint = self.attempt(Outcome.RUNTIME_ERROR, functools.partial(self.hand_over, result))
            del result
            self.channel.send(did="copied", **hint)

    def hand_over(self, result: Any) -> dict[str, Any]:
        """Copy the result to where the referee reads it, and say what it looks like."""
        tensors: list[torch.Tensor] = []
        packed = pack(result, tensors)
        plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
        spots = self.job.outputs
        if plain and len(tensors) == len(spots) and all(map(Spot.fits, spots, tensors)):
            for place, tensor in zip(self.places, tensors, strict=True):
                _copy(place, tensor.detach())
        kinds = [f"{dtype_name(tensor)}{list(tensor.shape)}" for tensor in tensors]
        return {"structure": packed, "kinds": kinds, "plain": plain}

    def load(self) -> tuple[Any, str]:
        """The candidate's model with the reference's weights, and how these got there: "copied" or "seeded"."""
        job = self.job
        entry = getattr(import_file("candidate", self.source_file), job.entry, None)
        if entry is None:
            raise AttributeError(f"The source defines no class {job.entry}.")
        torch.manual_seed(job.construct_seed)
        model = entry(*unpack(job.construct, self.arena.views(job.construct_tensors)))
        if job.dtype != "float32":
            model = model.to(getattr(torch, job.dtype))
        own = model.state_dict() if isinstance(model, torch.nn.Module) else {}
        if own.keys() != job.weights.keys() or not all(job.weights[name].fits(own[name]) for name in own):
            return model, "seeded"
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(self.arena.view(job.weights[name]))
        return model, "copied"

    def attempt(self, outcome: Outcome, step: Callable[[], Any]) -> Any:
        """Do a step of the candidate's; whatever it raises is told to the referee and ends this process."""
        try:
            return step()
        except BaseException as error:  # noqa: BLE001 - a candidate can raise anything, SystemExit included
            log = describe(error, self.source_file)
            self.channel.send(did="failed", outcome=_outcome(error, log, outcome), log=log)
            sys.exit()


def _copy(place: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy on this thread alone: threads of the candidate's own may still be spinning on the other cores."""
    if place.stride() == tensor.stride():
        ctypes.memmove(place.data_ptr(), tensor.data_ptr(), place.numel() * place.element_size())
    else:
        place.copy_(tensor)


def forward(model: Callable[..., Any], arguments: list[Any], seed: int) -> Any:
    """One call of a model, the reference's or a candidate's."""
    torch.default_generator.manual_seed(seed)
    with torch.no_grad():
        return model(*arguments)


def import_file(name: str, path: Path) -> ModuleType:
    """Import a file as a module of that name; a real file, because ``inspect`` and Triton read the source again."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _outcome(error: BaseException, log: str, otherwise: Outcome) -> Outcome:
    no_memory = isinstance(error, MemoryError) or "can't allocate memory" in log or "std::bad_alloc" in log
    return Outcome.OUT_OF_MEMORY if no_memory else otherwise
