"""Baselines are measured once for each task, device and version."""

from __future__ import annotations

from dataclasses import replace

from stark.evaluation.baseline_cache import BaselineCache
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Isolation, Level
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import EvalRequest, Score

DEVICE = DeviceFacts("a device", "cpu", bandwidth_gb_s=10.0, toolchain={"torch": "2.13"})
REQUEST = EvalRequest("task", "baseline")
REPORT = EvalReport(Outcome.OK, Timing((1.0, 2.0)), isolation=Isolation(Level.STANDARD))


def test_what_was_kept_is_found_where_nothing_differs(tmp_path):
    BaselineCache(DEVICE, tmp_path).keep(REQUEST, REPORT)
    assert BaselineCache(replace(DEVICE, bandwidth_gb_s=11.0), tmp_path).find(REQUEST) == REPORT
    others = [
        (DEVICE, replace(REQUEST, task_source="another task")),
        (DEVICE, replace(REQUEST, score=Score.KERNELBENCH)),
        (DEVICE, replace(REQUEST, tf32=True)),
        (replace(DEVICE, toolchain={"torch": "2.14"}), REQUEST),
        (replace(DEVICE, name="another device"), REQUEST),
    ]
    assert [BaselineCache(device, tmp_path).find(request) for device, request in others] == [None] * 5


def test_what_could_not_run_is_tried_again(tmp_path):
    kept = BaselineCache(DEVICE, tmp_path / "new")
    kept.keep(REQUEST, EvalReport(Outcome.COMPILE_ERROR))
    assert kept.find(REQUEST) is None


def test_a_baseline_of_a_busy_machine_is_timed_again(tmp_path):
    kept = BaselineCache(DEVICE, tmp_path)
    kept.keep(REQUEST, replace(REPORT, busy_warning="others kept 1.0 of 2 cores busy"))
    assert kept.find(REQUEST) is None


def test_a_damaged_entry_is_none(tmp_path):
    kept = BaselineCache(DEVICE, tmp_path)
    kept.keep(REQUEST, REPORT)
    next(tmp_path.iterdir()).write_text("{")
    assert kept.find(REQUEST) is None
