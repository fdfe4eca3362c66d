"""What host and worker say to each other survives the way there and back, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stark_worker.protocol.bound import Arithmetic, Bound, Doubt, Limit, Peaks, ProductRate, Reason, Work
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.findings import Begun, Finding, State, parse_line
from stark_worker.protocol.interface import Interface, ShapeTrial
from stark_worker.protocol.isolation import Isolation, Level
from stark_worker.protocol.report import DeviceFacts, EvalReport, Kernels, Labels, Timing
from stark_worker.protocol.request import Entry, EvalRequest, KernelBenchVersion, Limits, Precision, Score, Target

seconds = st.floats(0.001, 1e6)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
requests = st.builds(
    EvalRequest,
    task_source=texts,
    candidate_source=texts,
    entry=st.sampled_from(Entry),
    opponent_source=st.none() | texts,
    untrusted_task=st.booleans(),
    target=st.sampled_from(Target),
    precision=st.sampled_from(Precision),
    score=st.sampled_from(Score),
    limits=st.builds(Limits, seconds, seconds),
    kernelbench_version=st.sampled_from(KernelBenchVersion),
    atol=st.none() | st.floats(0.0, 1e6),
    rtol=st.none() | st.floats(0.0, 1.0),
    with_labels=st.booleans(),
    tf32=st.booleans(),
)
devices = st.builds(DeviceFacts, texts, texts, memory_gb=st.none() | seconds, toolchain=st.dictionaries(texts, texts))
timings = st.builds(Timing, st.lists(seconds, min_size=1, max_size=5).map(tuple))
shapes = st.lists(st.lists(st.integers(0, 99)).map(tuple)).map(tuple)
labels = st.builds(
    Labels,
    seconds,
    precision=st.none() | texts,
    kernels=st.none() | st.sampled_from(Kernels),
    other_shapes=st.lists(st.builds(ShapeTrial, shapes, texts)).map(tuple),
    interface=st.none() | st.builds(Interface, shapes, st.lists(texts).map(tuple), texts, texts, texts),
)
sizes = st.integers(0, 2**40)
peaks = st.builds(Peaks, texts, seconds, seconds, seconds, cache_bytes=sizes, fp32_tflops=st.none() | seconds)
bounds = st.builds(
    Bound,
    seconds,
    st.sampled_from(Limit),
    seconds,
    seconds,
    seconds,
    st.builds(Work, sizes, sizes, sizes, st.dictionaries(st.sampled_from([str(kind) for kind in Arithmetic]), sizes)),
    peaks,
    st.dictionaries(texts, st.builds(ProductRate, seconds, texts)),
    st.lists(st.builds(Doubt, st.sampled_from(Reason), texts), max_size=3).map(tuple),
)
isolations = st.builds(Isolation, st.sampled_from(Level), texts)
good = st.builds(
    EvalReport,
    st.just(Outcome.OK),
    timings,
    checks=st.dictionaries(texts, texts),
    isolation=st.none() | isolations,
    reference_isolation=st.none() | isolations,
    degenerate=st.none() | texts,
    busy_warning=st.none() | texts,
    device=st.none() | devices,
    labels=st.none() | labels,
    bound=st.none() | bounds,
    seeds=st.dictionaries(texts, st.integers(0, 2**32)),
)
bad = st.builds(EvalReport, st.sampled_from([o for o in Outcome if o is not Outcome.OK]), log=texts, rule=texts)


@given(requests)
def test_a_request_comes_back_as_it_was(request):
    assert from_json(EvalRequest, to_json(request)) == request


@given(good | bad)
def test_a_report_comes_back_as_it_was(report):
    assert from_json(EvalReport, to_json(report).encode()) == report


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        "{" * 100_000,
        "[" * 100_000,
        '{"outcome": "splendid"}',
        '{"outcome": "crash", "surprise": 1}',
        '{"outcome": "crash", "log": 7}',
        '{"outcome": "crash", "duration_s": true}',
        '{"outcome": "ok"}',
        '{"outcome": "crash", "timing": {"samples_ms": [1.0]}}',
        '{"outcome": "ok", "timing": {"samples_ms": 1.0}}',
        '{"outcome": "ok", "timing": {"samples_ms": ["1.0"]}}',
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(ProtocolError):
        from_json(EvalReport, text)


def test_a_request_of_before_there_were_tolerances_and_tf32_is_still_read():
    request = EvalRequest("task", "candidate")
    data = json.loads(to_json(request))
    for name in ("kernelbench_version", "atol", "rtol", "tf32"):
        del data[name]
    assert from_json(EvalRequest, json.dumps(data)) == request


@pytest.mark.parametrize("field", ["atol", "rtol"])
@pytest.mark.parametrize("value", ["-1e-3", "NaN", "Infinity", '"wide"'])
def test_a_tolerance_that_is_none_is_refused(field, value):
    with pytest.raises(ProtocolError, match=field):
        from_json(EvalRequest, f'{{"task_source": "", "candidate_source": "", "{field}": {value}}}')


def test_not_a_number_cannot_be_sent():
    with pytest.raises(ValueError, match="JSON"):
        to_json(Limits(build_s=float("nan")))


@pytest.mark.parametrize("samples", [(), (0.0,), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_a_timing_has_samples_and_each_takes_some_time(samples):
    with pytest.raises(ProtocolError, match="takes some time"):
        Timing(samples)


def test_a_whole_number_is_taken_for_seconds():
    assert from_json(Limits, json.dumps({"build_s": 3})) == Limits(build_s=3.0)


def test_the_score_is_the_median():
    assert Timing((9.0, 1.0, 2.0)).median_ms == 2.0


@pytest.mark.parametrize("record", [Finding("torch", State.OK, "2.9"), Begun("torch")])
def test_a_line_of_the_doctor_is_read(record):
    assert parse_line(to_json(record) + "\n") == record


@pytest.mark.parametrize("line", ["", "Segmentation fault\n", "{}", '{"begins": 1}'])
def test_other_output_of_the_doctor_is_no_record(line):
    assert parse_line(line) is None


def test_shapes_that_older_labels_hold_as_text_are_read():
    data = {"first_call_ms": 1.0, "other_shapes": {"17x64, 8": "right", "9x64, 8": "wrong result"}}
    assert from_json(Labels, json.dumps(data)).other_shapes == (
        ShapeTrial(((17, 64), (8,)), "right"),
        ShapeTrial(((9, 64), (8,)), "wrong result"),
    )
