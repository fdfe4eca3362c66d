"""The phases of an evaluation: no second is lost or counted twice, from the queue to the stored run."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace

import pytest

from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Phase, Phases, sum_phases
from stark_worker.protocol.report_text import format_phases, report_facts
from stark_worker.timing.phase_clock import PhaseClock

FAILED = EvalReport(Outcome.CRASH)
SOME = Phases(queue=1.0, build=2.0, time=0.5)


def test_each_phase_is_a_field():
    assert list(asdict(Phases())) == list(Phase)


def test_a_phase_ends_the_one_before_and_may_come_again():
    began = time.monotonic()
    clock = PhaseClock(Phase.QUEUE)
    time.sleep(0.02)
    clock.begin(Phase.BUILD)
    clock.begin(Phase.QUEUE)
    time.sleep(0.02)
    found, took = clock.read(), time.monotonic() - began
    assert found.queue > 0.04 > found.build
    assert found.total_s == pytest.approx(took, abs=0.01)


def test_what_the_referee_measured_is_a_part_of_the_time_around_it():
    clock = PhaseClock(Phase.START)
    time.sleep(0.03)
    phases = clock.add_to(replace(FAILED, phases_s=Phases(load=0.01, check=0.01))).phases_s
    assert (phases.load, phases.check) == (0.01, 0.01)
    assert phases.total_s == pytest.approx(0.03, abs=0.01)
    assert clock.add_to(FAILED).phases_s.start >= 0.03


def test_a_report_keeps_its_phases_and_an_older_one_is_read_without():
    report = replace(FAILED, phases_s=SOME)
    assert from_json(EvalReport, to_json(report)) == report
    data = json.loads(to_json(report))
    del data["phases_s"]
    assert from_json(EvalReport, json.dumps(data)).phases_s is None


@pytest.mark.parametrize("bad", ["-1.0", "1e999", "NaN", '"1"', "true"])
def test_a_phase_is_a_finite_time(bad):
    with pytest.raises(ProtocolError):
        from_json(EvalReport, f'{{"outcome": "crash", "phases_s": {{"load": {bad}}}}}')


def test_sums_leave_out_what_nobody_measured():
    assert sum_phases([None, SOME, SOME]) == Phases(queue=2.0, build=4.0, time=1.0)
    assert sum_phases([None]) == Phases()


def test_the_text_names_the_phases_that_took_time():
    assert format_phases(SOME) == "3.5 s (queue 1.0, build 2.0, time 0.5)"
    assert ("phases", format_phases(SOME)) in report_facts(replace(FAILED, phases_s=SOME))
    assert not [name for name, _ in report_facts(FAILED) if name == "phases"]
