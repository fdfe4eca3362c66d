"""Calls awake, with real processes on the CPU: what counts until the referee's copy, and what can be returned."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from candidate_sources import HEAD, forward
from conformance.evaluator import RIGHT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Check
from stark_worker.protocol.request import Entry, EvalRequest
from worker_fixture import running_worker

PAUSE_MS = 20.0

# Changes the functions of the process that serves the referee.
PATCH = """
def server():
    import gc
    return next(thing for thing in gc.get_objects() if type(thing).__name__ == "Server")

def patch():
    {patch}

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
        self.is_patched = False

    def forward(self, x):
        if not self.is_patched:
            self.is_patched = True
            patch()
        return torch.relu(x * 2.0 + self.bias)
"""
PAUSE = f"time.sleep({PAUSE_MS / 1e3})"
BEFORE_DONE = f"""
    wait = server().device.wait
    server().device.wait = lambda: ({PAUSE}, wait())
"""
DONE_FIRST = f"""
    serving, channel = server(), server().channel
    send, run, said = channel.send, serving._run, []
    channel.send = lambda **message: said or (said.append(message), send(**message))
    serving._run = lambda *call: (send(**said[0]), {PAUSE}, run(*call))[-1]
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        yield worker.judge
        assert worker.left() == (set(), set())


@pytest.fixture
def judge_source(judge):
    return lambda source: judge(replace(RIGHT, candidate_source=source))


def patched(patch: str) -> str:
    return HEAD + PATCH.replace("{patch}", patch.strip())


# --- the clock


def test_all_time_until_the_results_are_there_counts(judge_source):
    report = judge_source(patched(BEFORE_DONE))
    assert report.outcome is Outcome.OK, report.log
    assert report.timing.median_ms >= PAUSE_MS


def test_what_is_written_after_done_comes_too_late(judge_source):
    report = judge_source(patched(DONE_FIRST))
    assert report.outcome is Outcome.WRONG_RESULT, report


def test_nothing_is_taken_off_and_an_empty_call_is_in_doubt(judge):
    report = judge(RIGHT)
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.CLOCKS].startswith("awake: ")
    assert "all compared" in report.checks[Check.TIMING]
    assert report.timing.unsure_ms == pytest.approx(float(report.checks[Check.HANDSHAKE]), abs=1e-3)
    assert report.timing.unsure_ms > 0


def test_slow_calls_take_as_long_as_they_take(judge_source):
    report = judge_source(forward(f"{PAUSE}; return self.right(x)"))
    assert report.outcome is Outcome.OK, report.log
    assert report.timing.median_ms >= PAUSE_MS


# --- inputs

CALLS = 30
PLACES = f"""self.places = getattr(self, "places", []) + [x.data_ptr()]
        if len(self.places) == {CALLS}:
            names = sorted(set(self.places))
            raise ValueError(f"places={{[names.index(place) for place in self.places]}}")
        return self.right(x)"""
SEEN = """self.seen = getattr(self, "seen", set())
        key = (x[:2, :4].sum().item(), x[-1, -3:].sum().item())
        assert key not in self.seen, "inputs that it had before"
        self.seen.add(key)
        return self.right(x)"""
WRONG_ONCE = """self.calls = getattr(self, "calls", 0) + 1
        return self.right(x) + (self.calls == {number})"""


def test_inputs_lie_at_two_addresses_in_an_order_nobody_knows(judge_source):
    report = judge_source(forward(PLACES))
    assert report.outcome is Outcome.RUNTIME_ERROR
    places = json.loads(report.log[report.log.rindex("places=") + 7 :].split("]")[0] + "]")
    assert sorted(set(places)) == [0, 1]
    moves = {one == other for one, other in itertools.pairwise(places)}
    assert moves == {True, False}, "it neither stays nor alternates"


def test_no_input_is_given_twice(judge_source):
    report = judge_source(forward(SEEN))
    assert report.outcome is Outcome.OK, report.log


@pytest.mark.parametrize("number", [1, 7, 8, 12], ids=["check", "first warm-up", "second warm-up", "later warm-up"])
def test_a_single_wrong_result_fails_whenever_it_comes(judge_source, number):
    """Six calls are checks; the next are to warm up, and nothing tells them apart."""
    report = judge_source(forward(WRONG_ONCE.format(number=number)))
    assert report.outcome is Outcome.WRONG_RESULT, report


# --- what can be returned

TASK = """
import torch
from torch import nn

class {name}(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x, n):
        {body}

def get_inputs():
    return [torch.randn(6, 4), torch.randint(0, 100, (6, 4))]

def get_init_inputs():
    return []
"""


def source(body: str, name: str = "Model") -> str:
    return TASK.format(name=name, body=body)


RETURNED = {
    "numbers of every kind": "return (x * 2).bfloat16(), (x * 3).half(), x.double() * 2, x > 0, x.sum(), x[:0] * 2",
    "whole numbers": "return n.to(torch.int8), n.to(torch.uint8) + 1, (n * 2).to(torch.int16), n * 3",
    "complex, also not yet conjugated": "y = torch.complex(x, x * 2); return y * 1, y.conj(), y.conj().imag",
    "nothing at all": "return x[:0] * 2",
    "other memory orders": "y = x * 2; return y.t(), (x * 3).view(1, 2, 3, 4).to(memory_format=torch.channels_last)",
    "the same twice": "y = x * 2; return y, y",
    "overlapping parts of one": "y = x * 2; return y[:4], y[2:]",
    "its input and parts of it": "return x, x.view(-1)[3:9], x[1:, 1:], x * 2",
    "a weight": "return self.weight, x * self.weight",
    "expanded, and of one element": "return (x[:1] * 2).expand(6, 4), (x * 2).view(6, 1, 4).transpose(0, 1)",
    "a dict of many": "return {'a': x * 2, 'b': [n + 1, None], 'c': [x * number for number in range(20)]}",
}


@pytest.mark.parametrize("name", RETURNED)
def test_whatever_a_reference_returns_can_be_returned(judge, name):
    task = source(RETURNED[name])
    report = judge(EvalRequest(task, source(RETURNED[name], "ModelNew"), limits=RIGHT.limits))
    assert report.outcome is Outcome.OK, report.log
    assert report.timing.median_ms > 0


WRONG = {
    "bool": ("return x > 0", "y = x > 0; y[-1, -1] ^= True; return y"),
    "int8": ("return n.to(torch.int8)", "y = n.to(torch.int8); y[-1, -1] += 1; return y"),
    "uint8": ("return n.to(torch.uint8)", "y = n.to(torch.uint8); y[0, 0] ^= 1; return y"),
    "int64": ("return n * 3", "y = n * 3; y[3, 3] += 1; return y"),
    "bfloat16": ("return (x * 2).bfloat16()", "y = (x * 2).bfloat16(); y[-1, -1] += 1; return y"),
    "imaginary part": ("return torch.complex(x, x * 0)", "return torch.complex(x, x * 0 + 0.5)"),
    "second of two": ("return x * 2, x * 3", "y = x * 2; return y, y"),
    "last of a transposed": ("return (x * 2).t()", "y = (x * 2).t(); y[-1, -1] += 1; return y"),
    "a scalar": ("return x.sum()", "return x.sum() + 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_element_is_found_whatever_its_type(judge, name):
    right, wrong = WRONG[name]
    report = judge(EvalRequest(source(right), source(wrong, "ModelNew"), limits=RIGHT.limits))
    assert report.outcome is Outcome.WRONG_RESULT, report


ELSEWHERE = {
    "in memory of its own": "self.out = getattr(self, 'out', torch.empty(6, 4)); return torch.mul(x, 2, out=self.out)",
    "in the middle of more": "y = torch.empty(40); y[5:29] = (x * 2).flatten(); return y[5:29].view(6, 4)",
    "in shared memory": "return (x * 2).share_memory_()",
    "as a parameter": "return nn.Parameter(x * 2)",
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_results_are_found_wherever_they_lie(judge, name):
    report = judge(EvalRequest(source("return x * 2"), source(ELSEWHERE[name], "ModelNew"), limits=RIGHT.limits))
    assert report.outcome is Outcome.OK, report.log


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("y = torch.empty(6, 8); y[:, ::2] = x * 2; return y[:, ::2]", "strides [8, 2], expected [4, 1]"),
        ("x.mul_(2); return x", "shares its memory with an input"),
        ("return (x * 2).half()", "float16[6, 4]"),
        ("return (x * 2)[:5]", "float32[5, 4]"),
        ("return x * 2, x", "expected ['float32[6, 4]']"),
    ],
)
def test_results_of_another_form_are_refused_in_words(judge, body, said):
    report = judge(EvalRequest(source("return x * 2"), source(body, "ModelNew"), limits=RIGHT.limits))
    assert (report.outcome, said in report.log) == (Outcome.WRONG_RESULT, True), report


def test_the_reference_itself_is_timed_in_the_same_way(judge):
    report = judge(EvalRequest(source("return x * 2"), source("return x * 2"), Entry.REFERENCE, limits=RIGHT.limits))
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.CLOCKS].startswith("awake: ")
