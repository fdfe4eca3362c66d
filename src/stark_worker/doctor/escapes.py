"""Attempts that confinement has to stop, for tests, ``doctor`` and benchmarks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from stark_worker.protocol.codec import from_data
from stark_worker.protocol.errors import MachineryFault
from stark_worker.sandbox import syscalls
from stark_worker.sandbox.confine import MAX_FILE_BYTES, status_bytes
from stark_worker.sandbox.levels import Confinement

_SEIZE, _NEW_USER, _NEW_PIDS = 0x4206, 0x10000000, 0x20000000
_ANONYMOUS_SHARED, _ANONYMOUS_PRIVATE = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
SECRET = "canary-6f1d"


@dataclass(frozen=True)
class Probe:
    """One attempt and its result."""

    name: str
    blocked: bool
    detail: str


@dataclass(frozen=True)
class ProbeTargets:
    """Targets of the attempts: a folder and a process with secrets, a server; and the limits."""

    home: Path
    foreign: int
    tcp_port: int
    memory_bytes: int
    processes: int


def run_probes(around: ProbeTargets) -> list[Probe]:
    """Run every attempt in its own child of this confined process.

    If the GPU is open, the memory limit comes on top of what this process holds. CUDA hides part of it from children.
    """
    beyond = max(resource.getrlimit(resource.RLIMIT_DATA)[0] - around.memory_bytes, 0)
    around = replace(around, memory_bytes=around.memory_bytes + min(beyond, status_bytes("VmData")))
    return [_attempt(name, functools.partial(step, around)) for name, step in ATTEMPTS.items()]


def _attempt(name: str, step: Callable[[], object]) -> Probe:
    """Run one attempt in a child: if it succeeds it may change what later attempts see."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(_run_step(step)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    blocked, detail = json.loads(answer) if answer else (True, "the process was killed")
    return Probe(name, blocked, detail)


def _run_step(step: Callable[[], object]) -> tuple[bool, str]:
    try:
        return False, f"not stopped: {step()!r}"[:100]
    except (OSError, MemoryError, ValueError) as error:  # a limit that may not be raised is a ValueError
        return True, f"{type(error).__name__}: {error}"[:100]


def _read_environment(around: ProbeTargets) -> bytes:
    return Path(f"/proc/{around.foreign}/environ").read_bytes()


def _read_memory(around: ProbeTargets) -> bytes:
    with open(f"/proc/{around.foreign}/mem", "rb") as memory:
        return memory.read(0)


def _read_memory_by_call(around: ProbeTargets) -> int:
    return syscalls.call("process_vm_readv", around.foreign, None, 0, None, 0, 0)


def _trace(around: ProbeTargets) -> int:
    return syscalls.call("ptrace", _SEIZE, around.foreign, 0, 0)


def _read_command_line(around: ProbeTargets) -> bytes:
    return Path(f"/proc/{around.foreign}/cmdline").read_bytes()


def _connect(kind: int, address: tuple[str, int] | str) -> str:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, kind) as end:
        end.connect(address)
        end.send(b"x")
    return "connected"


def _fork_many(around: ProbeTargets) -> int:
    """Start more processes than allowed, all alive; they end when this process closes the pipe."""
    waiting, holding = os.pipe()
    for _ in range(around.processes + 8):
        if os.fork() == 0:
            os.close(holding)
            os.read(waiting, 1)
            os._exit(0)
    return around.processes + 8


def _map(flags: int, size: int) -> int:
    with contextlib.closing(mmap.mmap(-1, size, flags=flags)) as memory:
        return len(memory)


def _grow_limit(_: ProbeTargets) -> None:
    for which in (resource.RLIMIT_NPROC, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE):
        hard = resource.getrlimit(which)[1]
        if hard == resource.RLIM_INFINITY:
            return
        resource.setrlimit(which, (hard + 1, hard + 1))


def _limit_other(around: ProbeTargets) -> object:
    return resource.prlimit(around.foreign, resource.RLIMIT_CORE, (0, 0))


def _write_large_file(_: ProbeTargets) -> int:
    with tempfile.TemporaryFile(dir=".") as file:
        return file.truncate(MAX_FILE_BYTES + 1)


def _leave_shared_memory(_: ProbeTargets) -> int:
    segment = syscalls.call("shmget", 0, 4096, 0o1600)
    ctypes.CDLL(None).shmctl(segment, 0, None)  # remove it again
    return segment


def _new_namespace(what: int) -> int:
    """Use clone, as a program would that cannot call unshare."""
    child = syscalls.call("clone", what | signal.SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


ATTEMPTS: dict[str, Callable[[ProbeTargets], object]] = {
    "write a file outside": lambda around: (around.home / "planted").write_text("x"),
    "overwrite a file outside": lambda around: (around.home / ".secret").write_text("x"),
    "truncate a file outside": lambda around: os.truncate(around.home / ".secret", 0),
    "delete a file outside": lambda around: (around.home / "spare").unlink(),
    "read a dot-file in a home": lambda around: (around.home / ".secret").read_text(),
    "list a home": lambda around: os.listdir(around.home),
    "read the passwords of the system": lambda _: Path("/etc/shadow").read_bytes(),
    "connect by TCP": lambda around: _connect(socket.SOCK_STREAM, ("127.0.0.1", around.tcp_port)),
    "send by UDP": lambda around: _connect(socket.SOCK_DGRAM, ("127.0.0.1", around.tcp_port)),
    "connect to a local service": lambda around: _connect(socket.SOCK_STREAM, str(around.home / "service")),
    "connect to an abstract service": lambda around: _connect(socket.SOCK_STREAM, f"\0stark-{around.foreign}"),
    "trace another process": _trace,
    "read another process's environment": _read_environment,
    "read another process's memory": _read_memory,
    "read another process's memory by a call": _read_memory_by_call,
    "read another process's arguments": _read_command_line,
    "signal another process": lambda around: os.kill(around.foreign, signal.SIGCONT),
    "change another process's limits": _limit_other,
    "change another process's priority": lambda around: os.setpriority(os.PRIO_PROCESS, around.foreign, 19),
    "choose another process's cores": lambda around: os.sched_setaffinity(around.foreign, os.sched_getaffinity(0)),
    "become root": lambda _: os.setresuid(0, 0, 0),
    "mount": lambda _: syscalls.mount("none", "/", None, 1 << 18),
    "make a user namespace": lambda _: syscalls.unshare(_NEW_USER),
    "make a user namespace by clone": lambda _: _new_namespace(_NEW_USER | _NEW_PIDS),
    "leave shared memory behind": _leave_shared_memory,
    "start more processes than allowed": _fork_many,
    "take more memory than allowed": lambda around: _map(_ANONYMOUS_PRIVATE, around.memory_bytes + 2**20),
    "take more shared memory than allowed": lambda around: _map(_ANONYMOUS_SHARED, 4 * around.memory_bytes),
    "write a larger file than allowed": _write_large_file,
    "raise a limit": _grow_limit,
}


@contextlib.contextmanager
def probe_targets(memory_bytes: int, processes: int) -> Iterator[ProbeTargets]:
    """Make the targets of the attempts and remove them."""
    with (
        tempfile.TemporaryDirectory(prefix="stark-probes-") as home,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as service,
        socket.socket(socket.AF_UNIX) as abstract,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()", SECRET],
            stdin=subprocess.PIPE,
            env={"SECRET": SECRET},
        ) as foreign,
    ):
        place = Path(home)
        (place / ".secret").write_text(SECRET)
        (place / "spare").write_text("")
        service.bind(str(place / "service"))
        abstract.bind(f"\0stark-{foreign.pid}")
        for server in (service, abstract):
            server.listen()
        try:
            yield ProbeTargets(place, foreign.pid, tcp.getsockname()[1], memory_bytes, processes)
        finally:
            foreign.kill()


def probe_confinement(
    confined: Callable[[Path, int, int], Confinement], memory_bytes: int = 2**30, processes: int = 64
) -> tuple[Confinement, list[Probe]]:
    """Call ``confined(folder, memory_bytes, processes)`` in a child, and run all attempts there."""
    with (
        probe_targets(memory_bytes, processes) as around,
        tempfile.TemporaryDirectory(prefix="stark-probe_confinement-") as folder,
    ):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                achieved = confined(Path(folder), memory_bytes, processes)
                found = [[probe.name, probe.blocked, probe.detail] for probe in run_probes(around)]
                os.write(writing, json.dumps([asdict(achieved), found]).encode())
            finally:
                if sys.exc_info()[0]:
                    sys.excepthook(*sys.exc_info())
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as answers:
            text = answers.read()
        os.waitpid(child, 0)
    if not text:
        raise MachineryFault("The process that tries to break out ended before it could report. Its error is above.")
    achieved_data, found = json.loads(text)
    return from_data(Confinement, achieved_data), [Probe(*each) for each in found]
