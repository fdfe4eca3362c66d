"""Whole trees of processes are stopped, including children of threads and orphans."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from stark_worker.processes.process_tree import adopt_orphans, descendants, reap, signal_all, stop_descendants
from waiting import wait_until

# A child that a thread starts, with its own child, and an orphan.
TREE = """
import pathlib, subprocess, sys, threading, time
asleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
with_child = [sys.executable, "-S", "-c", f"import subprocess; subprocess.run({asleep!r})"]
orphan = [sys.executable, "-S", "-c", f"import subprocess; subprocess.Popen({asleep!r})"]
thread = threading.Thread(target=lambda: subprocess.run(with_child))
thread.start()
subprocess.run(orphan)
pathlib.Path(sys.argv[1]).touch()
thread.join()
"""
SIZE = 4


def below(process: int) -> dict[int, str]:
    return {number: found.state for number, found in descendants(process).items() if found.state != "Z"}


@pytest.fixture
def tree(tmp_path):
    """A process that adopts orphans, by number, with a tree below it."""
    orphaned = tmp_path / "orphaned"
    supervisor = os.fork()
    if supervisor == 0:
        adopt_orphans()
        with subprocess.Popen([sys.executable, "-S", "-c", TREE, str(orphaned)]):
            while True:
                time.sleep(0.05)
    try:
        # not before: the parent of the orphan counts while it exists
        wait_until(lambda: orphaned.exists() and len(below(supervisor)) == SIZE)
        yield supervisor
    finally:
        signal_all([*below(supervisor), supervisor], signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(supervisor, 0)
        reap()


def test_a_whole_tree_is_stopped_and_goes_on(tree):
    stopped = stop_descendants(tree)
    assert stopped >= set(below(tree))
    wait_until(lambda: set(below(tree).values()) == {"T"})
    signal_all(stopped, signal.SIGCONT)
    wait_until(lambda: "T" not in below(tree).values())
    assert len(below(tree)) == SIZE
