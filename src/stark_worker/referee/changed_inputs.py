"""Finds the changes of inputs on which a reference fails, in processes that may die of it.

Some operations assert on the GPU that their inputs are valid. A failed assertion ends CUDA in the whole process. So for
a task with such operations, changed inputs are tried first in other processes. CUDA does not survive a fork: the
process that forks for each try is itself forked before the referee starts CUDA.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stark_worker.correctness.inputs import changes, few_changes
from stark_worker.correctness.reference import Reference
from stark_worker.processes.channel import Channel, ChannelClosed
from stark_worker.processes.process_tree import die_with_parent, set_process_name

START_S, TRY_S = 60.0, 20.0  # for the start with CUDA and the reference, then for each try
MAX_REASON_LENGTH = 200
# Operations that accept all values, in addition to views and to those on single elements.
HARMLESS = re.compile(
    "|".join(
        (
            r"b?mm|addb?mm|baddbmm|\w*conv\w*|_?(log_|safe_)?softmax|logsumexp|_scaled_dot_product_\w+|_fft_\w+",
            r"\w*(layer|group|batch)_norm\w*|\w*_rnn\w*|_thnn_fused_\w+|native_dropout|_?(adaptive_)?(avg|max)_pool\w+",
            r"sum|mean|prod|a?max|a?min|arg(max|min)|any|all|var\w*|std\w*|norm|linalg_(vector_norm|cross)|cum\w+",
            r"cat|stack|flip|roll|repeat|tri[lu]|sort|topk|\w+_pad\w*|pixel_\w+|im2col|upsample_\w+|diag_embed",
            r"(smooth_l1|huber|mse)_loss|binary_cross_entropy_with_logits|hardswish|log_sigmoid\w*|_prelu_kernel",
            r"clone|copy_|_to_copy|_unsafe_view|(new_)?(empty|zeros|ones|full)\w*|fill_|zero_|arange|eye|scalar_tensor",
        )
    )
)

Reasons = dict[str, str]  # by the kind of a change
MakeReference = Callable[[Path], Reference]  # in a folder of its own


def has_risky_operations(reference: Reference) -> bool:
    """True if a call may assert. A value that reaches Python may choose other operations, so it counts too."""
    recorder = _Recorder()
    with recorder:
        reference.run(reference.model, reference.first.inputs, reference.first.seed)
    return not all(map(_is_harmless, recorder.operations))


def _is_harmless(operation: Any) -> bool:
    if operation.is_view or torch.Tag.pointwise in operation.tags:
        return True
    return HARMLESS.fullmatch(operation._schema.name.removeprefix("aten::")) is not None


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of a call."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: set[Any] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # to skip it, newer torch imports all of it, which takes seconds
        return False

    def __torch_dispatch__(self, operation: Any, _: Any, arguments: Any = (), named: Any = None) -> Any:
        self.operations.add(operation)
        return operation(*arguments, **(named or {}))


class ChangeTester:
    """A process that tries changed inputs in forks of its own. Start it before CUDA, and ask it at most once."""

    def __init__(self, make_reference: MakeReference) -> None:
        self._channel, theirs = Channel.pair()
        parent = os.getpid()
        self._process = os.fork()
        if self._process == 0:
            self._channel.close()
            _run_and_exit(lambda: _serve(theirs, make_reference), parent)
        theirs.close()

    def find_failing(self) -> Reasons:
        """Return the changes on which the reference fails."""
        self._channel.send(do="try")
        try:
            return {str(kind): str(reason) for kind, reason in self._channel.receive()["failing"].items()}
        except ChannelClosed:
            return {}

    def close(self) -> None:
        """Let the process end; a confined referee may not kill it."""
        self._channel.close()
        os.waitpid(self._process, 0)


def _serve(channel: Channel, make_reference: MakeReference) -> None:
    with contextlib.suppress(ChannelClosed):
        channel.receive()
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            failing = _find_failing(lambda: make_reference(Path(folder)))
        channel.send(failing=failing)


def _find_failing(make: Callable[[], Reference]) -> Reasons:
    """Try every change once, each process as many as it survives."""
    failing: Reasons = {}
    untried = [change.kind for change in (*changes(), *few_changes())]
    while untried:
        here, there = Channel.pair()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            _run_and_exit(lambda: _try_changes(there, make(), untried), parent)  # noqa: B023 - runs at once
        there.close()
        _collect(here, untried, failing)
        here.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return failing


def _collect(channel: Channel, untried: list[str], failing: Reasons) -> None:
    """Take the answers of one process until it ends. The change at which it ended has failed.

    If it does not even start, nothing is known about the changes.
    """
    try:
        channel.receive(START_S)
    except (ChannelClosed, TimeoutError):
        untried.clear()
    try:
        while untried:
            if reason := channel.receive(TRY_S)["reason"]:
                failing[untried[0]] = str(reason)
            del untried[0]
    except (ChannelClosed, TimeoutError) as error:
        how = "did not end" if isinstance(error, TimeoutError) else "ended the process"
        failing[untried.pop(0)] = f"forward() {how}."


def _try_changes(channel: Channel, reference: Reference, kinds: Sequence[str]) -> None:
    """Answer for each kind of change why the reference fails, if it does. The largest amounts are tried."""
    channel.send(did="started")
    known = {change.kind: change for change in (*changes(lambda _, largest: largest), *few_changes())}
    for kind in kinds:
        reference.draw(known[kind], exact=False)
        if reference.device.type == "cuda":
            torch.cuda.synchronize()  # raises once an assertion has failed
        channel.send(reason=reference.left_out.get(kind, "")[:MAX_REASON_LENGTH])


def _run_and_exit(run: Callable[[], None], parent: int) -> NoReturn:
    """Run a function in a fork, silently, and exit without the parent's cleanup."""
    try:
        set_process_name("stark-tester")
        die_with_parent(parent)
        silence = os.open(os.devnull, os.O_RDWR)
        for standard in (1, 2):  # a failed assertion writes a line for each thread
            os.dup2(silence, standard)
        run()
    finally:
        os._exit(0)
