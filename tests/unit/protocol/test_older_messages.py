"""Requests and reports that earlier versions wrote are read under the names of today."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stark_worker.protocol import report_text
from stark_worker.protocol.codec import ProtocolError, from_json, rename_fields, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Isolation, Level
from stark_worker.protocol.report import Check, EvalReport, Timing
from stark_worker.protocol.request import Entry, EvalRequest

REQUEST = {
    "task_source": "task",
    "candidate_source": "candidate",
    "entry": "ModelNew",
    "rival_source": "other",
    "rival_entry": "Model",
    "labelled": True,
    "stranger": True,
}
REPORT = {
    "outcome": "ok",
    "timing": {"samples_ms": [1.0]},
    "rival": {"samples_ms": [2.0]},
    "checks": {
        "isolation": "strong: limits, Landlock; not: own /dev/shm: no room",
        "weights": "by name",
        "rival": "timed alone",
        "busy machine": "others kept 1.0 of 2 cores busy",
        "degenerate": "Zeros are accepted.",
        "isolation of the reference": "standard: limits",
    },
}


def read_report(**changes: Any) -> EvalReport:
    return from_json(EvalReport, json.dumps(REPORT | changes))


def test_an_old_request_is_read():
    assert from_json(EvalRequest, json.dumps(REQUEST)) == EvalRequest(
        "task",
        "candidate",
        Entry.CANDIDATE,
        opponent_source="other",
        opponent_entry=Entry.REFERENCE,
        with_labels=True,
        untrusted_task=True,
    )


def test_an_old_report_is_read():
    assert read_report() == EvalReport(
        Outcome.OK,
        Timing((1.0,)),
        opponent=Timing((2.0,)),
        checks={Check.WEIGHTS: "by name", Check.OPPONENT: "timed alone"},
        isolation=Isolation(Level.STRONG, "limits, Landlock; not: own /dev/shm: no room"),
        reference_isolation=Isolation(Level.STANDARD, "limits"),
        busy_warning="others kept 1.0 of 2 cores busy",
        degenerate="Zeros are accepted.",
    )


def test_an_old_report_shows_the_same_facts():
    shown = dict(report_text.report_facts(read_report()))
    checks = dict(REPORT["checks"])
    checks["opponent"] = checks.pop("rival")
    assert shown == checks


@pytest.mark.parametrize(("kind", "data"), [(EvalRequest, REQUEST), (EvalReport, REPORT)])
def test_what_is_written_has_the_names_of_today(kind, data):
    text = to_json(from_json(kind, json.dumps(data)))
    assert not any(f'"{name}"' in text for name in ("rival", "rival_source", "labelled", "stranger", "busy machine"))
    assert from_json(kind, text) == from_json(kind, json.dumps(data))


def test_an_old_name_next_to_its_new_one_is_refused():
    with pytest.raises(ProtocolError, match="unknown field 'rival'"):
        read_report(opponent={"samples_ms": [3.0]})


def test_an_isolation_without_a_known_level_stays_a_check():
    report = read_report(checks={"isolation": "some: of it"})
    assert report.isolation is None
    assert report.checks == {"isolation": "some: of it"}


@pytest.mark.parametrize("checks", [[], {"isolation": 7}, {"degenerate": {}}, {"busy machine": 1}, {"rival": None}])
def test_checks_that_are_no_texts_are_refused(checks):
    with pytest.raises(ProtocolError):
        read_report(checks=checks)


def test_fields_without_a_new_name_keep_theirs():
    assert rename_fields({"a": 1, "b": 2}, {"a": "c"}) == {"c": 1, "b": 2}
