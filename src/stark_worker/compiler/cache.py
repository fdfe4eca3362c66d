"""The compile cache, shared between runs: a folder for each build, named by a hash of all its inputs. No torch.

An entry is made in a temporary folder and renamed into place, so it is never seen half finished. If several processes
make the same entry, the first wins. There are no locks. Only trusted processes write here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

from stark_worker.processes.workdir import RESOURCES_FILE
from stark_worker.protocol.errors import MachineryFault

CACHE_BYTES = 4 * 2**30
MIN_FREE_BYTES = 4 * 2**20
MIN_AGE_S = 3600.0  # pruning keeps entries used and builds begun within this time

LIBRARY = "*.so"
_BUILDING, _DELETING = ".build-", ".dead-"


def default_cache_dir() -> Path:
    """Return the folder of this user's compile cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stark" / "extensions"


def ensure(cache: Path) -> None:
    """Create the folder if it is missing. Every user can read it, because a candidate may run as any user."""
    if not cache.exists():
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)


def find(cache: Path, key: str, kind: str = LIBRARY) -> Path | None:
    """Return the library of that key, or another kind of file, and mark the entry as used; None if it is missing."""
    folder = cache / key
    if found := _find_in(folder, kind):
        with contextlib.suppress(OSError):  # another user's entry cannot be marked
            os.utime(folder)
    return found


def _find_in(folder: Path, kind: str) -> Path | None:
    return next(iter(sorted(folder.glob(kind))), None)


def new_build_dir(cache: Path) -> Path:
    """Return a new folder to build in, from which the result can be renamed into the cache."""
    ensure(cache)
    return Path(tempfile.mkdtemp(prefix=_BUILDING, dir=cache))


def publish(
    build_dir: Path, cache: Path, key: str, kind: str = LIBRARY, companion: str = RESOURCES_FILE
) -> Path | None:
    """Add a finished build to the cache and return its library. If the entry exists already, return that library.

    The process that built it is not trusted: only regular files are copied.
    """
    library = None if build_dir.is_symlink() else _find_in(build_dir, kind)
    if library is None or not _is_regular(library):
        return None
    files = [file for file in (library, build_dir / companion) if _is_regular(file)]
    entry = new_build_dir(cache)
    try:
        for file in files:
            shutil.copyfile(file, entry / file.name, follow_symlinks=False)
            _sync_to_disk(entry / file.name)  # a power cut must not leave an empty library in the cache
        entry.chmod(0o755)  # users may share a cache
        with contextlib.suppress(OSError):  # another process was faster
            entry.rename(cache / key)
    finally:
        shutil.rmtree(entry, ignore_errors=True)
    prune(cache)
    return find(cache, key, kind)


def check_disk_space(cache: Path) -> None:
    """Raise MachineryFault if the disk is full or a quota is used up, which is no fault of the candidate."""
    try:
        with tempfile.TemporaryFile(dir=cache) as file:
            file.write(bytes(MIN_FREE_BYTES))
            file.flush()
    except OSError as error:
        raise MachineryFault(
            f"Nothing can be built: {cache} cannot be written ({error.strerror}). Free some space there, or set "
            "XDG_CACHE_HOME to another folder."
        ) from error


def _sync_to_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _is_regular(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def prune(cache: Path) -> None:
    """Remove abandoned builds and, while the cache is too large, the entries that were unused for longest."""
    with contextlib.suppress(OSError):  # another process prunes too, or the cache belongs to another user
        entries = sorted((entry.stat().st_mtime, entry) for entry in cache.iterdir() if entry.is_dir())
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for _, entry in entries}
        total = sum(sizes.values())
        for used, entry in entries:
            unfinished = entry.name.startswith((_BUILDING, _DELETING))
            if time.time() - used > MIN_AGE_S and (unfinished or total > CACHE_BYTES):
                total -= sizes[entry]
                doomed = cache / f"{_DELETING}{os.getpid()}-{entry.name}"
                entry.rename(doomed)  # first, so that no process finds an entry with files missing
                shutil.rmtree(doomed, ignore_errors=True)
