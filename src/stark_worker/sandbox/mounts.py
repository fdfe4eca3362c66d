"""A private view of the file system, for root in its own mount namespace.

The candidate's user cannot enter folders that are closed to others, such as root's home with a Python in it. An empty
folder is mounted over each of them and holds only the paths that the candidate needs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from stark_worker.sandbox.syscalls import mount

SHM_BYTES = 2**30

_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18


def make_private() -> None:
    """Stop mounts from propagating into this namespace or out of it."""
    mount("none", "/", None, _RECURSIVE | _PRIVATE)


def mount_private_shm() -> None:
    """Mount an empty /dev/shm that vanishes with its processes."""
    mount("tmpfs", "/dev/shm", "tmpfs", _NO_SETUID | _NO_DEVICES, f"mode=1777,size={SHM_BYTES}")


def hide_processes() -> None:
    """Mount a /proc that shows only processes of the same user."""
    mount("proc", "/proc", "proc", _NO_SETUID | _NO_DEVICES, "hidepid=2")


def closed_parent(path: Path) -> Path | None:
    """Return the outermost folder above a resolved path that other users cannot enter; None if there is none."""
    return next((parent for parent in reversed(path.parents) if not _is_open_to_others(parent, stat.S_IXOTH)), None)


def unreadable_by_others(paths: Iterable[Path]) -> list[Path]:
    """Return the paths whose own mode keeps other users from reading them."""
    return [path for path in paths if path.exists() and not _is_open_to_others(path, stat.S_IROTH)]


def expose_paths(paths: Iterable[Path]) -> None:
    """Make paths reachable for every user, and hide the rest of the closed folders above them."""
    by_parent: dict[Path, list[Path]] = {}
    for path in sorted({step for each in paths if each.exists() for step in _steps(each)}):  # outer folders first
        parent = closed_parent(path)
        if parent is not None:
            by_parent.setdefault(parent, []).append(path)
    for parent, below in by_parent.items():
        _hide_all_but(parent, below)


def _steps(path: Path) -> Iterator[Path]:
    """Yield the links on a path and then its end, each with its own parents resolved."""
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


def _hide_all_but(parent: Path, below: list[Path]) -> None:
    kept = {path: os.open(path, os.O_PATH | os.O_NOFOLLOW) for path in below}
    links = {path: path.readlink() for path in below if path.is_symlink()}
    mount("tmpfs", str(parent), "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=755,size=1m")
    for path, descriptor in kept.items():
        if not os.path.lexists(path):  # it may lie in a path that is there already
            path.parent.mkdir(parents=True, exist_ok=True)
            if path in links:
                path.symlink_to(links[path])
            else:
                _make_mount_point(path, stat.S_ISDIR(os.fstat(descriptor).st_mode))
                mount(f"/proc/self/fd/{descriptor}", str(path), None, _BIND | _RECURSIVE)
        os.close(descriptor)
    mount("none", str(parent), None, _REMOUNT | _READ_ONLY | _NO_SETUID | _NO_DEVICES, "mode=755,size=1m")


def _make_mount_point(path: Path, is_folder: bool) -> None:
    if is_folder:
        path.mkdir(exist_ok=True)
    else:
        path.touch()


def _is_open_to_others(path: Path, right: int) -> bool:
    try:
        return bool(path.stat().st_mode & right)
    except OSError:
        return False
