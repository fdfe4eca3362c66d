"""The candidate's process from the outside: how it starts, what it inherits, and how it ends with all it started.

The level of isolation is ``weak``: a process of its own with limits and without secrets. No torch here, so that the
candidate's process can start before this one has imported it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from stark_worker.channel import Channel, ChannelClosed, MessageMalformed
from stark_worker.logs import cut
from stark_worker.protocol import Outcome

ISOLATION = "weak: a process of its own with limits"
MEMORY_BYTES = 16 * 2**30
OUTPUT_BYTES = 64 * 1024
INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "CC", "CXX", "LD_LIBRARY_PATH", "LIBRARY_PATH", "CPATH")
INHERITED_FOR_GPU = ("CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES", "TORCH_CUDA_ARCH_LIST")
FOLDERS = ("HOME", "TMPDIR", "TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
START_S = 120.0
END_S = 10.0
DEATH_S = 2.0

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PACKAGES = str(Path(__file__).resolve().parent.parent)
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); from stark_worker.sandbox import confine; "
    "confine(*map(int, sys.argv[2:4])); from stark_worker.candidate import main; main(*map(int, sys.argv[4:6]))"
)


class MachineryFault(Exception):
    """The machine cannot judge: never the candidate's fault."""


class Failure(Exception):
    """The candidate's fault: ends the evaluation with this outcome."""

    def __init__(self, outcome: Outcome, log: str, rule: str | None = None) -> None:
        super().__init__(log)
        self.outcome, self.log, self.rule = outcome, log, rule


class Candidate:
    """The untrusted process. Nothing it says is believed; all of it is bounded and checked for its form."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, arena: int, folder: Path) -> None:
        assert process.stdout is not None
        self.folder = folder
        self.arena = arena
        self._process = process
        self._channel = channel
        self._output = _Output(process.stdout)

    def tell(self, **message: Any) -> None:
        """Send a message; a process that is gone is the candidate's fault."""
        try:
            self._channel.send(**message)
        except ChannelClosed:
            raise self._death() from None

    def expect(self, did: str, within_s: float) -> dict[str, Any]:
        """The next message, which has to be this one; anything else ends the evaluation."""
        try:
            message = self._channel.receive(max(within_s, 0.001))
        except TimeoutError:
            raise self._failure(Outcome.TIMEOUT, "The candidate did not finish in time.") from None
        except ChannelClosed:
            raise self._death() from None
        except MessageMalformed as error:
            raise self._forged(str(error)) from None
        if message.get("did") == "failed":
            raise self._own_failure(message)
        if message.get("did") != did:
            raise self._forged(f"{did!r} was to come")
        return message

    def forget_output(self) -> None:
        """Drop what was printed so far."""
        self._output.forget()

    def _own_failure(self, message: dict[str, Any]) -> Failure:
        outcome, log = message.get("outcome"), message.get("log")
        admitted = (Outcome.COMPILE_ERROR, Outcome.RUNTIME_ERROR, Outcome.OUT_OF_MEMORY)
        if outcome not in admitted or not isinstance(log, str):
            return self._forged("a failure without a known outcome")
        return self._failure(Outcome(outcome), log)

    def _forged(self, detail: str) -> Failure:
        log = f"A message came that the evaluator's own code never sends ({detail})."
        return self._failure(Outcome.REJECTED, log, "forged_message")

    def _death(self) -> Failure:
        """Why the process is gone."""
        try:
            code = self._process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            return self._forged("the conversation was closed by a living process")
        if code == -signal.SIGKILL:
            return self._failure(Outcome.OUT_OF_MEMORY, "The process was killed, as happens when memory runs out.")
        how = f"with exit code {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
        failure = self._failure(Outcome.CRASH, f"The candidate's process ended {how}.")
        if "std::bad_alloc" in failure.log:
            failure.outcome = Outcome.OUT_OF_MEMORY
        return failure

    def _failure(self, outcome: Outcome, log: str, rule: str | None = None) -> Failure:
        printed = self._output.text().strip()
        tail = f"\n--- the candidate's own output ---\n{cut(printed, 1_000)}" if printed else ""
        return Failure(outcome, cut(log) + tail, rule)


class _Output(threading.Thread):
    """Reads what a process prints for as long as it prints, and keeps the beginning and the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._head = b""
        self._tail = b""
        self.start()

    def run(self) -> None:
        with contextlib.suppress(ValueError, OSError):  # closed under us at the end
            while chunk := os.read(self._stream.fileno(), OUTPUT_BYTES):
                room = OUTPUT_BYTES // 2 - len(self._head)
                self._head += chunk[: max(room, 0)]
                self._tail = (self._tail + chunk[max(room, 0) :])[-OUTPUT_BYTES // 2 :]

    def forget(self) -> None:
        self._head = self._tail = b""

    def text(self) -> str:
        self.join(0.2)  # what a dead process printed last may still be in the pipe
        return (self._head + self._tail).decode(errors="replace")


@contextlib.contextmanager
def candidate_process(gpu: bool = False) -> Iterator[Candidate]:
    """Start the process that will load the candidate; in the end nothing of it is left, neither process nor file."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever a candidate forks comes back to us when its parent dies
    prctl(_PR_SET_DUMPABLE, 0)  # another process of the same user cannot read our memory
    arena = os.memfd_create("arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    here, there = Channel.pair()
    with tempfile.TemporaryDirectory(prefix="stark-candidate-", ignore_cleanup_errors=True) as folder:
        try:
            yield Candidate(_spawn(Path(folder), there, arena, gpu), here, arena, Path(folder))
        finally:
            kill_descendants()
            here.close()
            os.close(arena)


def _spawn(folder: Path, channel: Channel, arena: int, gpu: bool) -> subprocess.Popen[bytes]:
    # CUDA reserves addresses for all memory there is, so that a limit of these would stop it from starting.
    memory = resource.RLIM_INFINITY if gpu else MEMORY_BYTES
    numbers = [str(number) for number in (os.getpid(), memory, channel.fileno(), arena)]
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _BOOT, _PACKAGES, *numbers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=environment(folder),
            pass_fds=(channel.fileno(), arena),
            start_new_session=True,
        )
    finally:
        channel.close()


def environment(folder: Path) -> dict[str, str]:
    """What a candidate sees of the environment: tools and language, its own folder, the thread count."""
    kept = {name: os.environ[name] for name in INHERITED + INHERITED_FOR_GPU if name in os.environ}
    path = [str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    own = {name: str(folder) for name in FOLDERS}
    return kept | own | {"PATH": os.pathsep.join(path), "OMP_NUM_THREADS": str(threads())}


def threads() -> int:
    """How many cores this process may use; the same for the reference and every candidate."""
    return len(os.sched_getaffinity(0))


def confine(parent: int, memory: int) -> None:
    """Called in the candidate's process before anything else: it dies with its parent and has limits."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))  # not RLIMIT_AS: libraries map far more than they use


def end_with_parent() -> None:
    """Be told to end when the process that started us dies."""
    prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def prctl(option: int, value: int) -> None:
    """The system call of that name."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise MachineryFault(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}; Linux 3.4 or newer is needed")


def kill_descendants() -> None:
    """Kill the children, then whatever they leave to us, until nobody is left."""
    deadline = time.monotonic() + END_S
    while (children := _children()) and time.monotonic() < deadline:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


def _children() -> list[int]:
    """Direct children, read off every process's own entry: the ready-made list is missing in some kernels."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2]
                if int(after_name.split()[1]) == os.getpid():
                    found.append(int(entry.name))
    return found
