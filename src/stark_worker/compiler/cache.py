"""Built extensions, shared between runs: each in a folder named by a hash of everything that decides it. No torch.

An extension is made in a folder beside and renamed into place, so nobody ever sees half of one, and of several that
make the same the first wins. There are no locks, so none can go stale. Only the trusted side puts anything here.
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
ROOM_BYTES = 4 * 2**20  # that a compiler can count on
KEPT_S = 3600.0  # an entry used within the hour, or a build begun within it, is left alone

LIBRARY = "*.so"
_UNDER_WAY, _DEAD = ".build-", ".dead-"


def default_cache() -> Path:
    """Where built extensions are kept for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stark" / "extensions"


def make(cache: Path) -> None:
    """Have the folder; a new one is for candidates to read, whoever they run as."""
    if not cache.exists():
        cache.mkdir(parents=True, exist_ok=True)
        cache.chmod(0o755)


def find(cache: Path, key: str, kind: str = LIBRARY) -> Path | None:
    """The library of that key, or another kind of file, marked as used."""
    folder = cache / key
    if found := _found_in(folder, kind):
        with contextlib.suppress(OSError):  # another user's entry: used all the same, only not marked as used
            os.utime(folder)
    return found


def _found_in(folder: Path, kind: str) -> Path | None:
    return next(iter(sorted(folder.glob(kind))), None)


def place_to_build(cache: Path) -> Path:
    """A new folder to build in, where its result can be renamed into the cache."""
    make(cache)
    return Path(tempfile.mkdtemp(prefix=_UNDER_WAY, dir=cache))


def publish(place: Path, cache: Path, key: str, kind: str = LIBRARY, beside: str = RESOURCES_FILE) -> Path | None:
    """Make a finished build visible and return its library; where somebody was faster, theirs is as good.

    Whoever built it is not trusted: the library and what lies beside it are copied, if that is what they are.
    """
    made = _found_in(place, kind)
    if made is None or not _is_plain(made):
        return None
    files = [file for file in (made, place / beside) if _is_plain(file)]  # whichever goes meanwhile ends it
    own = place_to_build(cache)
    try:
        for file in files:
            shutil.copyfile(file, own / file.name, follow_symlinks=False)
            _reach_the_disk(own / file.name)  # or a machine that loses power has an empty one for good
        own.chmod(0o755)  # a cache may be shared between users
        with contextlib.suppress(OSError):  # somebody was faster
            own.rename(cache / key)
    finally:
        shutil.rmtree(own, ignore_errors=True)
    prune(cache)
    return find(cache, key, kind)


def check_room(cache: Path) -> None:
    """Tell a full disk, or a quota that is used up, from a candidate that does not compile."""
    try:
        with tempfile.TemporaryFile(dir=cache) as file:
            file.write(bytes(ROOM_BYTES))
            file.flush()
    except OSError as error:
        raise MachineryFault(
            f"Nothing can be built: {cache} cannot be written ({error.strerror}). Free some space there, or set "
            "XDG_CACHE_HOME to another folder."
        ) from error


def _reach_the_disk(file: Path) -> None:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def prune(cache: Path) -> None:
    """Drop builds nobody will finish, and the entries that were not used for longest while there is too much."""
    with contextlib.suppress(OSError):  # somebody else prunes too, or the cache is not ours to prune
        entries = sorted((entry.stat().st_mtime, entry) for entry in cache.iterdir() if entry.is_dir())
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for _, entry in entries}
        total = sum(sizes.values())
        for used, entry in entries:
            unfinished = entry.name.startswith((_UNDER_WAY, _DEAD))
            if time.time() - used > KEPT_S and (unfinished or total > CACHE_BYTES):
                total -= sizes[entry]
                dead = cache / f"{_DEAD}{os.getpid()}-{entry.name}"
                entry.rename(dead)  # first out of sight, so that nobody finds an entry with files missing
                shutil.rmtree(dead, ignore_errors=True)
