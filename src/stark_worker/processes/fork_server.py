"""The fork server: it has imported torch, has no threads and never touches a GPU, so its forks are ready at once.

It does nothing but fork. Each process it forks gets a supervisor, which adopts all that the process leaves behind. The
supervisor stops and continues the whole tree as the holder of the lifeline orders. It ends the tree when the lifeline
is released. When the process that started the fork server
is gone, everything ends and its folder is removed. There are two fork servers: a candidate and a referee never share a
parent.
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

from stark_worker.processes.channel import Channel, ChannelClosed, MessageMalformed
from stark_worker.processes.placement import Placement
from stark_worker.processes.process_tree import (
    TIMED_NICENESS,
    adopt_orphans,
    die_with_parent,
    hide_memory,
    kill_descendants,
    raise_priority,
    reap,
    set_process_name,
)
from stark_worker.processes.standstill import NotStopped, Standstill

# Each role is a function. It gets its channel and the other files that were sent with the order.
ROLES = {
    "device": "stark_worker.device.facts:main",
    "peaks": "stark_worker.device.peaks:main",
    "referee": "stark_worker.referee.referee:main",
    "candidate": "stark_worker.candidate.process:main",
    "reader": "stark_worker.candidate.build_process:read",
    "compiler": "stark_worker.candidate.build_process:compile_extension",
}
TIMED_ROLES = ("device", "peaks", "referee", "candidate")  # compilers can wait
SUPERVISOR_NICENESS = 2 * TIMED_NICENESS  # a busy tree must not delay its own stop
# Slow to import and not always installed. Triton imports the last one for the first kernel.
OPTIONAL_MODULES = ("triton", "triton.language", "triton.experimental.gluon.nvidia.hopper")
# Torch computes these by MKL, which chooses an implementation at the first call. If several threads make that call at
# once, one of them can get half the digits (pytorch/pytorch#188792).
MKL_FUNCTIONS = (
    *("acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "expm1", "lgamma", "log", "log10"),
    *("log1p", "log2", "rsqrt", "sin", "sinh", "sqrt", "tan", "tanh", "ceil", "floor", "round", "trunc"),
)


def main(control: int, folder: str) -> NoReturn:
    """Fork the processes that are asked for, until the other end of the channel closes."""
    set_process_name("stark-forksrv")
    hide_memory()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _warm_up()
    channel = Channel.from_descriptor(control)
    while True:
        try:
            message, files = channel.receive_with_files()
        except ChannelClosed:
            break
        if message["role"] == "candidate":
            message["triton_cache"] = _triton_cache(folder)
        if os.fork() == 0:
            channel.close()
            _run_and_exit(lambda: _supervise(message, files))  # noqa: B023 - called before the next iteration
        for file in files:
            os.close(file)
        reap()
    kill_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _warm_up() -> None:
    """Import what every process needs. Frozen objects are not copied when a fork merely reads them."""
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # it warns that no GPU is visible
    for function in ROLES.values():
        importlib.import_module(function.partition(":")[0])
    for name in OPTIONAL_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name, dtype in itertools.product(MKL_FUNCTIONS, (torch.float32, torch.float64)):
        getattr(torch, name)(torch.full((1,), 0.5, dtype=dtype))
    if any(file.startswith("/dev/nvidia") for file in map(os.path.realpath, Path("/proc/self/fd").iterdir())):
        raise SystemExit("The fork server opened the GPU while it warmed up, so its forks could not use it.")
    gc.collect()
    gc.freeze()


@functools.cache
def _triton_cache(folder: str) -> str | None:
    """Return a folder with what Triton compiles before the first kernel of a process; None without Triton or a GPU.

    Triton's once-per-process work is then done in this process too, and its forks inherit it.
    """
    if "triton" not in sys.modules or not Path("/dev/nvidiactl").exists():
        return None
    compiled = os.environ["TRITON_CACHE_DIR"] = tempfile.mkdtemp(prefix="triton-", dir=folder)
    try:
        importlib.import_module("triton.backends.nvidia.driver").CudaUtils()
        importlib.import_module("triton.runtime.cache").triton_key()  # reads all of Triton
    except Exception:  # noqa: BLE001 - a process that needs Triton meets and reports the same error
        shutil.rmtree(compiled)
        return None
    for path in Path(compiled).rglob("*"):
        path.chmod(0o755)  # a candidate may run as any user
    return compiled


def _supervise(message: dict[str, Any], files: list[int]) -> None:
    """Start one process, wait for its end or for the order to end it, and kill all that it started.

    The supervisor survives the fork server, so that a tree can be ended even if the fork server was killed.
    """
    set_process_name("stark-supervise")
    adopt_orphans()
    lifeline, others = Channel.from_descriptor(files[0]), files[1:]
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        lifeline.close()
        _run_and_exit(lambda: _play_role(message, others, supervisor))
    for file in others:
        os.close(file)
    os.setsid()
    raise_priority(SUPERVISOR_NICENESS)
    process = os.pidfd_open(child)
    lifeline.send(did="started", process=child, supervisor=supervisor)
    code = _obey(child, process, lifeline)
    kill_descendants()
    lifeline.send(code=code)


def _obey(child: int, process: int, lifeline: Channel) -> int | None:
    """Obey the holder of the lifeline until the process ends; return its exit code, None if it was released before."""
    placement, standstill = Placement(), None
    with contextlib.suppress(ChannelClosed, MessageMalformed):
        while True:
            wait_s = placement.look_again_s if standstill is None else None
            ready, *_ = select.select([process, lifeline.fileno()], [], [], wait_s)
            if process in ready:
                break
            order = lifeline.receive().get("do") if ready else None
            if order is None:
                placement.free_new_threads()
            elif order == "stop" and standstill is None:
                standstill = _try_to_stop(placement)
                lifeline.send(did="stopped" if standstill else "not stopped")
            elif order == "continue" and standstill is not None:
                lifeline.send(did="continued", **standstill.end()._asdict())
                standstill = None
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _try_to_stop(placement: Placement) -> Standstill | None:
    try:
        return Standstill(placement)
    except NotStopped:
        return None


def _play_role(message: dict[str, Any], files: list[int], supervisor: int) -> None:
    """Set up this process as ordered and run its role."""
    set_process_name(f"stark-{message['role']}")
    die_with_parent(supervisor)
    os.setsid()
    if message["role"] in TIMED_ROLES:
        raise_priority()
    channel, output, *more = files
    for source, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, standard)
    os.close(output)
    os.chdir(message["folder"])
    os.environ.clear()
    os.environ.update(message["environment"])
    if triton_cache := message.get("triton_cache"):
        shutil.copytree(triton_cache, os.environ["TRITON_CACHE_DIR"], dirs_exist_ok=True)
    tempfile.tempdir = None  # forget the parent's
    module, _, name = ROLES[message["role"]].partition(":")
    getattr(sys.modules[module], name)(Channel.from_descriptor(channel), *more)


def _run_and_exit(run: Callable[[], None]) -> NoReturn:
    """Run a function in a fork and exit without the parent's cleanup."""
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the last stop of a process of its own
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(OSError, ValueError):  # a candidate may have closed them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
