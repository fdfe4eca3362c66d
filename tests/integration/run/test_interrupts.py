"""Ctrl-C as a terminal sends it, to the whole process group: agents, compilers, referee and candidates get it too."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event, Thread

from stark.core.tree import Node
from stark.store.open import open_store
from stark_process import command, environment, stark_command
from waiting import stored, wait_until
from worker_fixture import EXIT_TIMEOUT_S, below

TASK = """\
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(257))

    def forward(self, x):
        return torch.relu(x * self.weight + 1.0) / (1.0 + x * x)


def get_inputs():
    return [torch.randn(64, 257)]


def get_init_inputs():
    return []
"""
ATTEMPTS = 4  # enough that Ctrl-C comes before the last one, also on a busy machine


@contextlib.contextmanager
def begun(task: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, str]]]:
    """A run in a process group of its own, and every process that was ever seen below it."""
    words = ["optimize", task, "--method", "stark", "--allow-weak-sandbox", "--attempts", ATTEMPTS, "--run", folder]
    process = subprocess.Popen(
        command(*words, "--set", "evaluation.torch_compile=false", "--set", "evaluation.final=false"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(XDG_CACHE_HOME=str(folder.parent)),  # nothing is built there, so a compiler works
        start_new_session=True,
    )
    seen: dict[int, str] = {}
    over = Event()

    def watch() -> None:
        while not over.wait(0.05):
            seen.update(below(process.pid))

    watcher = Thread(target=watch)
    watcher.start()
    try:
        yield process, seen
    finally:
        over.set()
        watcher.join()
        process.kill()
        process.communicate()


def wait_until_in_the_middle(folder: Path, seen: dict[int, str], process_name: str) -> None:
    """Until the first attempt has landed and a process of that name works for the next one."""
    wait_until(lambda: stored(folder, "nodes") >= 2)
    before = set(seen)
    wait_until(lambda: process_name in [name for number, name in list(seen.items()) if number not in before])


def left_of(seen: dict[int, str]) -> set[str]:
    """Return the names of processes that are still there after a moment."""
    until = time.monotonic() + EXIT_TIMEOUT_S
    while (found := {name for number, name in seen.items() if is_alive(number)}) and time.monotonic() < until:
        time.sleep(0.05)
    return found


def is_alive(number: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def nodes_of(folder: Path) -> list[Node]:
    with closing(open_store(folder, write=False)) as store:
        return store.nodes(store.runs()[0].id)


def test_ctrl_c_while_a_compiler_works_loses_nothing_and_leaves_no_process(tmp_path):
    task, folder = tmp_path / "task.py", tmp_path / "run"
    task.write_text(TASK)
    with begun(task, folder) as (process, seen):
        wait_until_in_the_middle(folder, seen, "cc1plus")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
        assert process.returncode == 130, out + err
        assert left_of(seen) == set()
    assert "Ended by: stopped" in out
    assert re.search(rf"^Continue: +.*resume {re.escape(str(folder))}", out, re.MULTILINE), out
    assert "Traceback" not in err
    stopped = nodes_of(folder)
    assert 2 <= len(stopped) <= ATTEMPTS
    finished = stark_command("resume", folder, XDG_CACHE_HOME=str(tmp_path))
    assert finished.returncode in (0, 3), finished.stderr  # how fast it is depends on the machine
    nodes = nodes_of(folder)
    assert nodes[: len(stopped)] == stopped
    assert [node.report.outcome.value for node in nodes] == ["ok"] * (ATTEMPTS + 1), "a signal is no fault of a kernel"
