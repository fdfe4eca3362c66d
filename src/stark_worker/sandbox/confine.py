"""What an untrusted process does to itself before it loads a candidate, and what of it was achieved.

Called in a process that was just forked and has one thread. Each layer is tried; where the machine does not permit one
the others still hold, and the level says so. Nothing here can be undone by the process or by anything it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stark_worker.processes import cgroups
from stark_worker.processes.environment import threads
from stark_worker.processes.process_tree import hide_memory
from stark_worker.sandbox import landlock, mounts, seccomp, syscalls
from stark_worker.sandbox.levels import ALLOW_WEAK, Confinement, Control, accept, level_of

FILE_BYTES = 8 * 2**30


OPEN_FILES = 4096


FIRST_USER, USERS = 1_900_000_000, 2**20  # far above what anybody hands out; one for each candidate


NOBODY = 65534  # where a container knows no such high numbers


CAPABILITIES = 64


SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sys")


SETTINGS = (
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "passwd",
    "group",
    "nsswitch.conf",
    "alternatives",
)


DRIVER = ("driver", "devices", "modules", "sys")  # what CUDA reads of /proc


PROCESS = ("self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")  # in /proc


DEVICES = ("null", "zero", "full", "random", "urandom")


def confine(
    folder: Path,
    *,
    readable: Sequence[Path] = (),
    writable: Sequence[Path] = (),
    memory_bytes: int | None,
    processes: int,
    gpu: bool,
    prepare: Callable[[], None] = lambda: None,
    own_user: bool = True,
) -> Confinement:
    """Lock this process in; ``folder`` becomes its working folder and, as root, its new user's.

    ``readable`` is added to the system and this Python. ``memory_bytes`` counts for each process, on a GPU from after
    ``prepare`` on, ``processes`` for all it starts, threads included. ``prepare`` is called when files and network are
    out of reach already while the user is still the caller's: CUDA has to open the memory of another process then, and
    its threads inherit what is in force. Without ``own_user`` the user stays, and gives up what root can do.
    """
    writable = [path.absolute() for path in (folder, *writable)]
    readable = [path.absolute() for path in (*_python(), *readable) if path.exists()]
    layers = _Layers()
    os.umask(0o022)
    _separate(layers, [*readable, *writable])
    user = _own_user(layers, readable, writable) if own_user else None
    started = 0 if gpu else _started_by(user)
    os.chdir(writable[0])
    layers.attempt(Control.PRIVILEGES, lambda: syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1))
    _give_up_files(layers, readable, writable, gpu)
    prepare()
    if gpu:  # that can have taken long, and others can still be seen
        started = _started_by(user)
    layers.attempt(Control.LIMITS, lambda: _limit(memory_bytes, processes + started, gpu))
    _become(layers, user)
    layers.attempt(Control.CALLS, seccomp.restrict)
    if not own_user:
        layers.missing.append(f"{Control.USER}: not asked for")
    return layers.result()


@dataclass
class _Layers:
    """Collects what was achieved."""

    controls: list[Control] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def attempt(self, control: Control, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self.missing.append(f"{control}: {error.strerror or error}")
        else:
            self.controls.append(control)

    def result(self) -> Confinement:
        level = level_of(self.controls, as_root=os.geteuid() == 0)
        return Confinement(level, tuple(self.controls), tuple(self.missing))


def _python() -> list[Path]:
    """Where this Python and what it imports lie."""
    return sorted({Path(place) for place in (sys.prefix, sys.exec_prefix, sys.base_prefix, *sys.path) if place})


def _separate(layers: _Layers, needed: Sequence[Path]) -> None:
    """Namespaces, for those who may: root outside of containers, mostly."""
    layers.attempt(Control.NETWORK, lambda: syscalls.unshare(syscalls.NEW_NETWORK))
    layers.attempt(Control.IPC, lambda: syscalls.unshare(syscalls.NEW_IPC))

    def own_mounts() -> None:
        syscalls.unshare(syscalls.NEW_MOUNTS)
        mounts.detach()
        mounts.open_ways(needed)

    layers.attempt(Control.MOUNTS, own_mounts)
    if Control.MOUNTS in layers.controls:
        layers.attempt(Control.SHARED_MEMORY, mounts.own_shared_memory)
        layers.attempt(Control.PROCESSES, mounts.hide_processes)


def _give_up_files(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path], gpu: bool) -> None:
    held = landlock.version()
    threads = len(os.listdir("/proc/self/task"))
    if held == 0 or threads > 1:
        why = "not in this kernel, or switched off" if held == 0 else f"{threads} threads were there before"
        layers.missing.append(f"{Control.FILES}: {why}")
        return
    rules = _rules(layers, readable, writable, gpu)
    layers.attempt(Control.FILES, lambda: landlock.restrict(rules))
    layers.missing += [what for since, what in landlock.BROUGHT.items() if held < since]


def _rules(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path], gpu: bool) -> list[tuple[Path, int]]:
    rules = [(path, landlock.READABLE) for path in (*map(Path, SYSTEM), *readable)]
    rules += [(Path("/etc", name), landlock.READABLE) for name in SETTINGS]
    rules += [(path, landlock.WRITABLE) for path in writable]
    rules += [(Path("/dev", name), landlock.DEVICE) for name in DEVICES]
    if Control.PROCESSES in layers.controls:
        rules.append((Path("/proc"), landlock.READABLE))
    else:  # other processes' command lines are not for candidates
        rules += [(Path("/proc", name), landlock.READABLE) for name in PROCESS]
    if gpu:
        hidden = Control.PROCESSES in layers.controls
        rules.append((Path("/proc") if hidden else Path("/proc/self").resolve(), landlock.KERNEL_FILES))
        rules += [(Path("/proc", name), landlock.READABLE) for name in DRIVER if not hidden]
        rules += [(path, landlock.DEVICE) for path in Path("/dev").glob("nvidia*")]
    if gpu or Control.SHARED_MEMORY in layers.controls:  # where it is everybody's, only CUDA is worth it
        rules.append((Path("/dev/shm"), landlock.WRITABLE))
    return rules


def _limit(memory_bytes: int | None, processes: int, gpu: bool) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_NPROC: processes,
    }
    if memory_bytes is not None:
        limits |= _limits_of_memory(memory_bytes, gpu)
    for which, wanted in limits.items():
        hard = resource.getrlimit(which)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(which, (value, value))


def _limits_of_memory(memory_bytes: int, gpu: bool) -> dict[int, int]:
    """Memory that a process can write to and shares with nobody is data. What is shared is none.

    CUDA reserves addresses for all memory there is, which it may do at any time, so that a limit of addresses is none
    for a GPU. What it reserves cannot be written to, and what it maps is shared with the device: neither is data.
    """
    if gpu:
        return {resource.RLIMIT_DATA: status_bytes("VmData") + memory_bytes}
    # Libraries map far more than they use, so this one is generous.
    return {resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_AS: status_bytes("VmSize") + 2 * memory_bytes}


def status_bytes(name: str) -> int:
    """What the system counts of this process's memory by that name."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts[name].split()[0]) * 1024


def _started_by(user: int | None) -> int:
    """What a limit of processes counts already, threads included, by user: one of its own starts from nothing."""
    return 0 if user is not None else sum(_threads_of(os.getuid()))


def _threads_of(user: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            facts = dict(line.split(":", 1) for line in entry.read_text(errors="replace").splitlines())
            if int(facts["Uid"].split()[0]) == user:
                yield int(facts["Threads"])


def _own_user(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path]) -> int | None:
    """A user that owns nothing but its writable folders; None where there cannot be one."""
    closed = mounts.closed_themselves(readable)
    closed += [path for path in (*readable, *writable) if mounts.closed_parent(path.resolve())]
    if os.geteuid() != 0:
        obstacle = "only root can become another user"
    elif closed:
        obstacle = f"others may not read {closed[0]}; chmod o+rx it and the folders above"
    else:
        obstacle = "this root may not give its folders away"
        for user in (FIRST_USER + secrets.randbelow(USERS), NOBODY):
            with contextlib.suppress(OSError):
                for path in writable:
                    os.chown(path, user, user)
                return user
    layers.missing.append(f"{Control.USER}: {obstacle}")
    return None


def _become(layers: _Layers, user: int | None) -> None:
    """Stop being root, or at least stop being able to do what root can."""
    dying = ctypes.c_int()
    syscalls.prctl(syscalls.PR_GET_PDEATHSIG, ctypes.byref(dying))
    if user is not None:
        layers.attempt(Control.USER, lambda: _change_user(user))
    _drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, dying.value)  # whoever changes user is no longer told of a parent's death


def _change_user(user: int) -> None:
    with contextlib.suppress(OSError):  # needs a capability of its own; without any, no others can be gained anyway
        for capability in range(CAPABILITIES):
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.environ["USER"] = os.environ["LOGNAME"] = "candidate"  # the system knows no name for this one


def _drop_capabilities() -> None:
    """None of them, effective, permitted or inheritable; in version 3 of the call they come in two halves."""
    header = struct.pack("Ii", 0x20080522, 0)
    syscalls.call("capset", ctypes.c_char_p(header), ctypes.c_char_p(struct.pack("6I", *[0] * 6)))


_MACHINES_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


MEMORY_BYTES = min(16 * 2**30, min(_MACHINES_BYTES, cgroups.memory_bytes() or _MACHINES_BYTES) * 3 // 4)


PROCESSES = 64 + 16 * threads()  # threads count too, and torch.compile starts a process with threads for each core


def lock_in(
    readable: Sequence[Path],
    gpu: bool = False,
    prepare: Callable[[], None] = lambda: None,
    writable: Sequence[Path] = (),
    own_user: bool = True,
) -> Confinement:
    """Confine this process to its folder before anything of a stranger's is loaded; says what was achieved.

    Where that is too weak nothing is loaded.
    """
    done = confine(
        Path.cwd(),
        readable=readable,
        writable=writable,
        memory_bytes=MEMORY_BYTES,
        processes=PROCESSES,
        gpu=gpu,
        prepare=prepare,
        own_user=own_user,
    )
    accept(done, allow_weak=ALLOW_WEAK in os.environ)
    hide_memory(False)  # or it could not even look at itself
    return done
