"""The lock on a GPU: processes of one machine measure on it one after another, or they would time each other. No torch.

Each GPU has two files in a folder that every user sees. The measuring process locks one of them. The kernel releases
the lock when the process ends, so it is never stale. The next process in line locks the other file, the door. A process
that just had its turn finds the door locked and has to wait. No process writes to the files: a lock needs no right to.

The CPU has no lock: every process on a machine slows every other, not only those that measure.
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

from stark_worker.processes.process_tree import KILL_TIMEOUT_S

LOCK_DIR = Path("/tmp")  # not the user's own temporary folder, which other users cannot see
POLL_S = 0.05
WARN_AFTER_S, WARN_EVERY_S = 5.0, 300.0
IDENTITY_TIMEOUT_S = 60.0

# Two processes may know one GPU by different numbers, which depend on what else they see. So the driver is asked.
_PRINT_UUID = """
import ctypes
driver, device, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.create_string_buffer(16)
ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
if not (driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0) or ask(found, device)):
    print(found.raw.hex())
"""

log = logging.getLogger(__name__)


async def gpu_identity(name: str, environment: Mapping[str, str]) -> str:
    """Return the driver's UUID of the GPU that is visible in this environment; its name if the driver gives none."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _PRINT_UUID),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environment),
    )
    try:
        async with asyncio.timeout(IDENTITY_TIMEOUT_S):
            uuid = (await process.communicate())[0].decode(errors="replace").strip()
    except TimeoutError:  # a driver that hangs is noticed when its GPU is used
        uuid = ""
    finally:
        if process.returncode is None:
            process.kill()
            with contextlib.suppress(TimeoutError):  # a driver that hangs may keep the process from ending
                await asyncio.wait_for(process.wait(), KILL_TIMEOUT_S)
    return uuid if re.fullmatch(r"[0-9a-f]{32}", uuid) else name


class GpuLock:
    """The lock on one device. ``name`` is the user's name for it."""

    def __init__(self, device: str, name: str, folder: Path = LOCK_DIR) -> None:
        self._name = name
        stem = re.sub(r"[^\w-]", "_", device)
        self._lock, self._door = folder / f"stark-gpu-{stem}.lock", folder / f"stark-gpu-{stem}.door"

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[str | None]:
        """Wait for the device and hold it. Yield None, or the reason why it cannot be locked."""
        waiting, obstacle = _WaitLog(self._name), None
        async with contextlib.AsyncExitStack() as held:
            try:
                async with _hold_file(self._door, waiting):
                    await held.enter_async_context(_hold_file(self._lock, waiting))
            except OSError as error:
                obstacle = f"{error.filename or self._lock} cannot be locked: {error.strerror}"
                log.warning("Others may measure on GPU %s at the same time: %s.", self._name, obstacle)
            yield obstacle

    def has_waiters(self) -> bool:
        """True if another process is at the door."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            descriptor = _open(self._door)
            opened.callback(os.close, descriptor)
            return not _try_lock(descriptor)
        return False


class _WaitLog:
    """Logs a warning if the wait takes long."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()
        self._warn_at = self._began + WARN_AFTER_S

    def warn_if_due(self) -> None:
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            text = "Another process measures on GPU %s; this one has waited for its turn for %.0f s."
            log.warning(text, self._name, now - self._began)


@contextlib.asynccontextmanager
async def _hold_file(path: Path, waiting: _WaitLog) -> AsyncIterator[None]:
    """Hold the lock of a file. Closing the file or ending the process releases it."""
    with contextlib.ExitStack() as opened:
        while True:
            descriptor = _open(path)
            opened.callback(os.close, descriptor)
            while _is_current(path, descriptor) and not _try_lock(descriptor):
                waiting.warn_if_due()
                await asyncio.sleep(POLL_S)
            if _is_current(path, descriptor):
                break
            opened.close()  # the file was deleted, and others lock a new file of that name
        yield


def _open(path: Path) -> int:
    """Open a file that all users share, but neither a link nor a file that blocks its reader.

    An existing file is opened for reading only: systems refuse more for another user's file in a shared folder.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, flags)
            with contextlib.suppress(OSError):  # another user's file
                os.utime(descriptor)  # keeps programs that delete old files away
            return descriptor
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(descriptor, 0o644)  # independent of the umask
            return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(path: Path, descriptor: int) -> bool:
    """True if the open file is still the file at this path."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    return False
