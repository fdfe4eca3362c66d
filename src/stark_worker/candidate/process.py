"""The untrusted side: loads the candidate and runs it on the memory it is given. It decides nothing.

The model stays in train mode under ``no_grad``, as in KernelBench. Both sides seed the generator equally before every
call, so dropout in the reference and in the candidate draws the same mask.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stark_worker.candidate.profiler import format_table, own_share, profile_call
from stark_worker.compiler import extension
from stark_worker.correctness.model import NO_MEMORY, forward, import_file
from stark_worker.correctness.nested import layout, pack, tensors_in, unpack
from stark_worker.correctness.weights import WeightSource, construct_model, copy_weights
from stark_worker.device import cuda
from stark_worker.device.arena import Arena, Job, TensorSlot, copy_into, dtype_name, host_arena
from stark_worker.device.cuda_arena import open_arena
from stark_worker.processes.channel import Channel
from stark_worker.processes.workdir import JOB_FILE, RESOURCES_FILE, SOURCE_FILE
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.errors import Outcome, SandboxTooWeak
from stark_worker.protocol.logs import cut, describe
from stark_worker.sandbox.confine import enter_sandbox
from stark_worker.timing.clocks import Clock, DeviceClock

HandedOver = tuple[Any, list[torch.Tensor], bool]  # structure of a result, its tensors, True if these are plain


def main(channel: Channel, arena_descriptor: int) -> None:
    """Serve the referee until it ends this process. The process is confined before it loads the candidate."""
    order, folder = channel.receive(), Path.cwd()
    # A confined referee cannot write here after this process is confined too: its files must come first.
    ready = channel.receive_with_files() if order["waits"] else None
    opened: list[tuple[Job, Arena, Clock]] = []

    def open_memory() -> None:
        if order["gpu"]:
            cuda.init_context()  # while the referee gets ready
            if ready is None:
                channel.send(did="begun")
        _, files = ready or channel.receive_with_files()
        job = from_json(Job, (folder / JOB_FILE).read_text(encoding="utf-8"))
        if order["gpu"]:
            arena, gate = open_arena(files[0], job.size)
            opened.append((job, arena, DeviceClock(len(job.outputs), gate)))
        else:
            opened.append((job, host_arena(arena_descriptor, job.size), Clock()))

    try:
        confinement = enter_sandbox([Path(order["cache"])], order["gpu"], open_memory)
    except SandboxTooWeak as refusal:
        channel.send(did="ready", refused=str(refusal))
        return
    server = Server(channel, *opened[0], folder)
    channel.send(did="ready", isolation=asdict(confinement.isolation))
    server.serve(server.hand_over_only())
    model, weights = server.attempt(Outcome.COMPILE_ERROR, server.load)
    channel.send(did="loaded", weights=weights)
    message = server.serve(model)
    if message["do"] == "profile":
        channel.send(did="profiled", **server.attempt(Outcome.RUNTIME_ERROR, lambda: server.profile(model)))


class Server:
    """Answers the referee's requests in the order they come."""

    def __init__(self, channel: Channel, job: Job, arena: Arena, clock: Clock, folder: Path) -> None:
        self.channel, self.job, self.arena, self.clock = channel, job, arena, clock
        self.source_file = folder / SOURCE_FILE
        self.arguments = [unpack(job.arguments, arena.views(spots)) for spots in job.inputs]
        self._given = [tensors_in(arguments) for arguments in self.arguments]
        self.places = [arena.views(spots) for spots in job.outputs]
        self._used: list[Path] = []  # where the extensions lie that it loaded
        torch.set_num_threads(job.threads)
        cuda.pin_precision(job.tf32)
        self._pinned = cuda.precision_settings()

    def hand_over_only(self) -> Callable[..., Any]:
        """Return a stand-in model that only returns ready tensors, to measure the cost of handing over.

        On the CPU bursts are measured too. There each place gets its own tensors, as with a real model: copying one
        tensor again and again would be faster.
        """
        places = self.places if self.job.device == "cpu" else self.places[:1]
        ready_made = itertools.cycle([[torch.ones_like(output) for output in place] for place in places])
        return lambda *_: next(ready_made)

    def serve(self, model: Callable[..., Any]) -> dict[str, Any]:
        """Answer calls until another request comes, and return that.

        Send "done" when the results are ready, then hand them over, then describe them. On the CPU send "copied" in
        between: describing varies by more than a short call takes.
        """
        changed = self.restore_precision()
        while (message := self.next_request())["do"] == "call":
            calls = message["calls"]
            results = self.attempt(Outcome.RUNTIME_ERROR, functools.partial(self.run, model, calls, message["gate"]))
            self.channel.send(did="done")
            handed = self.attempt(Outcome.RUNTIME_ERROR, functools.partial(self.hand_over, calls, results))
            if self.job.device == "cpu":
                self.channel.send(did="copied")
            looks = self.attempt(Outcome.RUNTIME_ERROR, functools.partial(self.describe_results, calls, handed))
            del results, handed
            changed = self.restore_precision() or changed
            self.channel.send(did="looked", looks=looks, device_ms=self.clock.elapsed_ms(), changed=changed)
        return message

    def profile(self, model: Callable[..., Any]) -> dict[str, Any]:
        """Profile a call on the first place; return the profile, ptxas's lines and the facts for labels."""
        source = self.source_file.read_text(encoding="utf-8")
        rows = profile_call(lambda: forward(model, self.arguments[0], 0), self.job.device != "cpu", source)
        reports = [folder / RESOURCES_FILE for folder in self._used]
        texts = [format_table(rows), *(path.read_text(encoding="utf-8") for path in reports if path.exists())]
        return {
            "profile": cut("\n".join(texts).strip()),
            "own_share": own_share(rows),
            "extension": bool(self._used),
            "peak_bytes": self.clock.peak_bytes(lambda: forward(model, self.arguments[0], 0)),
        }

    def next_request(self) -> dict[str, Any]:
        self.clock.await_message(self.channel)
        return self.channel.receive()

    def run(self, model: Callable[..., Any], calls: list[tuple[int, int]], gate: int) -> list[Any]:
        """Call the model on one place after another without a pause."""
        self.clock.start(gate)
        results = []
        for place, seed in calls:
            results.append(_resolve(forward(model, self.arguments[place], seed)))
            self.clock.lap()
        if self.job.device != "cpu":
            self.channel.send(did="launched")
        self.clock.stop()
        return results

    def hand_over(self, calls: list[tuple[int, int]], results: list[Any]) -> list[HandedOver | None]:
        """Copy the results to the arena; None for a result whose memory a later call reused, as CUDA graphs do."""
        handed: list[HandedOver | None] = []
        for (place, _), result in zip(calls, results, strict=True):
            try:
                handed.append(self._hand_over(place, result))
            except RuntimeError:
                if len(calls) == 1:
                    raise
                handed.append(None)
        return handed

    def _hand_over(self, number: int, result: Any) -> HandedOver:
        tensors: list[torch.Tensor] = []
        packed = pack(result, tensors)
        plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and not vars(tensor) for tensor in tensors)
        spots = self.job.outputs[number]
        if plain and len(tensors) == len(spots) and all(map(TensorSlot.fits, spots, tensors)):
            for place, tensor in zip(self.places[number], tensors, strict=True):
                copy_into(place, torch.Tensor.detach(tensor))
        return packed, tensors, plain

    def describe_results(self, calls: list[tuple[int, int]], handed: list[HandedOver | None]) -> list[dict[str, Any]]:
        """Describe the results, each distinct description once: an honest candidate has one."""
        descriptions: list[dict[str, Any]] = []
        for (place, _), each in zip(calls, handed, strict=True):
            description = self._describe(place, *each) if each else {}
            if description not in descriptions:
                descriptions.append(description)
        self.clock.stop()
        return descriptions

    def _describe(self, number: int, packed: Any, tensors: list[torch.Tensor], plain: bool) -> dict[str, Any]:
        kinds = [self._kind(tensor) for tensor in tensors]
        layouts = [asdict(layout(tensor, self._given[number])) for tensor in tensors] if plain else []
        return {"structure": packed, "kinds": kinds, "plain": plain, "layouts": layouts}

    def _kind(self, tensor: torch.Tensor) -> str:
        elsewhere = f" on {tensor.device.type}" if tensor.device.type != self.job.device else ""
        return f"{dtype_name(tensor)}{list(tensor.shape)}{elsewhere}"

    def restore_precision(self) -> list[str]:
        """Reset the numeric settings that the candidate changed, and return their names."""
        settings = cuda.precision_settings()
        if changed := [name for name, value in settings.items() if value != self._pinned[name]]:
            cuda.pin_precision(self.job.tf32)
        return changed

    def load(self) -> tuple[Any, WeightSource]:
        """Load the candidate's model, give it the reference's weights, and return both model and weight source."""
        job = self.job
        self.clock.before_load()
        private = self.source_file.parent / "build"
        extension.install(extension.cached_builder(Path(job.cache), private, self._used), job.build.value)
        entry = getattr(import_file("candidate", self.source_file), job.entry, None)
        if entry is None:
            raise AttributeError(f"The source defines no class {job.entry}.")
        # As in KernelBench a model is made on the host: there the generator gives the same weights on every machine.
        arguments = unpack(job.construct, [view.cpu() for view in self.arena.views(job.construct_tensors)])
        model = construct_model(entry, arguments, job.construct_seed, job.nontrivial)
        if not isinstance(model, torch.nn.Module):
            return model, WeightSource.SEED
        model = model.to(job.device, getattr(torch, job.dtype) if job.dtype != "float32" else None)
        given = {name: self.arena.view(spot) for name, spot in job.weights.items()}
        return model, copy_weights(model.state_dict(), given)

    def attempt(self, outcome: Outcome, step: Callable[[], Any]) -> Any:
        """Run a step of the candidate; report any error to the referee and end this process."""
        try:
            return step()
        except BaseException as error:  # noqa: BLE001 - a candidate can raise anything, SystemExit included
            log = describe(error, self.source_file)
            # Torch has no exception class for tensors of different types.
            self.channel.send(
                did="failed", outcome=_outcome_of(error, log, outcome), log=log, dtype_mismatch="dtype" in log
            )
            sys.exit()


def _resolve(result: Any) -> Any:
    """Compute pending conjugations and negations: such a tensor is not finished."""
    if isinstance(result, torch.Tensor):
        return result.resolve_conj().resolve_neg() if result.is_conj() or result.is_neg() else result
    if type(result) in (list, tuple):
        return type(result)(map(_resolve, result))
    return {key: _resolve(item) for key, item in result.items()} if type(result) is dict else result


def _outcome_of(error: BaseException, log: str, otherwise: Outcome) -> Outcome:
    no_memory = isinstance(error, MemoryError | torch.cuda.OutOfMemoryError) or any(sign in log for sign in NO_MEMORY)
    if type(error).__module__.startswith("triton.compiler"):  # Triton compiles at the first call
        otherwise = Outcome.COMPILE_ERROR
    return Outcome.OUT_OF_MEMORY if no_memory else otherwise
