"""Variants of a candidate on a real worker: the fastest correct one wins, and none gains from another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from candidate_sources import forward
from conformance.evaluator import KERNEL, RIGHT
from stark_worker.protocol.errors import Outcome
from worker_fixture import running_worker

SLEEPS = 'CONSTANTS = {"MS": 9, "WRONG": 0}\n' + forward(
    'time.sleep(CONSTANTS["MS"] / 1e3); return self.right(x) + CONSTANTS["WRONG"]'
)
MACRO = 'CONSTANTS = {"TIMES": 1}\n' + KERNEL.replace(
    "no_implicit_headers=True", "extra_cflags=[f\"-DTIMES={CONSTANTS['TIMES']}\"], no_implicit_headers=True"
).replace("i < rows * columns; ++i", "i < rows * columns * TIMES; ++i").replace(
    "x[i]", "x[i % (rows * columns)]"
).replace("out[i]", "out[i % (rows * columns)]")
MARK = """
CONSTANTS = {"NUMBER": 0}
""" + forward(
    """
        own = f"mark-{CONSTANTS['NUMBER']}"
        found = [name for name in (*os.listdir(os.environ["TMPDIR"]), *os.listdir(".")) if name.startswith("mark-")]
        assert set(found) <= {own}, found
        open(os.path.join(os.environ["TMPDIR"], own), "w").close()
        return self.right(x)"""
)


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        yield worker


def judge(worker, source, *variants, **changes):
    return worker.judge(replace(RIGHT, candidate_source=source, variants=variants, **changes))


def test_the_fastest_correct_one_is_judged_in_full(worker):
    tried = ({"MS": 8}, {"MS": 0, "WRONG": 1}, {"MS": 2}, {"MS": 5})
    report = judge(worker, SLEEPS, *tried, with_labels=True)
    assert report.outcome is Outcome.OK, report.log
    assert [each.outcome for each in report.variants] == [Outcome.OK, Outcome.WRONG_RESULT, Outcome.OK, Outcome.OK]
    assert [each.won for each in report.variants] == [False, False, True, False]
    assert [each.constants for each in report.variants] == list(tried)
    assert 2.0 < report.timing.median_ms < 5.0
    assert len(report.timing.samples_ms) > 8, "in full, with labels"
    assert report.labels.other_shapes
    assert worker.left() == (set(), set())


def test_what_fails_in_every_variant_is_a_failure_with_its_log(worker):
    report = judge(worker, SLEEPS, {"WRONG": 1, "MS": 0}, {"WRONG": 2, "MS": 0})
    assert (report.outcome, report.timing) == (Outcome.WRONG_RESULT, None)
    assert len(report.variants) == 2
    assert "differs" in report.log


def test_macros_of_the_compiler_are_built_for_each(worker):
    report = judge(worker, MACRO, {"TIMES": 64}, {"TIMES": 1})
    assert report.outcome is Outcome.OK, report.log
    assert [each.won for each in report.variants] == [False, True]
    slow, quick = (each.median_ms for each in report.variants)
    assert slow > quick


def test_a_constant_that_the_source_lacks_is_a_failure_of_the_candidate(worker):
    report = judge(worker, KERNEL, {"BLOCK": 64})
    assert (report.outcome, report.built) == (Outcome.COMPILE_ERROR, False)
    assert "BLOCK" in report.log


def test_no_variant_finds_files_of_another(worker):
    report = judge(worker, MARK, {"NUMBER": 1}, {"NUMBER": 2}, {"NUMBER": 3})
    assert [each.outcome for each in report.variants] == [Outcome.OK] * 3, report.log
