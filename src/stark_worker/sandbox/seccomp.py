"""Seccomp: refuses system calls that no candidate needs, and allows all others.

It refuses sockets (except connected pairs), access to other processes, mounts, namespaces, orders to the system to wake
a stopped process, and parts of the system that are known for security holes. The filter also holds for children and
cannot be undone.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterable

from stark_worker.sandbox import syscalls

SOCKETS = ("socket", "connect", "bind", "listen", "accept", "accept4")
OTHER_PROCESSES = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    *("move_pages", "migrate_pages", "ioprio_set"),
)
MOUNTS = (
    *("mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount"),
    *("fspick", "mount_setattr", "setns", "unshare", "open_by_handle_at", "name_to_handle_at", "quotactl"),
)
SHARED_MEMORY = ("shmget", "semget", "msgget", "mq_open")  # it outlives its process, unlike memory files and /dev/shm
SYSTEM = (
    *("kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff"),
    *("acct", "syslog", "sethostname", "setdomainname", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime"),
    *("iopl", "ioperm"),
)
RISKY = (
    *("bpf", "perf_event_open", "keyctl", "add_key", "request_key", "userfaultfd", "fanotify_init"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register"),
)
# The system sends any signal at a chosen moment, or goes on to read and write for a process that is stopped.
WHILE_STOPPED = ("timer_create", "mq_notify", "io_setup", "io_submit")
REFUSED = (*SOCKETS, *OTHER_PROCESSES, *MOUNTS, *SHARED_MEMORY, *SYSTEM, *RISKY, *WHILE_STOPPED)

# Calls that are refused if this argument has one of these values. They choose the signal that an event or the death of
# a process sends, and the processes that get it.
REFUSED_VALUES = {
    "fcntl": (1, (8, 10, 15, 1024, 1026)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
    "ioctl": (1, (0x8901, 0x8902)),  # FIOSETOWN, SIOCSPGRP
    "prctl": (0, (1, 36)),  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
}

# Calls that a process may only apply to itself: these arguments must be 0.
ONLY_ON_ITSELF = {
    "prlimit64": (0,),
    "setpriority": (0, 1),
    "sched_setscheduler": (0,),
    "sched_setparam": (0,),
    "sched_setattr": (0,),
    "sched_setaffinity": (0,),  # the cores of other processes of the same user
}
NEW_NAMESPACES, FOREIGN_PARENT = 0x7E020080, 0x8000  # every CLONE_NEW* flag; CLONE_PARENT, which makes a sibling

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in the kernel's description of a call
_OTHER_NUMBERING = 0x40000000  # x32 has the same calls under other numbers
_SET_FILTER, _ALL_THREADS = 1, 1

Instruction = tuple[int, int, int, int]  # code, steps if true, steps if false, operand


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def restrict() -> None:
    """Refuse these calls to this process, its threads and its children. Needs no-new-privileges."""
    install(program())


def install(lines: Iterable[Instruction]) -> None:
    """Install a filter for all later calls of this process."""
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in lines)
    if thread := syscalls.call("seccomp", _SET_FILTER, _ALL_THREADS, ctypes.byref(_Program(len(code) // 8, code))):
        raise OSError(f"thread {thread} could not be given the filter")


def program() -> list[Instruction]:
    """Return the filter for this machine's processor."""
    if platform.machine() not in syscalls.AUDIT_ARCHITECTURES:
        raise OSError(f"no filter of system calls is known for {platform.machine()}")
    lines: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, syscalls.AUDIT_ARCHITECTURES[platform.machine()]),
        _refuse(errno.EPERM),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _OTHER_NUMBERING),
        _refuse(errno.EPERM),
    ]
    for name in REFUSED:
        lines += _if_call(name, [_refuse(errno.EPERM)])
    for name, indices in ONLY_ON_ITSELF.items():
        lines += _if_call(name, [*_require_zero(indices), (_RETURN, 0, 0, _ALLOW)])
    for name, (index, values) in REFUSED_VALUES.items():
        lines += _if_call(name, [*_refuse_values(index, values), (_RETURN, 0, 0, _ALLOW)])
    # The flags of clone3 lie in memory that a filter cannot read. If it seems to be missing, libraries use clone.
    lines += _if_call("clone3", [_refuse(errno.ENOSYS)])
    refusal = [(_LOAD, 0, 0, _ARGUMENTS), (_ANY_BIT, 0, 1, NEW_NAMESPACES | FOREIGN_PARENT), _refuse(errno.EPERM)]
    lines += _if_call("clone", [*refusal, (_RETURN, 0, 0, _ALLOW)])
    return [*lines, (_RETURN, 0, 0, _ALLOW)]


def _if_call(name: str, then: list[Instruction]) -> list[Instruction]:
    number = syscalls.number(name)
    return [] if number is None else [(_EQUAL, 0, len(then), number), *then]


def _require_zero(indices: tuple[int, ...]) -> list[Instruction]:
    lines: list[Instruction] = []
    for index in indices:
        lines += [(_LOAD, 0, 0, _ARGUMENTS + 8 * index), (_EQUAL, 1, 0, 0), _refuse(errno.EPERM)]
    return lines


def _refuse_values(index: int, values: tuple[int, ...]) -> list[Instruction]:
    """Compare the lower half of an argument: the system ignores the other half of these."""
    lines: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS + 8 * index)]
    for value in values:
        lines += [(_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
    return lines


def _refuse(error: int) -> Instruction:
    return _RETURN, 0, 0, _ERROR | error
