"""Verdicts on exploits: the part that needs no evaluator."""

from __future__ import annotations

import ast
import importlib
from dataclasses import replace

import pytest

from adversarial import zoo
from adversarial.zoo import Verdict
from paths import ROOT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

ALL = [zoo.read(path) for path in sorted((zoo.HERE / "exploits").glob("*.py"))]
ACCEPTED = replace(ALL[0], expect=("ok-at-true-time",))
TRUE_MS = (2.0, 2.2, 1.9, 2.1, 2.0, 2.4, 2.0, 1.8, 2.1, 2.0)


def report(*shares: float) -> EvalReport:
    """Of an exploit that took these shares of its true time, one after the other."""
    times = tuple(shares[i % len(shares)] * ms for i, ms in enumerate(TRUE_MS))
    return EvalReport(Outcome.OK, Timing(times), opponent=Timing(TRUE_MS))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((1.0,), Verdict.TRUE_TIME),
        ((3.0,), Verdict.TRUE_TIME),
        ((0.96,), Verdict.TRUE_TIME),
        ((0.94,), Verdict.FOOLED),
        ((0.6, 1.3), Verdict.TRUE_TIME),  # a busy machine
        ((0.85,), Verdict.FOOLED),
        ((0.5, 0.8), Verdict.FOOLED),
        ((0.4, 0.85, 1.2), Verdict.TRUE_TIME),  # nobody would call that faster
        ((0.3, 0.3, 0.95), Verdict.FOOLED),  # however wide the interval is
    ],
)
def test_what_is_accepted_has_gained_something_where_most_of_its_calls_have(shares, verdict):
    assert ACCEPTED.verdict(report(*shares)) is verdict


def test_what_had_to_be_refused_fools_whatever_time_it_took():
    assert replace(ACCEPTED, expect=("wrong_result",)).verdict(report(3.0)) is Verdict.FOOLED


def test_only_a_doubtful_time_is_measured_again():
    assert ACCEPTED.only_time_speaks_against_it(report(0.5))
    assert not ACCEPTED.only_time_speaks_against_it(report(1.0))
    assert not ACCEPTED.only_time_speaks_against_it(EvalReport(Outcome.RUNTIME_ERROR, log="ESCAPED"))
    assert not replace(ACCEPTED, expect=("wrong_result",)).only_time_speaks_against_it(report(0.5))


def test_the_benchmark_fails_for_what_gets_through_unless_it_is_known_to(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "proofs")
    trust = importlib.import_module("trust")
    by = {"digest": trust.worker_digest()}
    stopped, fooled = by | {"verdict": "rejected"}, by | {"verdict": Verdict.FOOLED}
    assert trust.holds({"exploits": {"one": stopped, "two": fooled | {"known": "why"}}})
    assert not trust.holds({"exploits": {"one": stopped, "two": fooled}})


def test_a_result_counts_only_for_the_worker_that_judged(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "proofs")
    trust = importlib.import_module("trust")
    record = trust.Record(tmp_path / "trust.json", fresh=True)
    record.keep("exploits", "one", "source", {"verdict": "rejected", "as_expected": True, "outcome": "wrong_result"})
    assert trust.holds(record.data)
    assert not record.missing("exploits", "one", "source")
    assert record.missing("exploits", "one", "another source")
    assert "1 of 1 entries are of today's" in next(trust.table(record.data))
    record.data["exploits"]["one"]["digest"] = "another"
    assert record.missing("exploits", "one", "source")
    assert not trust.holds(record.data)
    assert "0 of 1 entries are of today's" in next(trust.table(record.data))
    record.drop_unknown("exploits", {"two"})
    assert record.data["exploits"] == {}


def test_the_digest_covers_names_and_contents_of_the_source(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    worker_digest = importlib.import_module("record").worker_digest.__wrapped__
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "native.c").write_text("2")
    (tmp_path / "one.pyc").write_text("3")
    digests = [worker_digest(tmp_path)]
    (tmp_path / "one.pyc").write_text("4")
    assert worker_digest(tmp_path) == digests[0]
    (tmp_path / "native.c").write_text("3")
    digests.append(worker_digest(tmp_path))
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    digests.append(worker_digest(tmp_path))
    assert len({*digests}) == 3


def test_without_an_opponent_nothing_is_said_about_the_time():
    assert zoo.true_share(EvalReport(Outcome.OK, Timing(TRUE_MS))) is None


@pytest.mark.parametrize("exploit", [each for each in ALL if each.honest_source], ids=lambda exploit: exploit.name)
def test_an_exploit_without_cheating_differs_in_that_line_alone(exploit):
    lines = zip(exploit.source.splitlines(), exploit.honest_source.splitlines(), strict=True)
    assert [pair for pair in lines if pair[0] != pair[1]] == [("CHEAT = True", "CHEAT = False")]
    names = [node.id for node in ast.walk(ast.parse(exploit.source)) if isinstance(node, ast.Name)]
    assert names.count("CHEAT") > 1, "a switch that nothing looks at"
