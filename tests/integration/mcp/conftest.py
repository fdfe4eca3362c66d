"""One server over HTTP, with one worker, for all tests of this folder."""

from __future__ import annotations

import socket
import subprocess

import pytest

from mcp_session import command, variables
from mcp_sources import FAST, LIBRARY, TASK
from waiting import wait_until


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("served")
    (place / "task.py").write_text(TASK)
    (place / "fast.py").write_text(FAST)
    (place / "library.py").write_text(LIBRARY)
    return place


@pytest.fixture(scope="package")
def server(folder):
    """A server over HTTP, which all tests share with its worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command("--http", "--port", str(port), "--root", str(folder))
    process = subprocess.Popen(words, env=variables(), stderr=subprocess.DEVNULL)
    wait_until(lambda: process.poll() is not None or answers(port))
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    process.wait()


def answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
