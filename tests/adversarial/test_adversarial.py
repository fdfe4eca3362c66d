"""Exploits get what they deserve and honest kernels pass: the part that runs with every change.

To time a kernel takes ten times as long as to refuse it. So this runs half of the exploits that are refused, but few of
those that are timed, and few honest kernels. ``benchmarks/proofs/trust.py`` runs all, also the known successes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adversarial import honest, honest_gpu, zoo
from paths import ROOT
from stark.core.settings import EvaluationSettings
from stark.evaluation.local import LocalEvaluator
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Level
from stark_worker.protocol.report import Check
from stark_worker.protocol.request import Target

ALL = [zoo.read(path) for path in sorted((zoo.HERE / "exploits").glob("*.py"))]
STOPPED = {exploit.name: exploit for exploit in ALL if "cpu" in exploit.targets and exploit.known is None}
REFUSED = [name for name, exploit in sorted(STOPPED.items()) if not exploit.may_pass]
TIMED = [name for name, exploit in sorted(STOPPED.items()) if exploit.may_pass]
TRIED = [*REFUSED[::2], *TIMED[2::6]]
HONEST = {each.name: each for each in honest.corpus()}
QUICK = ["zeros"]
QUICK_HONEST = ["relu: eager"]


@pytest.fixture(scope="module")
def judge():
    with asyncio.Runner() as runner:
        evaluator = LocalEvaluator(EvaluationSettings(allow_weak_sandbox=True))
        runner.run(evaluator.__aenter__())
        yield lambda request: runner.run(evaluator.evaluate(request))
        runner.run(evaluator.__aexit__(None, None, None))


@pytest.mark.parametrize("name", TRIED)
def test_the_exploit_gets_what_it_deserves(judge, name, alone):
    exploit = STOPPED[name]
    request = exploit.request(Target.CPU, in_turns=exploit.is_timed)
    report = judge(request)
    if exploit.only_time_speaks_against_it(report):
        with alone():
            rounds = (judge(request) for _ in range(zoo.ROUNDS - 1))
            report = next((each for each in rounds if not exploit.only_time_speaks_against_it(each)), report)
    if report.sandbox_level == Level.WEAK and "contained" in exploit.expect:
        pytest.skip("a weak sandbox does not contain it, as docs/trust.md says")
    assert exploit.as_expected(report), (report.outcome, report.rule, report.log, zoo.true_share(report))


def run_benchmark(results: Path) -> subprocess.CompletedProcess[str]:
    names = [*QUICK, *QUICK_HONEST]
    command = [sys.executable, "benchmarks/proofs/trust.py", "--part", "exploits", "--part", "honest", "--only", *names]
    environment = os.environ | {"STARK_RESULTS": str(results)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_the_benchmark_tells_what_came_of_each_and_what_it_took_over(judge, tmp_path):
    if judge(STOPPED[QUICK[0]].request(Target.CPU)).sandbox_level == Level.WEAK:
        pytest.skip("the benchmark wants candidates locked in as users get it")
    ended = run_benchmark(tmp_path)
    written = (tmp_path / "trust-cpu.json").read_bytes()
    found = json.loads(written)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "tried    1   rejected 1   accepted at its true time 0   fooled 0" in ended.stdout
    assert "tried    1   rejected 0   flagged 0" in ended.stdout
    assert sorted(found["exploits"]) == sorted(QUICK)
    assert "exploits: 1 judged by this call, 0 taken over" in ended.stdout
    assert "--fresh" not in ended.stdout
    again = run_benchmark(tmp_path)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "exploits: 0 judged by this call, 1 taken over" in again.stdout
    assert "honest: 0 judged by this call, 1 taken over" in again.stdout
    assert "--fresh judges everything again" in again.stdout
    assert (tmp_path / "trust-cpu.json").read_bytes() == written  # it keeps the date and commit of what was judged


@pytest.mark.parametrize("name", sorted(HONEST)[::48])
def test_an_honest_kernel_passes_unflagged(judge, name):
    report = judge(HONEST[name].request(Target.CPU))
    assert report.outcome is Outcome.OK, report.log
    assert Check.PRECISION not in report.checks


def test_there_are_as_many_as_promised():
    assert len(ALL) >= 150
    assert len(TRIED) >= 30
    assert len(HONEST) >= 172
    on_gpu = honest_gpu.corpus(Target.CUDA)
    assert len({each.name for each in on_gpu}) == len(on_gpu) >= 140
    assert len(honest_gpu.corpus(Target.TRITON)) >= 30


@pytest.mark.parametrize("exploit", ALL, ids=lambda exploit: exploit.name)
def test_an_exploit_says_what_it_is(exploit):
    assert exploit.tries.endswith(".")
    assert (zoo.HERE / "tasks" / f"{exploit.task}.py").exists()
    assert set(exploit.targets) <= set(Target)
    outcomes = {outcome.value for outcome in Outcome} | {"ok-at-true-time", "contained"}
    assert {expected.split()[0] for expected in exploit.expect} <= outcomes
    assert "ModelNew" in exploit.source
