"""Memory of a process, as the system counts it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from stark_worker.processes.usage import Footprint

SET_NAME = 15


@pytest.fixture
def unreadable_name():
    name = Path("/proc/self/comm").read_text().strip()
    assert ctypes.CDLL(None).prctl(SET_NAME, b"\xff\xfe", 0, 0, 0) == 0
    yield
    ctypes.CDLL(None).prctl(SET_NAME, name.encode(), 0, 0, 0)


def test_a_name_that_is_no_text_does_not_hide_the_memory(unreadable_name):
    footprint = Footprint(os.getpid())
    assert footprint.extra_bytes() is not None
