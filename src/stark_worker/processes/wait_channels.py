"""Finds out what the threads of another process wait for, from the kernel alone. No torch.

The process does not take part, so this works for one that hangs. The kernel names where a thread sleeps only to root
and to the process's own user, and some containers name nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from stark_worker.processes.process_tree import read_of_threads

# By the name of the kernel's function in which a thread sleeps.
REASONS = (
    (re.compile("futex"), "wait for a lock or another thread"),
    (re.compile("nanosleep|hrtimer"), "sleep"),
    (re.compile("wait4|do_wait|waitid"), "wait for another process to end"),
    (re.compile("pipe|poll|select|skb|recv|accept"), "wait for data from another process"),
    (re.compile("nv|uvm|os_acquire"), "wait in the GPU's driver"),
)
STATES = {"R": "compute", "D": "wait for a disk or a driver", "T": "are stopped"}
ASLEEP = "sleep for an unknown reason"


class Wait(NamedTuple):
    """A thread's state, and the kernel's function in which it sleeps; "0" or nothing if that is not known."""

    state: str
    channel: str


def waits(process: int) -> list[Wait]:
    """Return the wait of each thread; none if the process is gone."""
    states = (facts.rpartition(b")")[2].split()[:1] for facts in read_of_threads(process, "stat"))
    channels = read_of_threads(process, "wchan")
    return [
        Wait(state[0].decode(), channel.decode(errors="replace"))
        for state, channel in zip(states, channels, strict=False)
        if state
    ]


def describe_waits(found: Iterable[Wait]) -> str:
    """Return a phrase on all threads, the most frequent reason first."""
    reasons = Counter(map(_reason, found))
    return ", ".join(f"{count} threads {reason}" for reason, count in reasons.most_common()) or "no thread is visible"


def _reason(wait: Wait) -> str:
    known = (reason for pattern, reason in REASONS if pattern.search(wait.channel))
    return STATES.get(wait.state) or next(known, ASLEEP)
