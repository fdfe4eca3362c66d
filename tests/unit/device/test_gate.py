"""The two words of a gate, without a device: a thread stands for the candidate's stream."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
import time

import pytest

from stark_worker.device import gate as module
from stark_worker.device.arena import PAGE
from stark_worker.device.gate import DONE, STEP, Gate, Steps, open_gate
from stark_worker.protocol.errors import GpuUnhealthy

SOON_S = 20.0  # for a thread on a busy machine


@pytest.fixture
def page():
    return mmap.mmap(-1, PAGE)


def words(page: mmap.mmap) -> tuple[memoryview, memoryview]:
    """The gate word and the done word, as another process maps them."""
    whole = memoryview(page).cast("I")
    return whole[:1], whole[DONE // 4 : DONE // 4 + 1]


def test_the_numbers_rise_so_that_a_gate_stays_open_for_earlier_calls(page):
    gate, (word, _) = Gate(page), words(page)
    assert (gate.opened, word[0]) == (0, 0)
    for number in (1, 2, 3):
        before = time.perf_counter()
        assert before <= gate.open() <= time.perf_counter()
        assert (gate.opened, word[0]) == (number, number)


def test_an_end_is_seen_when_it_comes_and_not_before(page):
    gate, (word, done) = Gate(page), words(page)
    wrote = []

    def work() -> None:
        while word[0] < 1:
            pass
        time.sleep(0.05)
        wrote.append(time.perf_counter())
        done[0] = 1

    thread = threading.Thread(target=work)
    thread.start()
    opened = gate.open()
    ended = gate.await_done(opened + SOON_S)
    thread.join()
    assert ended is not None
    assert opened + 0.05 <= wrote[0] <= ended


def test_without_an_end_there_is_no_time(page):
    gate = Gate(page)
    opened = gate.open()
    assert gate.await_done(opened + 0.02) is None
    assert time.perf_counter() >= opened + 0.02


@pytest.mark.parametrize("number", [1, 3, 2**32 - 1])
def test_the_end_of_another_call_is_not_taken_for_this_one(page, number):
    gate, (_, done) = Gate(page), words(page)
    gate.open()
    gate.open()
    done[0] = number
    assert gate.await_done(time.perf_counter() + 0.01) is None
    done[0] = 2
    assert gate.await_done(time.perf_counter() + SOON_S) is not None


def test_both_words_lie_in_one_sealed_page_on_lines_of_their_own():
    with contextlib.ExitStack() as held:
        file, gate = open_gate(held)
        word, done = words(mmap.mmap(file, PAGE))
        gate.open()
        assert word[0] == 1
        done[0] = 1
        assert gate.await_done(time.perf_counter() + SOON_S) is not None
        assert os.fstat(file).st_size == PAGE
        seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
        assert seals & fcntl.F_SEAL_SHRINK, "a page that is gone would kill the referee"
        assert seals & fcntl.F_SEAL_SEAL
        assert 128 <= DONE <= PAGE - 4
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


class QueuedWords:
    """Stands for a stream: what is queued is done in its order by ``run``, as a device does it."""

    def __init__(self, page: mmap.mmap) -> None:
        self._words, self.queued = memoryview(page).cast("I"), []

    def queue_wait(self, offset: int, number: int) -> None:
        self.queued.append((True, offset, number))

    def queue_write(self, offset: int, number: int) -> None:
        self.queued.append((False, offset, number))

    def close(self) -> None: ...

    def run(self) -> None:
        for is_wait, offset, number in self.queued:
            while is_wait and self._words[offset // 4] < number:
                time.sleep(0)
            if not is_wait:
                self._words[offset // 4] = number
        self.queued.clear()


@pytest.fixture
def steps(monkeypatch):
    monkeypatch.setattr(module, "WordStream", QueuedWords)
    with contextlib.ExitStack() as held:
        yield Steps(held)


def test_steps_of_ones_own_work_run_when_they_are_taken(steps):
    for _ in range(3):
        for step in (1, 2):
            with steps.queued(step):
                pass
        thread = threading.Thread(target=steps._stream.run)
        thread.start()
        steps.take(1)
        assert len({steps._words[step * STEP // 4] for step in (1, 2)}) == 2, "the second step still waits"
        steps.take(2)
        thread.join()


def test_all_queued_steps_can_be_taken_after_a_call_that_failed(steps):
    for step in (1, 2):
        with steps.queued(step):
            pass
    thread = threading.Thread(target=steps._stream.run)
    thread.start()
    steps.take(1)
    steps.take_all()
    thread.join()


def test_a_device_that_does_not_answer_is_unhealthy(steps, monkeypatch):
    monkeypatch.setattr(module, "STEP_TIMEOUT_S", 0.01)
    with steps.queued(1):
        pass
    with pytest.raises(GpuUnhealthy, match="did not end"):
        steps.take(1)
