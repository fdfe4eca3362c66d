"""Turns on a GPU that several processes of one machine measure on: two that do so at once time each other. No torch.

Each GPU has two files in a folder that every process sees, whoever its user is. Whoever measures holds the lock of one
of them; the kernel takes it back when that process ends, so that it is never stale. Whoever is next holds the other
one, the door: who has just had a turn finds it closed, and does not come first again. Nobody writes to these files,
because a lock needs no right to write.

The CPU has no turns: everything on a machine takes time from everything else there, not only what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from stark_worker.processes.process_tree import END_S

PLACE = Path("/tmp")  # not the user's own temporary folder, which others do not look into
LOOK_S = 0.05
TOLD_S, TOLD_AGAIN_S = 5.0, 300.0  # how long somebody waits before it is said, and said again
IDENTITY_S = 60.0

# Two processes may know one GPU by other names: its number depends on what else they see.
_ASK = """
import ctypes
driver, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(16)
ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
if not (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or ask(found, device)):
    print(found.raw.hex())
"""

log = logging.getLogger(__name__)


async def identity(name: str, environment: Mapping[str, str]) -> str:
    """What the driver knows the GPU by that is visible in this environment; its name where it does not say."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _ASK),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(IDENTITY_S):
            said = (await process.communicate())[0].decode(errors="replace").strip()
    except TimeoutError:  # a driver that hangs is found out where its GPU is used
        said = ""
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):  # a driver that hangs may not let go of it
                await asyncio.wait_for(process.wait(), END_S)
    return said if re.fullmatch(r"[0-9a-f]{32}", said) else name


class Turns:
    """Turns on one device, which its user knows by a name."""

    def __init__(self, device: str, name: str, folder: Path = PLACE) -> None:
        self._name = name
        place = re.sub(r"[^\w-]", "_", device)
        self._lock, self._door = folder / f"stark-gpu-{place}.lock", folder / f"stark-gpu-{place}.door"

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[str | None]:
        """Have the device for oneself, however long that takes; yields why that cannot be had, None where it is."""
        waiting, obstacle = _Waiting(self._name), None
        async with contextlib.AsyncExitStack() as held:
            try:
                async with _locked(self._door, waiting):
                    await held.enter_async_context(_locked(self._lock, waiting))
            except OSError as error:
                obstacle = f"{error.filename or self._lock} cannot be locked: {error.strerror}"
                log.warning("Others may measure on GPU %s at the same time: %s.", self._name, obstacle)
            yield obstacle

    def somebody_waits(self) -> bool:
        """Whether another process is at the door."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            descriptor = _open(self._door)
            opened.callback(os.close, descriptor)
            return not _taken(descriptor)
        return False


class _Waiting:
    """Says that somebody waits, when that takes long."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self._tell_at = self._began + TOLD_S

    def tell(self) -> None:
        now = time.monotonic()
        if now >= self._tell_at:
            self._tell_at = now + TOLD_AGAIN_S
            told = "Another process measures on GPU %s; this one has waited for its turn for %.0f s."
            log.warning(told, self._name, now - self._began)


@contextlib.asynccontextmanager
async def _locked(path: Path, waiting: _Waiting) -> AsyncIterator[None]:
    """Hold the lock of a file; whoever lets go of the file, or ends, lets go of the lock."""
    with contextlib.ExitStack() as opened:
        while True:
            descriptor = _open(path)
            opened.callback(os.close, descriptor)
            while _is_there(path, descriptor) and not _taken(descriptor):
                waiting.tell()
                await asyncio.sleep(LOOK_S)
            if _is_there(path, descriptor):
                break
            opened.close()  # somebody cleaned up, and others lock another file of that name
        yield


def _open(path: Path) -> int:
    """Open a file that is there for all users, and neither what leads elsewhere nor what keeps its reader waiting.

    Whoever did not make it only reads it: of what is another's in a folder of everybody's, systems refuse more.
    """
    plainly = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, plainly)
            with contextlib.suppress(OSError):  # another user's
                os.utime(descriptor)  # in use, for whoever cleans up what is old
            return descriptor
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, plainly | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(descriptor, 0o644)  # whatever our umask is
            return descriptor


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether this file is still the one of its name."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    return False
