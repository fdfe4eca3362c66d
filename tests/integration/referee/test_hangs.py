"""A candidate that hangs ends after seconds, and the lane goes on at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from candidate_sources import at_import, forward
from conformance.evaluator import RIGHT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Limits
from waiting import standstills
from worker_fixture import running_worker

LIMITS = Limits()  # as by default: a minute for all calls
WAITS = {
    "computes for ever": ("while True: pass", "compute"),
    "sleeps for ever": ("time.sleep(1e6)", "sleep"),
    "waits for itself": ("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", "lock"),
}


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        assert worker.judge(RIGHT).outcome is Outcome.OK  # all is warm
        yield worker.judge


@pytest.mark.parametrize("name", WAITS)
def test_a_hang_costs_seconds_and_the_next_one_is_judged(judge, name):
    body, reason = WAITS[name]
    with standstills() as late:
        report = judge(replace(RIGHT, candidate_source=forward(body), limits=LIMITS))
    assert report.outcome is Outcome.HANGS, report
    assert report.phases_s.total_s - sum(late) < 10.0
    assert reason in report.log or "unknown reason" in report.log, report.log
    assert judge(RIGHT).outcome is Outcome.OK


def test_a_hang_in_a_later_call_costs_no_more(judge):
    body = "self.calls = getattr(self, 'calls', 0) + 1; time.sleep(1e6 * (self.calls > 7)); return self.right(x)"
    report = judge(replace(RIGHT, candidate_source=forward(body), limits=LIMITS))
    assert (report.outcome, report.built) == (Outcome.HANGS, True), report


def test_a_candidate_that_compiles_when_it_is_first_called_is_no_hang(judge):
    body = """
        if not hasattr(self, "compiled"):
            for number in range(7):
                time.sleep(1)
                open(f"kernel-{number}", "w").close()
            self.compiled = True
        return self.right(x)"""
    report = judge(replace(RIGHT, candidate_source=forward(body), limits=LIMITS))
    assert report.outcome is Outcome.OK, report


def test_loading_can_hang_too(judge):
    report = judge(replace(RIGHT, candidate_source=at_import("time.sleep(1e6)"), limits=LIMITS))
    assert (report.outcome, report.built) == (Outcome.HANGS, False), report
    assert report.phases_s.total_s < 12.0
