"""A file system as only this process sees it; for root in a mount namespace of its own.

A user that root drops to cannot enter folders that are closed to others, such as root's home with a Python in it. An
empty folder is put over each of these, with nothing in it but the paths that are needed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from stark_worker.sandbox.syscalls import mount

SHARED_BYTES = 2**30  # what /dev/shm holds at most

_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


def detach() -> None:
    """From here on nothing that is mounted shows outside, nor the other way round."""
    mount("none", "/", None, _RECURSIVE | _PRIVATE)


def own_shared_memory() -> None:
    """A /dev/shm that is empty and vanishes with its processes."""
    mount("tmpfs", "/dev/shm", "tmpfs", _NO_SETUID | _NO_DEVICES, f"mode=1777,size={SHARED_BYTES}")


def hide_processes() -> None:
    """A /proc in which one sees the processes of one's own user alone."""
    mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES, "hidepid=2")


def closed_parent(path: Path) -> Path | None:
    """The outermost folder above a path without links that other users cannot enter."""
    return next((parent for parent in reversed(path.parents) if not _open_to_others(parent, stat.S_IXOTH)), None)


def closed_themselves(paths: Iterable[Path]) -> list[Path]:
    """Those that other users cannot read, whatever lies above them."""
    return [path for path in paths if path.exists() and not _open_to_others(path, stat.S_IROTH)]


def open_ways(paths: Iterable[Path]) -> None:
    """Make paths reachable for every user, and hide whatever else lies in the closed folders above them."""
    by_parent: dict[Path, list[Path]] = {}
    for path in sorted({step for way in paths if way.exists() for step in _steps(way)}):  # outer folders first
        parent = closed_parent(path)
        if parent is not None:
            by_parent.setdefault(parent, []).append(path)
    for parent, below in by_parent.items():
        _leave_only(parent, below)


def _steps(path: Path) -> Iterator[Path]:
    """The links that a path leads through, and where it ends; each is named without a link in its own way."""
    here = Path("/")
    waiting = list(reversed(path.absolute().parts[1:]))
    while waiting:
        here /= waiting.pop()
        if here.is_symlink():
            yield here
            target = here.parent / here.readlink()
            here = Path("/")
            waiting += reversed(Path(os.path.normpath(target)).parts[1:])
    yield here


def _leave_only(parent: Path, below: list[Path]) -> None:
    kept = {path: os.open(path, os.O_PATH | os.O_NOFOLLOW) for path in below}
    links = {path: path.readlink() for path in below if path.is_symlink()}
    mount("tmpfs", str(parent), "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=755,size=1m")
    for path, place in kept.items():
        if not os.path.lexists(path):  # it may lie in one that is there already
            path.parent.mkdir(parents=True, exist_ok=True)
            if path in links:
                path.symlink_to(links[path])
            else:
                _make_place(path, stat.S_ISDIR(os.fstat(place).st_mode))
                mount(f"/proc/self/fd/{place}", str(path), None, _BIND | _RECURSIVE)
        os.close(place)
    mount("none", str(parent), None, _REMOUNT | _READ_ONLY | _NO_SETUID | _NO_DEVICES, "mode=755,size=1m")


def _make_place(path: Path, is_folder: bool) -> None:
    if is_folder:
        path.mkdir(exist_ok=True)
    else:
        path.touch()


def _open_to_others(path: Path, right: int) -> bool:
    try:
        return bool(path.stat().st_mode & right)
    except OSError:
        return False
