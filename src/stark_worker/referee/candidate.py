"""The referee's side of a candidate's process: distrusts all its messages, and ends it with its children."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from stark_worker.processes.channel import Channel, ChannelClosed, MessageMalformed
from stark_worker.processes.handles import end_process
from stark_worker.processes.process_tree import descendants
from stark_worker.processes.usage import Footprint
from stark_worker.processes.wait_channels import describe_waits, waits
from stark_worker.protocol.errors import Failure, MachineryFault, Outcome
from stark_worker.protocol.logs import cut, describe_timeout
from stark_worker.protocol.request import Limits

OUTPUT_BYTES = 64 * 1024
START_S = 120.0
DEATH_S = 2.0
ANSWER_S = 30.0  # for its supervisor, which answers at once unless the machine is overloaded
NOT_STARTED = "The candidate's process did not start."
NOT_STOPPED = "One of the candidate's threads could not be stopped after a call."
WOKE = "One of the candidate's processes woke while all were stopped between two calls."


class Candidate:
    """The untrusted process. Its messages are bounded and checked for their form, and never believed."""

    def __init__(self, files: list[int], folder: Path, limits: Limits | None = None) -> None:
        """``files`` are this side's ends of its channel, lifeline and output, and the arena's file.

        ``limits`` are named in the log if it exceeds them.
        """
        channel, lifeline, output, self.arena = files
        self.folder, self.limits = folder, limits or Limits()
        self._channel, self._lifeline = Channel.from_descriptor(channel), Channel.from_descriptor(lifeline)
        self._output = _Output(output)
        self._is_paused = self._is_answer_due = False
        self._went_on_s = 0.0
        self._closed = False

    def close(self) -> None:
        """End all its processes and close all files."""
        if self._closed:
            return
        self._closed = True
        end_process(self._lifeline)
        self._channel.close()
        os.close(self.arena)
        self._output.join()

    def await_start(self, gpu: bool) -> None:
        """Wait until the process runs and has started CUDA, which would disturb other timings.

        A failure is the machine's: the candidate is not loaded yet.
        """
        try:
            started = self._lifeline.receive()
            self._process, self._supervisor = int(started["process"]), int(started["supervisor"])
            if gpu:
                self.expect("begun", START_S)
        except ChannelClosed as error:
            raise MachineryFault(NOT_STARTED) from error
        except Failure as failure:
            raise MachineryFault(f"{NOT_STARTED} {failure.log}") from failure

    def footprint(self) -> Footprint:
        """Measure its memory from here on."""
        return Footprint(self._process)

    @property
    def is_visible(self) -> bool:
        """True if this process can see it. A confined referee sees no other process."""
        return self._process in descendants(self._supervisor)

    def cpu_s(self) -> float:
        """Return the CPU time of it and its children."""
        return sum(each.cpu_s for each in descendants(self._supervisor).values())

    def pause(self) -> None:
        """Have all threads of it and its children stopped until the next message, or until ``resume``.

        Raise ``Failure`` if one of them goes on, or if one ran during the pause before.
        """
        self.went_on_s()
        if self._is_paused:
            return
        self._order("stop")
        if self._answer().get("did") != "stopped":
            raise self.failure(Outcome.REJECTED, NOT_STOPPED, "not_stopped")
        self._is_paused = True

    def resume(self) -> float:
        """End its pause. Return the time at which it went on; raise ``Failure`` if it ran before that."""
        self._let_go_on()
        return self.went_on_s()

    def send(self, **message: Any) -> None:
        """Send a message, then end its pause. Raise ``Failure`` if the process is gone.

        Does not wait until the process goes on: ``went_on_s`` tells when it did.
        """
        try:
            self._channel.send(**message)
        except ChannelClosed:
            raise self._death() from None
        self._let_go_on()

    def went_on_s(self) -> float:
        """Return the time at which its last pause ended, by ``time.perf_counter``. Its supervisor took that time.

        Raise ``Failure`` if one of its threads ran during that pause.
        """
        if self._is_answer_due:
            self._is_answer_due = False
            answer = self._answer()
            if answer["has_moved"]:
                raise self.failure(Outcome.REJECTED, WOKE, "woke_while_stopped")
            self._went_on_s = float(answer["ended_s"])
        return self._went_on_s

    def _let_go_on(self) -> None:
        if self._is_paused:
            self._is_paused, self._is_answer_due = False, True
            self._order("continue")

    def _order(self, do: str) -> None:
        with contextlib.suppress(ChannelClosed):  # the exit code is there to be read
            self._lifeline.send(do=do)

    def _answer(self) -> dict[str, Any]:
        """Return what the supervisor answers to an order; raise ``Failure`` if the process has ended instead."""
        try:
            answer = self._lifeline.receive(ANSWER_S)
        except TimeoutError as error:
            raise MachineryFault("The candidate's supervisor does not answer.") from error
        except ChannelClosed:
            raise self._death() from None
        if "code" in answer:
            raise self._death_by(answer["code"])
        return answer

    def expect(self, did: str, within_s: float, spin_s: float = 0.0) -> dict[str, Any]:
        """Return the next message, which has to be this one; raise ``Failure`` otherwise. Spin for it at first."""
        self.spin(min(spin_s, within_s))
        try:
            return self.receive(did, within_s)
        except TimeoutError:
            raise self.timeout(did) from None

    def spin(self, at_most_s: float) -> None:
        """Spin until a message is there, or for so long."""
        self._channel.spin(at_most_s)

    def timeout(self, did: str) -> Failure:
        """Return the failure of a candidate that did not send this message before its deadline."""
        return self.failure(Outcome.TIMEOUT, describe_timeout(did, self.limits))

    def describe_waits(self) -> str:
        """Return a phrase on what its threads do, as the kernel says."""
        return describe_waits(waits(self._process))

    def cpu_s_of_others(self) -> dict[int, float]:
        """Return the CPU time of each process that it started. A confined referee sees none."""
        found = descendants(self._supervisor)
        return {process: each.cpu_s for process, each in found.items() if process != self._process}

    def arrives_within(self, did: str, within_s: float) -> dict[str, Any] | None:
        """Spin for this message, and return it if it comes in time; raise ``Failure`` if another one comes."""
        self.spin(within_s)
        with contextlib.suppress(TimeoutError):
            return self.receive(did, 0.0)
        return None

    def receive(self, did: str, within_s: float) -> dict[str, Any]:
        """Return the next message, which has to be this one. Raise TimeoutError if none comes in time."""
        try:
            message = self._channel.receive(max(within_s, 0.001))
        except ChannelClosed:
            raise self._death() from None
        except MessageMalformed as error:
            raise self._forged(str(error)) from None
        if message.get("did") == "failed":
            raise self._own_failure(message)
        if message.get("did") != did:
            raise self._forged(f"expected {did!r}")
        return message

    def clear_output(self) -> None:
        """Drop the output so far."""
        self._output.forget()

    def _own_failure(self, message: dict[str, Any]) -> Failure:
        outcome, log = message.get("outcome"), message.get("log")
        reportable = (Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_MEMORY)
        if outcome not in reportable or not isinstance(log, str):
            return self._forged("a failure without a known outcome")
        failure = self.failure(Outcome(outcome), log)
        failure.dtype_mismatch = message.get("dtype_mismatch") is True
        return failure

    def _forged(self, detail: str) -> Failure:
        log = f"A message came that the evaluator's own code never sends ({detail})."
        return self.failure(Outcome.REJECTED, log, "forged_message")

    def _death(self) -> Failure:
        """Return the reason why the process is gone."""
        try:
            while "code" not in (last := self._lifeline.receive(DEATH_S)):  # the answer to an order
                continue
        except TimeoutError:
            return self._forged("a living process closed the channel")
        except ChannelClosed:
            return self.failure(Outcome.CRASH, "The candidate's process ended together with its parent.")
        return self._death_by(last["code"])

    def _death_by(self, code: object) -> Failure:
        """Return what an exit code means."""
        if not isinstance(code, int) or code == -signal.SIGKILL:
            return self.failure(Outcome.OUT_OF_MEMORY, "The process was killed, as happens when memory runs out.")
        how = f"with exit code {code}" if code >= 0 else f"by signal {_signal_name(-code)}"
        failure = self.failure(Outcome.CRASH, f"The candidate's process ended {how}.")
        if "std::bad_alloc" in failure.log:
            failure.outcome = Outcome.OUT_OF_MEMORY
        return failure

    def failure(self, outcome: Outcome, log: str, rule: str | None = None) -> Failure:
        """Return a failure of this outcome, with what the candidate printed."""
        printed = self._output.text().strip()
        tail = f"\n--- the candidate's own output ---\n{cut(printed, 1_000)}" if printed else ""
        return Failure(outcome, cut(log) + tail, rule)


class _Output(threading.Thread):
    """Reads all output of a process, and keeps the beginning and the end."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self._head = b""
        self._tail = b""
        self.start()

    def run(self) -> None:
        while chunk := os.read(self._descriptor, OUTPUT_BYTES):
            room = OUTPUT_BYTES // 2 - len(self._head)
            self._head += chunk[: max(room, 0)]
            self._tail = (self._tail + chunk[max(room, 0) :])[-OUTPUT_BYTES // 2 :]
        os.close(self._descriptor)

    def forget(self) -> None:
        self._head = self._tail = b""

    def text(self) -> str:
        self.join(0.2)  # the last output of a dead process may still be in the pipe
        return (self._head + self._tail).decode(errors="replace")


def _signal_name(number: int) -> str:
    """Return the name of a signal; real-time signals have none."""
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)
