"""Exploits get what they deserve and honest kernels pass: the part that runs with every change.

A fixed half of the exploits; ``benchmarks/trust.py`` runs all, those that are known to get through included, and tells
whether what is accepted takes its true time.
"""

from __future__ import annotations

import asyncio

import pytest

from adversarial import honest, honest_gpu, zoo
from stark.evaluation.local import LocalEvaluator
from stark.settings import EvaluationSettings
from stark_worker.levels import Level
from stark_worker.protocol import Outcome, Target

ALL = [zoo.read(path) for path in sorted((zoo.HERE / "exploits").glob("*.py"))]
STOPPED = {exploit.name: exploit for exploit in ALL if "cpu" in exploit.targets and exploit.known is None}
TRIED = sorted(STOPPED)[::2]  # all of them take too long for every change
HONEST = {each.name: each for each in honest.corpus()}


@pytest.fixture(scope="module")
def judge():
    with asyncio.Runner() as runner:
        evaluator = LocalEvaluator(EvaluationSettings(allow_weak_sandbox=True))
        runner.run(evaluator.__aenter__())
        yield lambda request: runner.run(evaluator.evaluate(request))
        runner.run(evaluator.__aexit__(None, None, None))


@pytest.mark.parametrize("name", TRIED)
def test_the_exploit_gets_what_it_deserves(judge, name):
    exploit = STOPPED[name]
    report = judge(exploit.request(Target.CPU))
    if report.sandbox == Level.WEAK and "contained" in exploit.expect:
        pytest.skip("a weak sandbox does not contain it, as docs/trust.md says")
    assert exploit.as_expected(report), (report.outcome, report.rule, report.log)


@pytest.mark.parametrize("name", sorted(HONEST)[::12])
def test_an_honest_kernel_passes_unflagged(judge, name):
    report = judge(HONEST[name].request(Target.CPU))
    assert report.outcome is Outcome.OK, report.log
    assert "precision" not in report.checks


def test_there_are_as_many_as_promised():
    assert len(ALL) >= 60
    assert len(TRIED) >= 35
    assert len({each.source for each in HONEST.values()}) >= 100
    assert len(honest_gpu.corpus(Target.CUDA) + honest_gpu.corpus(Target.TRITON)) >= 40


@pytest.mark.parametrize("exploit", ALL, ids=lambda exploit: exploit.name)
def test_an_exploit_says_what_it_is(exploit):
    assert exploit.tries.endswith(".")
    assert (zoo.HERE / "tasks" / f"{exploit.task}.py").exists()
    assert set(exploit.targets) <= set(Target)
    outcomes = {outcome.value for outcome in Outcome} | {"ok-at-true-time", "contained"}
    assert {expected.split()[0] for expected in exploit.expect} <= outcomes
    assert "ModelNew" in exploit.source
