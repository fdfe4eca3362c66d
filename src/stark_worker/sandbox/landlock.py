"""Landlock: restricts a process and its children to files under given paths. It cannot be undone.

It needs no privilege and no namespace. Newer kernels support more of it; ``version`` returns how much.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from stark_worker.sandbox import syscalls

_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_RENAME_BETWEEN, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15
_REMOVE_AND_MAKE = sum(1 << bit for bit in (4, 5, 7, 8, 9, 10, 12))  # all kinds of files but devices
_MAKE_DEVICES = 1 << 6 | 1 << 11
_ON_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE_CONTROL

READABLE = _EXECUTE | _READ | _LIST
WRITABLE = READABLE | _WRITE | _TRUNCATE | _REMOVE_AND_MAKE | _RENAME_BETWEEN
DEVICE = _READ | _WRITE | _LIST | _DEVICE_CONTROL
KERNEL_FILES = _READ | _WRITE | _TRUNCATE | _LIST  # /proc, where CUDA names its threads

_TCP = 0b11  # bind, connect
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
_ASK_VERSION, _PATH_BENEATH = 1, 1

# Each version added a feature, which older versions lack.
ADDED_BY_VERSION = {
    3: "truncating foreign files (Linux 6.2)",
    4: "TCP by Landlock (Linux 6.7)",
    5: "device control (Linux 6.10)",
    6: "signals to processes outside (Linux 6.12)",
}


def version() -> int:
    """Return the version of Landlock in this kernel; 0 if there is none or it is switched off."""
    try:
        return syscalls.call("landlock_create_ruleset", None, 0, _ASK_VERSION)
    except OSError:
        return 0


def restrict(rules: Iterable[tuple[Path, int]]) -> None:
    """Give up all rights on files but these beneath these paths. Needs no-new-privileges. Missing paths are skipped."""
    known = version()
    ruleset = _create_ruleset(known)
    try:
        for path, rights in rules:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                _allow(ruleset, path, rights & _handled_rights(known))
        syscalls.call("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


def _handled_rights(known: int) -> int:
    """Return the rights on files that this version can restrict."""
    rights = READABLE | _WRITE | _REMOVE_AND_MAKE | _MAKE_DEVICES
    for since, right in ((2, _RENAME_BETWEEN), (3, _TRUNCATE), (5, _DEVICE_CONTROL)):
        rights |= right if known >= since else 0
    return rights


def _create_ruleset(known: int) -> int:
    fields = [_handled_rights(known)]
    fields += [_TCP] if known >= 4 else []
    fields += [_ABSTRACT_SOCKETS_AND_SIGNALS] if known >= 6 else []
    packed = struct.pack(f"{len(fields)}Q", *fields)
    return syscalls.call("landlock_create_ruleset", ctypes.c_char_p(packed), len(packed), 0)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    # The kernel forgets an entry of /proc once it is closed everywhere, so that one stays open.
    keep = path.parts[:2] == ("/", "proc")
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        syscalls.call("landlock_add_rule", ruleset, _PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        if not keep:
            os.close(descriptor)
