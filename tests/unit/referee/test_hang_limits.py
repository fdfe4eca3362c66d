"""The limit of one call, and the words on what a hanging candidate waits for."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.device.cuda_arena import describe_delay
from stark_worker.processes.wait_channels import Wait, describe_waits, waits
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.referee.hangs import await_answer, call_limit_s, compiles, load_limit_s

SECONDS = st.floats(1e-6, 1e4)


@given(SECONDS, SECONDS)
def test_a_call_has_at_least_five_seconds_and_at_most_the_deadline(reference_s, run_s):
    limit_s = call_limit_s(reference_s, run_s)
    assert min(5.0, run_s) <= limit_s <= run_s
    assert limit_s >= min(reference_s, run_s), "the reference itself would be in time"


def test_usual_limits_end_a_hang_within_ten_seconds():
    assert call_limit_s(0.015, 60.0) == 5.0
    assert load_limit_s(4 * 10**6, 300.0) < 10.0
    assert load_limit_s(4 * 10**9, 300.0) > 60.0, "weights of gigabytes are drawn on the host"
    assert call_limit_s(0.01, 900.0) == 75.0, "torch.compile thinks for long"


class StuckCandidate:
    """A candidate that never answers; files appear in its folder until ``files_s``."""

    def __init__(self, folder, files_s: float = 0.0) -> None:
        self.folder, self._until = folder, time.monotonic() + files_s

    def spin(self, _: float) -> None: ...

    def receive(self, did: str, within_s: float):
        time.sleep(within_s)
        if time.monotonic() < self._until:
            (self.folder / "kernel.cubin").write_bytes(os.urandom(8))
        raise TimeoutError

    def failure(self, outcome, log):
        return Failure(outcome, log)

    def timeout(self, did):
        return Failure(Outcome.TIMEOUT, did)

    def describe_waits(self):
        return "1 threads sleep"

    def cpu_s_of_others(self):
        return {}


def outcome_of(candidate, within_s, limit_s, did="done"):
    began = time.monotonic()
    with pytest.raises(Failure) as caught:
        await_answer(candidate, did, within_s, limit_s, device=lambda: "The device is idle.")
    return caught.value.outcome, caught.value.log, time.monotonic() - began


def test_a_candidate_that_does_nothing_hangs_after_its_limit(tmp_path):
    outcome, log, took_s = outcome_of(StuckCandidate(tmp_path), 30.0, 0.1)
    assert (outcome, took_s < 5.0) == (Outcome.HANGS, True)
    assert log.endswith("In its process 1 threads sleep. The device is idle.")


def test_one_that_compiles_has_until_its_deadline(tmp_path):
    outcome, _, took_s = outcome_of(StuckCandidate(tmp_path, files_s=60.0), 0.5, 0.1)
    assert (outcome, took_s >= 0.5) == (Outcome.TIMEOUT, True)


def test_one_that_stops_compiling_hangs_from_then_on(tmp_path):
    outcome, _, took_s = outcome_of(StuckCandidate(tmp_path, files_s=0.35), 30.0, 0.1)
    assert (outcome, 0.35 < took_s < 5.0) == (Outcome.HANGS, True)


def test_files_of_earlier_calls_are_no_sign(tmp_path):
    (tmp_path / "old.cubin").write_bytes(b"")
    assert not compiles(StuckCandidate(tmp_path), time.time() + 1.0)
    assert compiles(StuckCandidate(tmp_path), time.time() - 60.0)


def test_the_threads_of_a_process_are_counted():
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    found = waits(os.getpid())
    release.set()
    thread.join()
    assert len(found) >= 2
    assert "compute" in describe_waits(found), "this thread runs while it looks"


def test_waits_are_put_in_words():
    found = [Wait("S", "futex_wait_queue"), Wait("S", "futex_do_wait"), Wait("R", "0"), Wait("S", "hrtimer_nanosleep")]
    assert describe_waits(found) == "2 threads wait for a lock or another thread, 1 threads compute, 1 threads sleep"
    assert describe_waits([Wait("S", "0")]) == "1 threads sleep for an unknown reason"
    assert describe_waits([]) == "no thread is visible"


def test_a_slow_change_of_process_means_a_kernel_without_end():
    assert "without end" in describe_delay(2.4)
    assert "on the host" in describe_delay(0.15)
