"""The constants of variants: other numbers in the same source, and nothing else."""

from __future__ import annotations

import ast
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing, VariantResult
from stark_worker.protocol.report_text import report_facts
from stark_worker.protocol.request import MAX_VARIANTS, EvalRequest
from stark_worker.scheduler.constants import ConstantsMissing, with_constants
from stark_worker.scheduler.variants import rank, split

SOURCE = (
    'é = "CONSTANTS = {1}"\nCONSTANTS = {"BLOCK": 128, "é": -4, "TEXT": "4", "ON": True}  # block\nprint(CONSTANTS)\n'
)
NUMBERS = st.integers(-(2**40), 2**40)


@given(NUMBERS, NUMBERS)
def test_the_numbers_are_replaced_and_the_rest_stays(block, other):
    changed = with_constants(SOURCE, {"é": other, "BLOCK": block})
    assert ast.literal_eval(changed.splitlines()[1].split(" = ")[1].split("  #")[0]) == {
        "BLOCK": block,
        "é": other,
        "TEXT": "4",
        "ON": True,
    }
    assert changed.splitlines()[::2] == SOURCE.splitlines()[::2]


def test_numbers_on_several_lines_and_on_the_same():
    source = 'CONSTANTS = {\n    "A": 1, "B": 22,\n    "C": 3,\n}\n'
    assert (
        with_constants(source, {"A": 100, "B": 2, "C": 33}) == 'CONSTANTS = {\n    "A": 100, "B": 2,\n    "C": 33,\n}\n'
    )


@pytest.mark.parametrize(
    "source",
    [
        *("", "CONSTANTS = {}", "CONSTANTS = dict(BLOCK=1)", 'if True:\n    CONSTANTS = {"BLOCK": 1}', "def (", "x\0"),
        *('CONSTANTS = {"BLOCK": 1.0}', 'CONSTANTS = {"BLOCK": True}', 'CONSTANTS = {"BLOCK": 2 * 3}'),
        "CONSTANTS = {**other}",
    ],
)
def test_a_source_without_the_constant_is_refused_by_its_name(source):
    with pytest.raises(ConstantsMissing, match="BLOCK"):
        with_constants(source, {"BLOCK": 2})


def test_variants_cross_the_wire_and_old_requests_have_none():
    request = EvalRequest("task", SOURCE, variants=({"BLOCK": 1}, {"BLOCK": 2, "é": 3}))
    assert from_json(EvalRequest, to_json(request)) == request
    assert hash(request) == hash(EvalRequest("task", SOURCE))
    report = EvalReport(Outcome.OK, Timing((1.0,)), variants=(VariantResult({"BLOCK": 1}, Outcome.OK, 1.0, True),))
    assert from_json(EvalReport, to_json(report)) == report
    data = json.loads(to_json(request))
    del data["variants"], data["is_brief"]
    assert from_json(EvalRequest, json.dumps(data)).variants == ()


@pytest.mark.parametrize("bad", [[{}], [{"A": 1}, {"A": 1}], [{"A": 1.5}], [{"A": True}], [{"A": "1"}], ["A"]])
def test_what_is_no_variant_is_refused(bad):
    with pytest.raises(ProtocolError):
        from_json(EvalRequest, json.dumps({"task_source": "", "candidate_source": "", "variants": bad}))


def test_there_are_at_most_as_many_as_the_limit():
    EvalRequest("", "", variants=tuple({"A": number} for number in range(MAX_VARIANTS)))
    with pytest.raises(ProtocolError, match="at most 32"):
        EvalRequest("", "", variants=tuple({"A": number} for number in range(MAX_VARIANTS + 1)))


def test_each_variant_is_an_ordinary_request():
    request = EvalRequest("task", SOURCE, variants=({"BLOCK": 1}, {"BLOCK": 2}), with_labels=True)
    first, second = split(request)
    assert (first.variants, first.with_labels, '"BLOCK": 1,' in first.candidate_source) == ((), True, True)
    assert '"BLOCK": 2,' in second.candidate_source
    plain = EvalRequest("task", SOURCE)
    assert split(plain) == [plain]


def test_correct_ones_are_ranked_by_their_medians():
    timed = [EvalReport(Outcome.OK, Timing((ms,))) for ms in (3.0, 1.0, 2.0)]
    assert rank([EvalReport(Outcome.WRONG_RESULT), *timed]) == [2, 3, 1]
    assert rank([EvalReport(Outcome.HANGS)]) == []


def test_a_report_names_each_variant_and_the_winner():
    tried = (
        VariantResult({"BLOCK": 1}, Outcome.OUT_OF_MEMORY),
        VariantResult({"BLOCK": 2, "UNROLL": 4}, Outcome.OK, 0.5, True),
    )
    facts = report_facts(EvalReport(Outcome.OK, Timing((0.4,)), variants=tried))
    assert [text for name, text in facts if name == "variant"] == [
        "BLOCK=1: out of memory",
        "BLOCK=2, UNROLL=4: 0.5000 ms (the fastest)",
    ]
