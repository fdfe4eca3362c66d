"""Whole trees of processes are stopped, stand still and go on, and what moves in between is found out."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable

import pytest

from adversarial.processes import in_child
from integration.processes.supervised import EXIT_CODE, SLOTS, Counters, supervised
from stark_worker.processes.process_tree import threads
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.sandbox import syscalls
from stark_worker.sandbox.confine import confine
from waiting import wait_until

THREADS = 30
CLONE_VM, CLONE_VFORK, CLONE_PARENT = 0x100, 0x4000, 0x8000
F_SETOWN, F_SETSIG, SIGEV_SIGNAL = 8, 10, 0
libc = ctypes.CDLL(None)


def count(counters: Counters, slot: int) -> None:
    while True:
        counters[slot] += 1
        time.sleep(0.001)


def start(work: Callable[[], object]) -> int:
    """Do some work in a forked process that then waits; return its number."""
    child = os.fork()
    if child == 0:
        work()
        time.sleep(600)
        os._exit(0)
    return child


def start_orphan(work: Callable[[], object]) -> None:
    between = os.fork()
    if between == 0:
        start(work)
        os._exit(0)
    os.waitpid(between, 0)


def tree(counters: Counters) -> None:
    """Threads, a child in a session of its own, its child, and an orphan."""

    def child_with_child() -> None:
        os.setsid()
        start(lambda: count(counters, 1))
        count(counters, 0)

    start(child_with_child)
    start_orphan(lambda: count(counters, 2))
    for slot in range(3, 3 + THREADS):
        threading.Thread(target=count, args=(counters, slot), daemon=True).start()


def chain(counters: Counters) -> None:
    """Each link of a chain forks the next one and ends."""

    def link() -> None:
        while True:
            counters[0] += 1
            if os.fork():
                os._exit(0)

    start_orphan(link)


def goes_on(candidate, slots) -> None:
    before = candidate.counted()
    wait_until(lambda: all(candidate.counters[slot] > before[slot] for slot in slots))


def stands_still(candidate, for_s: float = 0.2) -> bool:
    before = candidate.counted()
    time.sleep(for_s)
    return candidate.counted() == before


def test_a_whole_tree_stands_still_and_goes_on(tmp_path):
    with supervised(tree, tmp_path) as candidate:
        for _ in range(20):
            goes_on(candidate, range(3 + THREADS))
            candidate.pause()
            assert stands_still(candidate, 0.02)
            began = time.perf_counter()
            assert began < candidate.resume() < time.perf_counter()
        candidate.pause()
        candidate.pause()  # nothing is stopped twice
        assert stands_still(candidate)
        candidate.resume()
        candidate.resume()
        goes_on(candidate, range(3 + THREADS))


def test_threads_that_outlive_the_first_one_are_stopped_too(tmp_path):
    def leave_a_thread(counters: Counters, slot: int) -> None:
        threading.Thread(target=count, args=(counters, slot), daemon=True).start()
        libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # ends this thread alone

    def leave_threads(counters: Counters) -> None:
        start(lambda: leave_a_thread(counters, 0))
        start_orphan(lambda: leave_a_thread(counters, 1))

    with supervised(leave_threads, tmp_path) as candidate:
        for _ in range(5):
            goes_on(candidate, range(2))
            candidate.pause()
            assert stands_still(candidate, 0.05)
            candidate.resume()


def test_a_confined_referee_stops_its_candidate_too(tmp_path):
    (tmp_path / "referee").mkdir()
    with supervised(tree, tmp_path) as candidate:

        def confined() -> tuple[bool, bool]:
            confine(tmp_path / "referee", memory_bytes=None, processes=64, gpu=False, own_user=False)
            candidate.pause()
            still = stands_still(candidate)
            candidate.resume()
            goes_on(candidate, range(3 + THREADS))
            return still, True

        assert in_child(confined) == (True, True)


def hash_on() -> None:
    while True:
        hashlib.sha256(bytes(2**24))  # without Python's lock


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_busy_threads_go_on_apart_and_main_threads_anywhere(tmp_path):
    everywhere = os.sched_getaffinity(0)
    with supervised(
        lambda _: [threading.Thread(target=hash_on, daemon=True).start() for _ in "ab"], tmp_path
    ) as candidate:
        for _ in range(5):
            time.sleep(0.05)
            candidate.pause()
            candidate.resume()
            main, *workers = sorted(threads(candidate._process))
            assert main.allowed == everywhere
            assert len(workers) == 2
            assert len(workers[0].allowed | workers[1].allowed) == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_that_a_held_thread_starts_may_run_anywhere(tmp_path):
    started = threading.Event()

    def work(counters: Counters) -> None:
        threading.Thread(target=hash_on, daemon=True).start()
        threading.Thread(target=start_more, args=(counters,), daemon=True).start()

    def start_more(counters: Counters) -> None:
        while not counters[0]:
            hashlib.sha256(bytes(2**20))
        threading.Thread(target=hash_on, daemon=True).start()
        started.wait()

    with supervised(work, tmp_path) as candidate:
        time.sleep(0.05)
        candidate.pause()
        candidate.resume()
        assert len(threads(candidate._process)) == 3
        candidate.counters[0] = 1
        wait_until(lambda: len(threads(candidate._process)) == 4)
        wait_until(lambda: max(threads(candidate._process)).allowed == os.sched_getaffinity(0))


def test_a_message_lets_it_go_on(tmp_path):
    with supervised(lambda _: None, tmp_path) as candidate:
        for number in range(5):
            candidate.pause()
            began = time.perf_counter()
            candidate.send(do=str(number))
            candidate.expect(str(number), 60.0)
            assert began < candidate.went_on_s() < time.perf_counter()


def test_no_chain_of_forks_outruns_the_stop(tmp_path):
    with supervised(chain, tmp_path) as candidate:
        wait_until(lambda: candidate.counters[0] > 20)
        candidate.pause()
        assert stands_still(candidate)
        candidate.resume()


def spawn_by_vfork(seconds: int, flags: int = 0) -> None:
    """Start a process that sleeps in the memory of this one, and wait for its end in a thread."""
    stack = ctypes.create_string_buffer(2**16)
    top = ctypes.c_void_p(ctypes.addressof(stack) + len(stack) - 64)
    order = CLONE_VM | CLONE_VFORK | flags | signal.SIGCHLD
    threading.Thread(target=libc.clone, args=(libc.sleep, top, order, seconds), daemon=True).start()
    time.sleep(0.1)


def test_a_short_wait_for_a_new_process_delays_the_stop_alone(tmp_path):
    with supervised(lambda _: spawn_by_vfork(1), tmp_path) as candidate:
        candidate.pause()
        candidate.resume()


@pytest.mark.parametrize("flags", [0, CLONE_PARENT], ids=["child", "sibling"])
def test_a_thread_that_cannot_stop_is_found_out(tmp_path, flags):
    with supervised(lambda _: spawn_by_vfork(60, flags), tmp_path) as candidate:
        with pytest.raises(Failure) as failed:
            candidate.pause()
        assert (failed.value.outcome, failed.value.rule) == (Outcome.REJECTED, "not_stopped")


def wake_by_timer(handler: Callable[..., None] = lambda *_: None) -> None:
    signal.signal(signal.SIGCONT, handler)  # the system stops a timer whose signal nobody handles
    event = struct.pack("QiiQQQQQQ", 0, signal.SIGCONT, SIGEV_SIGNAL, *[0] * 6)
    timer = ctypes.c_int()
    syscalls.call("timer_create", 1, ctypes.c_char_p(event), ctypes.byref(timer))
    often = struct.pack("4q", 0, 20_000_000, 0, 20_000_000)
    assert libc.syscall({"x86_64": 223, "aarch64": 110}[os.uname().machine], timer, 0, often, None) == 0


def wake_by_timer_and_stop_again() -> None:
    wake_by_timer(lambda *_: os.kill(os.getpid(), signal.SIGSTOP))


def leave_an_orphaned_group(counters: Counters) -> None:
    """The parent of a stopped group is killed by a timer."""

    def parent() -> None:
        def member() -> None:
            os.setpgid(0, 0)
            counters[0] = os.getpid()

        start(member)
        event = struct.pack("QiiQQQQQQ", 0, signal.SIGKILL, SIGEV_SIGNAL, *[0] * 6)
        timer = ctypes.c_int()
        syscalls.call("timer_create", 1, ctypes.c_char_p(event), ctypes.byref(timer))
        once = struct.pack("4q", 0, 0, 0, 300_000_000)
        libc.syscall({"x86_64": 223, "aarch64": 110}[os.uname().machine], timer, 0, once, None)

    start(parent)
    wait_until(lambda: counters[0])


def ready_after(work: Callable[[], object], counters: Counters) -> None:
    work()
    counters[0] = 1


WAKING = {
    "by a timer": lambda counters: ready_after(wake_by_timer, counters),
    "by a timer, for a moment": lambda counters: ready_after(wake_by_timer_and_stop_again, counters),
    "a child, by a timer": lambda counters: start(lambda: ready_after(wake_by_timer, counters)),
    "a child, by a timer, for a moment": lambda counters: start(
        lambda: ready_after(wake_by_timer_and_stop_again, counters)
    ),
    "an orphan, by a timer": lambda counters: start_orphan(lambda: ready_after(wake_by_timer, counters)),
    "an orphaned group": leave_an_orphaned_group,
}


@pytest.mark.parametrize("way", WAKING)
def test_what_wakes_without_a_sandbox_is_found_out(tmp_path, way):
    with supervised(WAKING[way], tmp_path) as candidate:
        wait_until(lambda: candidate.counters[0])
        candidate.pause()
        time.sleep(0.4)
        with pytest.raises(Failure) as failed:
            candidate.resume()
        assert (failed.value.outcome, failed.value.rule) == (Outcome.REJECTED, "woke_while_stopped")


@pytest.mark.parametrize("ends", [False, True], ids=["goes on", "ends"])
@pytest.mark.parametrize("slot", [0, 1, 2], ids=["child", "grandchild", "orphan"])
def test_a_signal_from_outside_is_found_out_at_the_next_pause(tmp_path, slot, ends):
    def numbered(counters: Counters) -> None:
        if ends:
            signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
        start(lambda: (counters.__setitem__(0, os.getpid()), start(lambda: counters.__setitem__(1, os.getpid()))))
        start_orphan(lambda: counters.__setitem__(2, os.getpid()))
        wait_until(lambda: all(counters[:3]))

    with supervised(numbered, tmp_path) as candidate:
        for _ in range(3):
            candidate.pause()
            candidate.resume()
        candidate.pause()
        os.kill(candidate.counters[slot], signal.SIGUSR1 if ends else 0)
        os.kill(candidate.counters[slot], signal.SIGCONT)
        time.sleep(0.05)
        candidate.send(do="go on")
        with pytest.raises(Failure) as failed:
            candidate.pause()
        assert failed.value.rule == "woke_while_stopped"


def test_a_process_that_ends_says_so_at_the_next_pause(tmp_path):
    with supervised(lambda _: None, tmp_path) as candidate:
        candidate.pause()
        candidate.send(do="end")
        failure = failure_in_turns(candidate)
        assert failure.outcome is Outcome.CRASH
        assert f"exit code {EXIT_CODE}" in failure.log


def test_a_process_that_is_killed_while_it_is_stopped_is_reported_as_killed(tmp_path):
    with supervised(lambda _: None, tmp_path) as candidate:
        candidate.pause()
        os.kill(candidate._process, signal.SIGKILL)
        assert failure_in_turns(candidate).outcome is Outcome.OUT_OF_MEMORY


def failure_in_turns(candidate) -> Failure:
    """The failure by which a pause or its end reports the end of the process."""
    while True:
        try:
            candidate.pause()
            candidate.resume()
        except Failure as failure:
            return failure


def test_a_stopped_tree_ends_with_its_lifeline(tmp_path):
    with supervised(tree, tmp_path) as candidate:
        candidate.pause()
    with contextlib.suppress(ProcessLookupError):
        os.kill(candidate._process, 0)
        pytest.fail("it is still there")
    assert SLOTS > 3 + THREADS
