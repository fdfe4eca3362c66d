"""Shared by all suites: helper modules on the path, the profile of hypothesis, and a lock to run alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Outside the repository, where pytest would come across it when it collects.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(Path(tempfile.gettempdir()) / "stark-hypothesis"))

# No deadline: how long an example takes is no property of the code on a busy machine.
# The same examples every time, so that a change is judged by what it changes; others are sought on purpose with
# --hypothesis-profile=explore.
settings.register_profile("stark", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("stark")


@pytest.fixture(autouse=True)
def alone(tmp_path_factory) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Keeps tests in other processes waiting, for what a busy machine made doubtful; each has a share of one lock."""
    with (tmp_path_factory.getbasetemp().parent / "alone.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        @contextlib.contextmanager
        def wait() -> Iterator[None]:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
            fcntl.flock(file, fcntl.LOCK_SH)

        yield wait
