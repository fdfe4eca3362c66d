"""The untrusted side: loads the candidate and runs it on the memory it is given. It decides nothing.

The model stays in train mode under ``no_grad``, as in KernelBench. Both sides seed the generator equally before every
call, so dropout in the reference and in the candidate draws the same mask.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stark_worker.candidate.profile_table import Gpu as GpuFacts
from stark_worker.candidate.profile_table import format_profile
from stark_worker.candidate.profiler import own_share, profile_call
from stark_worker.compiler import extension
from stark_worker.compiler.ptxas import read_assembly
from stark_worker.correctness.model import NO_MEMORY, forward, import_file
from stark_worker.correctness.nested import layout, pack, tensors_in, unpack
from stark_worker.correctness.weights import WeightSource, construct_model, copy_weights
from stark_worker.device import cuda
from stark_worker.device.arena import Arena, Job, TensorSlot, bits, copy_into, dtype_name, host_arena
from stark_worker.device.cuda_arena import open_arena
from stark_worker.device.gate import GateStream
from stark_worker.device.pool import ResultPool, start_compiler
from stark_worker.processes.channel import Channel
from stark_worker.processes.workdir import JOB_FILE, RESOURCES_FILE, SOURCE_FILE
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.errors import Outcome, SandboxTooWeak
from stark_worker.protocol.logs import cut, describe
from stark_worker.sandbox.confine import enter_sandbox

SPIN_S = 0.1


class Placed(NamedTuple):
    """The results of one call: their structure, the tensors, and the offset of each in the arena.

    ``plain`` is False if a result is no ordinary tensor; then nothing was placed.
    """

    structure: str
    tensors: list[torch.Tensor]
    offsets: list[int]
    plain: bool


class Device:
    """The host, where a call ends with its function. Its subclass adds what a GPU needs."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena

    def allocate(self) -> contextlib.AbstractContextManager[None]:
        """Take the memory of a call's results from the arena, where that is possible."""
        return contextlib.nullcontext()

    def offset(self, tensor: torch.Tensor) -> int | None:
        """Return the offset of a result in the arena; None if it has to be copied there."""
        return None

    def run_empty_kernel(self) -> None: ...

    def await_gate(self, number: int) -> None: ...

    def signal_done(self, number: int) -> None: ...

    def wait(self) -> None: ...

    def await_message(self, channel: Channel) -> None: ...

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """Return the peak memory of a call beyond that before loading; None if it can be measured from outside."""
        return None


class Gpu(Device):
    """A GPU. Made before a candidate is loaded, so it cannot patch torch first."""

    def __init__(self, arena: Arena, pool: ResultPool, gate: GateStream) -> None:
        super().__init__(arena)
        self.allocate, self.offset = pool.use, pool.offset  # type: ignore[method-assign]
        self.await_gate, self.signal_done = gate.await_gate, gate.signal_done  # type: ignore[method-assign]
        self.wait = torch.cuda.synchronize  # type: ignore[method-assign]
        self._word = torch.zeros(1, device="cuda")
        self._held_before = torch.cuda.memory_allocated()

    def run_empty_kernel(self) -> None:
        self._word.zero_()

    def await_message(self, channel: Channel) -> None:
        channel.spin(SPIN_S)

    def peak_bytes(self, call: Callable[[], object]) -> int | None:
        """Return the peak of torch's allocator; memory that native code takes from the driver is not in it."""
        torch.cuda.reset_peak_memory_stats()
        call()
        self.wait()
        return torch.cuda.max_memory_allocated() - self._held_before


def main(channel: Channel, arena_descriptor: int) -> None:
    """Serve the referee until it ends this process. The process is confined before it loads the candidate."""
    order, folder = channel.receive(), Path.cwd()
    # A confined referee cannot write here after this process is confined too: its files must come first.
    ready = channel.receive_with_files() if order["waits"] else None
    compiler = start_compiler(folder) if order["gpu"] else None
    opened: list[tuple[Job, Device]] = []

    def open_memory() -> None:
        if compiler:
            cuda.init_context()  # while the referee gets ready
            if ready is None:
                channel.send(did="begun")
        _, files = ready or channel.receive_with_files()
        job = from_json(Job, (folder / JOB_FILE).read_text(encoding="utf-8"))
        if compiler:
            arena = open_arena(files[0], job.size)
            pool = ResultPool(compiler, folder, arena, job.pool_offset, job.size)
            opened.append((job, Gpu(arena, pool, GateStream(files[1]))))
        else:
            opened.append((job, Device(host_arena(arena_descriptor, job.size))))

    try:
        confinement = enter_sandbox([Path(order["cache"])], order["gpu"], open_memory)
    except SandboxTooWeak as refusal:
        channel.send(did="ready", refused=str(refusal))
        return
    server = Server(channel, *opened[0], folder)
    channel.send(did="ready", isolation=asdict(confinement.isolation))
    server.serve(server.empty_model)
    model, weights = server.attempt(Outcome.COMPILE_ERROR, server.load)
    channel.send(did="loaded", weights=weights)
    while True:
        if server.serve(model)["do"] == "profile":
            channel.send(did="profiled", **server.attempt(Outcome.RUNTIME_ERROR, lambda: server.profile(model)))
        else:
            server.attempt(Outcome.RUNTIME_ERROR, lambda: server.copy_weights(model))
            channel.send(did="weights")


class Server:
    """Answers the referee's requests in the order they come."""

    def __init__(self, channel: Channel, job: Job, device: Device, folder: Path) -> None:
        self.channel, self.job, self.device, self.arena = channel, job, device, device.arena
        self.source_file = folder / SOURCE_FILE
        self.arguments = [unpack(job.arguments, self.arena.views(spots)) for spots in job.inputs]
        self._given = [tensors_in(arguments) for arguments in self.arguments]
        self.slots = self.arena.views(job.outputs)
        self._used: list[Path] = []  # where the extensions lie that it loaded
        torch.set_num_threads(job.threads)
        cuda.pin_precision(job.tf32)
        self._pinned = cuda.precision_settings()
        with device.allocate():
            self._ready_made = [torch.ones_like(slot) for slot in self.slots]
            self.moving_model(*self.arguments[0])  # its kernels are loaded at their first use, which cannot be gated

    def empty_model(self, *_: object) -> list[torch.Tensor]:
        """Return ready tensors, so that the cost of a call around the model can be measured."""
        self.device.run_empty_kernel()
        return self._ready_made

    def moving_model(self, *arguments: object) -> list[torch.Tensor]:
        """Do no more than move the bytes that every candidate has to move."""
        if self.job.reads_inputs:
            for tensor in tensors_in(arguments):
                bits(tensor).sum()
        return [tensor.fill_(0) for tensor in self._ready_made]

    def serve(self, model: Callable[..., Any]) -> dict[str, Any]:
        """Answer calls until another request comes, and return that."""
        self._changed = self.restore_precision()
        models = {"call": model, "empty": self.empty_model, "move": self.moving_model}
        while (message := self.next_request())["do"] in (*models, "wait"):
            if message["do"] == "wait":
                self.attempt(Outcome.RUNTIME_ERROR, self.device.wait)
                self.channel.send(did="waited")
            else:
                self._call(models[message["do"]], message)
        return message

    def _call(self, model: Callable[..., Any], message: dict[str, Any]) -> None:
        """Call the model. With a gate send "launched" when all is queued, otherwise "done" when all is finished."""
        place, seed, gate = message["place"], message["seed"], message["gate"]
        run = functools.partial(self._launch if gate else self._run, model, place, seed, gate)
        placed = self.attempt(Outcome.RUNTIME_ERROR, run)
        described = self.attempt(Outcome.RUNTIME_ERROR, functools.partial(self._describe, place, placed))
        self._changed = self.restore_precision() or self._changed
        self.channel.send(did="launched" if gate else "done", changed=self._changed, **described)

    def _launch(self, model: Callable[..., Any], place: int, seed: int, gate: int) -> Placed:
        """Queue a call behind the gate, and the signal of its end behind the call."""
        self.device.await_gate(gate)
        with self.device.allocate():
            placed = self._place(_resolve(forward(model, self.arguments[place], seed)), in_place=True)
        self.device.signal_done(gate)
        return placed

    def _run(self, model: Callable[..., Any], place: int, seed: int, _: int) -> Placed:
        """Call the model, copy its results to their slots, and wait for all of it."""
        with self.device.allocate():
            placed = self._place(_resolve(forward(model, self.arguments[place], seed)), in_place=False)
        self.device.wait()
        return placed

    def _place(self, result: Any, in_place: bool) -> Placed:
        """Leave results where they lie if the referee can read them there, otherwise copy them to their slots."""
        tensors: list[torch.Tensor] = []
        packed = pack(result, tensors)
        plain = all(type(tensor) in (torch.Tensor, torch.nn.Parameter) and not vars(tensor) for tensor in tensors)
        offsets = [slot.offset for slot in self.job.outputs]
        if not plain or len(tensors) != len(offsets) or not all(map(TensorSlot.fits, self.job.outputs, tensors)):
            return Placed(packed, tensors, offsets, plain)
        seen: set[int] = set()  # the same memory returned twice is copied
        for number, (slot, tensor) in enumerate(zip(self.slots, tensors, strict=True)):
            tensor = torch.Tensor.detach(tensor)
            offset = self.device.offset(tensor) if in_place and self._is_readable(number, tensor) else None
            if offset is None or tensor.untyped_storage().data_ptr() in seen:
                copy_into(slot, tensor)
            else:
                offsets[number] = offset
                seen.add(tensor.untyped_storage().data_ptr())
        return Placed(packed, tensors, offsets, plain)

    def _is_readable(self, number: int, tensor: torch.Tensor) -> bool:
        """True if the referee can read a result in place: it is new, and laid out densely."""
        dense = tensor.is_contiguous() or tensor.stride() == self.slots[number].stride()
        return self.job.is_written[number] and dense and tensor.numel() > 0

    def _describe(self, place: int, placed: Placed) -> dict[str, Any]:
        given = self._given[place]
        return {
            "structure": placed.structure,
            "kinds": [self._kind(tensor) for tensor in placed.tensors],
            "plain": placed.plain,
            "layouts": [asdict(layout(tensor, given)) for tensor in placed.tensors] if placed.plain else [],
            "offsets": placed.offsets,
        }

    def _kind(self, tensor: torch.Tensor) -> str:
        elsewhere = f" on {tensor.device.type}" if tensor.device.type != self.job.device else ""
        return f"{dtype_name(tensor)}{list(tensor.shape)}{elsewhere}"

    def profile(self, model: Callable[..., Any]) -> dict[str, Any]:
        """Profile a call on the first place; return the profile and the facts for labels."""
        source = self.source_file.read_text(encoding="utf-8")
        on_gpu = self.job.device != "cpu"
        rows = profile_call(lambda: forward(model, self.arguments[0], 0), on_gpu, source)
        reports = [folder / RESOURCES_FILE for folder in self._used]
        assemblies = [read_assembly(path.read_text(encoding="utf-8")) for path in reports if path.exists()]
        return {
            "profile": cut(format_profile(rows, assemblies, _gpu_facts() if on_gpu else None)),
            "own_share": own_share(rows),
            "extension": bool(self._used),
            "peak_bytes": self.device.peak_bytes(lambda: forward(model, self.arguments[0], 0)),
        }

    def next_request(self) -> dict[str, Any]:
        self.device.await_message(self.channel)
        return self.channel.receive()

    def restore_precision(self) -> list[str]:
        """Reset the numeric settings that the candidate changed, and return their names."""
        settings = cuda.precision_settings()
        if changed := [name for name, value in settings.items() if value != self._pinned[name]]:
            cuda.pin_precision(self.job.tf32)
        return changed

    def load(self) -> tuple[Any, WeightSource]:
        """Load the candidate's model, give it the reference's weights, and return both model and weight source."""
        job = self.job
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
        with self.device.allocate():  # a result may lie in a buffer of the model
            model = model.to(job.device, getattr(torch, job.dtype) if job.dtype != "float32" else None)
        return model, self.copy_weights(model)

    def copy_weights(self, model: torch.nn.Module) -> WeightSource:
        """Give a model the weights that lie in the arena now."""
        return copy_weights(
            model.state_dict(), {name: self.arena.view(spot) for name, spot in self.job.weights.items()}
        )

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


def _gpu_facts() -> GpuFacts:
    card = torch.cuda.get_device_properties(0)
    return GpuFacts((card.major, card.minor), card.multi_processor_count)


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
