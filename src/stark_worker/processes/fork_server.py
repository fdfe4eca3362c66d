"""The warm parent: has imported torch, never touched a GPU and has no threads, so that what it forks is ready at once.

It does nothing but fork. Each process it is asked for gets a warden, which outlives it, adopts all it leaves behind and
ends the whole tree as soon as whoever asked lets go of the lifeline. When whoever started the nursery is gone,
everything ends and its folder goes too. There are two nurseries, so that no candidate has a parent in common with a
referee.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import itertools
import logging
import os
import resource
import select
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch

from stark_worker.processes.channel import Channel, ChannelClosed
from stark_worker.processes.process_tree import (
    adopt_orphans,
    be_called,
    die_with,
    go_first,
    hide_memory,
    kill_descendants,
    reap,
)

# Each is a function that is given its channel and whatever else was sent along.
ROLES = {
    "device": "stark_worker.device.facts:main",
    "referee": "stark_worker.referee.referee:main",
    "candidate": "stark_worker.candidate.process:main",
    "reader": "stark_worker.candidate.build_process:read",
    "compiler": "stark_worker.candidate.build_process:compile_extension",
}
TIMED = ("device", "referee", "candidate")  # who compiles can wait
# Slow to import, and not everywhere; the last is what a first kernel makes Triton import.
OPTIONAL = ("triton", "triton.language", "triton.experimental.gluon.nvidia.hopper")
# What torch has computed by MKL, which chooses how at the first call: of threads that are there at once, one can be
# given half the digits (pytorch/pytorch#188792).
FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10"),
    *("log1p", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "ceil", "floor", "round", "trunc"),
)


def main(control: int, folder: str) -> NoReturn:
    """Fork what is asked for until the other side is gone."""
    be_called("stark-nursery")
    hide_memory()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _warm_up()
    channel = Channel.of(control)
    while True:
        try:
            message, files = channel.receive_with_files()
        except ChannelClosed:
            break
        if message["role"] == "candidate":
            message["ready_made"] = _ready_made(folder)
        if os.fork() == 0:
            channel.close()
            _finish(lambda: _keep(message, files))  # noqa: B023 - called before the next turn
        for file in files:
            os.close(file)
        reap()
    kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _warm_up() -> None:
    """Have what every process needs. What is frozen is never copied just because it was looked at."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns that there is no GPU to see
    for place in ROLES.values():
        importlib.import_module(place.partition(":")[0])
    for name in OPTIONAL:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name, dtype in itertools.product(FUNCTIONS, (torch.float32, torch.float64)):
        getattr(torch, name)(torch.full((1,), 0.5, dtype=dtype))
    if any(file.startswith("/dev/nvidia") for file in map(os.path.realpath, Path("/proc/self/fd").iterdir())):
        raise SystemExit("The warm parent opened the GPU while it warmed up, so that nothing it forks could use it.")
    gc.collect()
    gc.freeze()


@functools.cache
def _ready_made(folder: str) -> str | None:
    """What Triton compiles for itself before the first kernel of a process, in a folder; None where that is nothing.

    What it computes once for a process is done with it.
    """
    if "triton" not in sys.modules or not Path("/dev/nvidiactl").exists():
        return None
    place = os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-", dir=folder)
    try:
        importlib.import_module("triton.backends.nvidia.driver").CudaUtils()
        importlib.import_module("triton.runtime.cache").triton_key()  # reads all of Triton
    except Exception:  # noqa: BLE001 - whatever Triton lacks here, each process finds out by itself
        shutil.rmtree(place)
        return None
    for made in Path(place).rglob("*"):
        made.chmod(0o755)  # for whichever user a candidate is
    return place


def _keep(message: dict[str, Any], files: list[int]) -> None:
    """Be the warden of one process: start it, wait for its end or for the order to end it, leave nothing of it.

    It does not end with the nursery: whatever kills that, the process goes on, and somebody is left to end its tree.
    """
    be_called("stark-warden")
    adopt_orphans()
    lifeline, others = Channel.of(files[0]), files[1:]
    warden = os.getpid()
    child = os.fork()
    if child == 0:
        lifeline.close()
        _finish(lambda: _live(message, others, warden))
    for file in others:
        os.close(file)
    process = os.pidfd_open(child)
    lifeline.send(did="started", process=child, warden=warden)
    code = _wait(child, process, lifeline)
    kill_descendants()
    lifeline.send(code=code)


def _wait(child: int, process: int, lifeline: Channel) -> int | None:
    """How the process ended; None when it was still alive as nobody needed it any more."""
    select.select([process, lifeline.fileno()], [], [])
    process, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if process else None


def _live(message: dict[str, Any], files: list[int], warden: int) -> None:
    """Become what was asked for."""
    be_called(f"stark-{message['role']}")
    die_with(warden)
    os.setsid()
    if message["role"] in TIMED:
        go_first()
    channel, output, *more = files
    for source, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, standard)
    os.close(output)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    if ready_made := message.get("ready_made"):
        shutil.copytree(ready_made, os.environ["TRITON_CACHE_DIR"], dirs_exist_ok=True)
    tempfile.tempdir = None  # look it up again
    module, _, name = ROLES[message["role"]].partition(":")
    getattr(sys.modules[module], name)(Channel.of(channel), *more)


def _finish(life: Callable[[], None]) -> NoReturn:
    """Live in a fork and end there: nothing of the parent's goes on in it."""
    code = 1
    try:
        life()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the last stop of a process of its own
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(OSError, ValueError):  # a candidate may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
