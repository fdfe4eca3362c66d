"""Confines an untrusted process before it loads a candidate.

The process was just forked and has one thread. It tries each control; if the machine does not permit one, the others
still hold and the level states it. Neither the process nor its children can undo any of it.
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
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.process_tree import hide_memory
from stark_worker.sandbox import landlock, mounts, seccomp, syscalls
from stark_worker.sandbox.levels import ALLOW_WEAK, Confinement, Control, Gap, level_of, require_level

MAX_FILE_BYTES = 8 * 2**30
MAX_OPEN_FILES = 4096
FIRST_UID, UID_COUNT = 1_900_000_000, 2**20  # far above the ids that systems assign; each candidate gets its own
NOBODY_UID = 65534  # for containers that do not map such high ids
CAPABILITY_COUNT = 64

_MACHINE_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MEMORY_BYTES = min(16 * 2**30, min(_MACHINE_BYTES, cgroups.memory_bytes() or _MACHINE_BYTES) * 3 // 4)
MAX_PROCESSES = 64 + 16 * usable_cores()  # counts threads; torch.compile starts a process with threads for each core

SYSTEM_DIRS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/sys")
ETC_FILES = (
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "passwd", "group", "nsswitch.conf", "alternatives"),
)
PROC_FILES = ("self", "cpuinfo", "meminfo", "stat", "loadavg", "uptime", "version", "filesystems", "sys")
PROC_DRIVER_FILES = ("driver", "devices", "modules", "sys")  # those that CUDA reads
DEV_FILES = ("null", "zero", "full", "random", "urandom")


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
    """Confine this process. ``folder`` becomes its working folder and, as root, belongs to its new user.

    The process can read the system, this Python and ``readable``. ``memory_bytes`` limits each process, on a GPU from
    after ``prepare`` on. ``processes`` limits all that it starts, threads included. ``prepare`` runs when files and
    network are out of reach but the user is unchanged: CUDA must open the memory of another process at that point, and
    its threads inherit the controls. Without ``own_user`` the process keeps its user and drops root's capabilities.
    """
    writable = [path.absolute() for path in (folder, *writable)]
    readable = [path.absolute() for path in (*_python_paths(), *readable) if path.exists()]
    layers = _Layers()
    os.umask(0o022)
    _unshare_namespaces(layers, [*readable, *writable])
    user = _allocate_user(layers, readable, writable) if own_user else None
    started = 0 if gpu else _count_started(user)
    os.chdir(writable[0])
    layers.attempt(Control.PRIVILEGES, lambda: syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1))
    _restrict_files(layers, readable, writable, gpu)
    prepare()
    if gpu:  # ``prepare`` may have taken long, so count as late as possible
        started = _count_started(user)
    layers.attempt(Control.LIMITS, lambda: _set_limits(memory_bytes, processes + started, gpu))
    _drop_root(layers, user)
    layers.attempt(Control.CALLS, seccomp.restrict)
    if not own_user:
        layers.gaps.append(Gap("not asked for", Control.USER))
    return layers.result()


@dataclass
class _Layers:
    """Collects the controls in force and the gaps."""

    controls: list[Control] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def attempt(self, control: Control, step: Callable[[], object]) -> None:
        try:
            step()
        except OSError as error:
            self.gaps.append(Gap(error.strerror or str(error), control))
        else:
            self.controls.append(control)

    def result(self) -> Confinement:
        level = level_of(self.controls, as_root=os.geteuid() == 0)
        return Confinement(level, tuple(self.controls), tuple(self.gaps))


def _python_paths() -> list[Path]:
    """Return the paths of this Python and of its packages."""
    return sorted({Path(path) for path in (sys.prefix, sys.exec_prefix, sys.base_prefix, *sys.path) if path})


def _unshare_namespaces(layers: _Layers, needed: Sequence[Path]) -> None:
    """Enter new namespaces. Mostly only root outside of containers may do this."""
    layers.attempt(Control.NETWORK, lambda: syscalls.unshare(syscalls.NEW_NETWORK))
    layers.attempt(Control.IPC, lambda: syscalls.unshare(syscalls.NEW_IPC))

    def enter_mounts() -> None:
        syscalls.unshare(syscalls.NEW_MOUNTS)
        mounts.make_private()
        mounts.expose_paths(needed)

    layers.attempt(Control.MOUNTS, enter_mounts)
    if Control.MOUNTS in layers.controls:
        layers.attempt(Control.SHARED_MEMORY, mounts.mount_private_shm)
        layers.attempt(Control.PROCESSES, mounts.hide_processes)


def _restrict_files(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path], gpu: bool) -> None:
    version = landlock.version()
    threads = len(os.listdir("/proc/self/task"))
    if version == 0 or threads > 1:
        reason = "not in this kernel, or switched off" if version == 0 else f"{threads} threads were there before"
        layers.gaps.append(Gap(reason, Control.FILES))
        return
    rules = _rules(layers, readable, writable, gpu)
    layers.attempt(Control.FILES, lambda: landlock.restrict(rules))
    layers.gaps += [Gap(feature) for since, feature in landlock.ADDED_BY_VERSION.items() if version < since]


def _rules(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path], gpu: bool) -> list[tuple[Path, int]]:
    rules = [(path, landlock.READABLE) for path in (*map(Path, SYSTEM_DIRS), *readable)]
    rules += [(Path("/etc", name), landlock.READABLE) for name in ETC_FILES]
    rules += [(path, landlock.WRITABLE) for path in writable]
    rules += [(Path("/dev", name), landlock.DEVICE) for name in DEV_FILES]
    if Control.PROCESSES in layers.controls:
        rules.append((Path("/proc"), landlock.READABLE))
    else:  # candidates must not read the command lines of other processes
        rules += [(Path("/proc", name), landlock.READABLE) for name in PROC_FILES]
    if gpu:
        hidden = Control.PROCESSES in layers.controls
        rules.append((Path("/proc") if hidden else Path("/proc/self").resolve(), landlock.KERNEL_FILES))
        rules += [(Path("/proc", name), landlock.READABLE) for name in PROC_DRIVER_FILES if not hidden]
        rules += [(path, landlock.DEVICE) for path in Path("/dev").glob("nvidia*")]
    if gpu or Control.SHARED_MEMORY in layers.controls:  # a /dev/shm shared with others is allowed for CUDA only
        rules.append((Path("/dev/shm"), landlock.WRITABLE))
    return rules


def _set_limits(memory_bytes: int | None, processes: int, gpu: bool) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: MAX_FILE_BYTES,
        resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
        resource.RLIMIT_NPROC: processes,
    }
    if memory_bytes is not None:
        limits |= _memory_limits(memory_bytes, gpu)
    for which, wanted in limits.items():
        hard = resource.getrlimit(which)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(which, (value, value))


def _memory_limits(memory_bytes: int, gpu: bool) -> dict[int, int]:
    """Return the limits on private writable memory (DATA) and, without a GPU, on addresses (AS).

    CUDA reserves addresses for all memory of the machine at any time, so a limit on addresses cannot hold with a GPU.
    Neither reserved addresses nor memory shared with the device count as DATA.
    """
    if gpu:
        return {resource.RLIMIT_DATA: status_bytes("VmData") + memory_bytes}
    # Libraries map far more than they use, so the limit on addresses is generous.
    return {resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_AS: status_bytes("VmSize") + 2 * memory_bytes}


def status_bytes(name: str) -> int:
    """Return a size from this process's /proc/self/status, such as VmData, in bytes."""
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(facts[name].split()[0]) * 1024


def _count_started(user: int | None) -> int:
    """Return the threads that already count against the user's limit of processes: none for a user of its own."""
    return 0 if user is not None else sum(_threads_of(os.getuid()))


def _threads_of(user: int) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            facts = dict(line.split(":", 1) for line in entry.read_text(errors="replace").splitlines())
            if int(facts["Uid"].split()[0]) == user:
                yield int(facts["Threads"])


def _allocate_user(layers: _Layers, readable: Sequence[Path], writable: Sequence[Path]) -> int | None:
    """Return the id of a user that owns nothing but the writable folders; None if there cannot be one."""
    closed = mounts.unreadable_by_others(readable)
    closed += [path for path in (*readable, *writable) if mounts.closed_parent(path.resolve())]
    if os.geteuid() != 0:
        obstacle = "only root can become another user"
    elif closed:
        obstacle = f"others may not read {closed[0]}; chmod o+rx it and the folders above"
    else:
        obstacle = "this root may not give its folders away"
        for user in (FIRST_UID + secrets.randbelow(UID_COUNT), NOBODY_UID):
            with contextlib.suppress(OSError):
                for path in writable:
                    os.chown(path, user, user)
                return user
    layers.gaps.append(Gap(obstacle, Control.USER))
    return None


def _drop_root(layers: _Layers, user: int | None) -> None:
    """Change to the user, if there is one, and drop all capabilities."""
    death_signal = ctypes.c_int()
    syscalls.prctl(syscalls.PR_GET_PDEATHSIG, ctypes.byref(death_signal))
    if user is not None:
        layers.attempt(Control.USER, lambda: _change_user(user))
    _drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, death_signal.value)  # a change of user resets it


def _change_user(user: int) -> None:
    with contextlib.suppress(OSError):  # needs a capability; a process without it cannot gain others anyway
        for capability in range(CAPABILITY_COUNT):
            syscalls.prctl(syscalls.PR_CAPBSET_DROP, capability)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.environ["USER"] = os.environ["LOGNAME"] = "candidate"  # the id has no name in the system


def _drop_capabilities() -> None:
    """Drop all capabilities: effective, permitted and inheritable. Version 3 of the call takes them in two halves."""
    header = struct.pack("Ii", 0x20080522, 0)
    syscalls.call("capset", ctypes.c_char_p(header), ctypes.c_char_p(struct.pack("6I", *[0] * 6)))


def enter_sandbox(
    readable: Sequence[Path],
    gpu: bool = False,
    prepare: Callable[[], None] = lambda: None,
    writable: Sequence[Path] = (),
    own_user: bool = True,
) -> Confinement:
    """Confine this process to its folder before it loads untrusted code. Raise SandboxTooWeak if that fails."""
    achieved = confine(
        Path.cwd(),
        readable=readable,
        writable=writable,
        memory_bytes=MEMORY_BYTES,
        processes=MAX_PROCESSES,
        gpu=gpu,
        prepare=prepare,
        own_user=own_user,
    )
    require_level(achieved, allow_weak=ALLOW_WEAK in os.environ)
    hide_memory(False)  # a hidden process cannot read its own /proc files
    return achieved
