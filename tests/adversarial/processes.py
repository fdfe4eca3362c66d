"""Steps in processes of their own, as this user or as an ordinary one."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stark_worker.sandbox import landlock, mounts, syscalls

ROOT = os.geteuid() == 0
LANDLOCK = landlock.version() > 0
NOBODY = 65534
PR_SET_DUMPABLE = 4
# How a process that loads our source finds the sockets it talks to others by.
CHANNELS = """
def channels():
    return [number for number in range(3, 64) if is_socket(number)]

def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
"""


def in_child(step: Callable[[], Any]) -> Any:
    """Return or raise what a step does in a process of its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = step()
        except BaseException as error:  # noqa: BLE001 - sent to the parent
            answer = error
        with os.fdopen(writing, "wb") as answers:
            answers.write(pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        answer = pickle.loads(answers.read())
    os.waitpid(child, 0)
    if isinstance(answer, BaseException):
        raise answer
    return answer


def as_ordinary_user(step: Callable[[], Any]) -> Any:
    """The step's answer as an ordinary user. A root that tests may have its Python where others cannot read."""
    return in_child((lambda: _without_root(step)) if ROOT else step)


def _without_root(step: Callable[[], Any]) -> Any:
    syscalls.unshare(syscalls.NEW_MOUNTS)
    mounts.make_private()
    places = [sys.prefix, sys.base_prefix, *sys.path, tempfile.gettempdir()]
    mounts.expose_paths(Path(place) for place in places if place)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    syscalls.prctl(PR_SET_DUMPABLE, 1)  # a change of user makes a process unreadable, unlike an ordinary one
    return step()


def _may_separate() -> bool:
    try:
        in_child(lambda: syscalls.unshare(syscalls.NEW_MOUNTS))
    except OSError:
        return False
    return True


NAMESPACES = _may_separate()  # as for root outside of containers
