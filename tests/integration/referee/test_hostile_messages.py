"""Candidates that write whatever they like into the conversation: real processes, and the referee outlives them all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from candidate_sources import HEAD
from conformance.evaluator import RIGHT
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Limits
from worker_fixture import running_worker

LIMITS = Limits(build_s=30.0, run_s=10.0)

MODEL = """
def server():
    import gc
    return next(thing for thing in gc.get_objects() if type(thing).__name__ == "Server")

class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))
        {constructed}

    def forward(self, x):
        {called}
        return torch.relu(x * 2.0 + self.bias)
"""

# What an honest process never writes, one kind drawn at random for every call.
RAW = """
import json, random

def garbage(chance):
    honest = json.dumps({"did": "looked", "looks": [], "device_ms": None, "changed": []}).encode()
    return chance.choice([
        lambda: chance.randbytes(chance.randrange(1, 5000)),
        lambda: honest[: chance.randrange(1, len(honest))],
        lambda: b" " * chance.randrange(60_000, 80_000) + honest,
        lambda: b"[" * chance.randrange(1, 60_000),
        lambda: json.dumps({"did": chance.choice(["loaded", "copied", "looked", "ready", "done", 7, None])}).encode(),
        lambda: json.dumps({"did": "failed", "outcome": chance.choice(["ok", "rejected", [], 1]), "log": 3}).encode(),
        lambda: b"",
        lambda: honest * 2,
    ])()
CHANCE = random.Random({seed})
"""
WRITE = "server().channel._socket.send(garbage(CHANCE))"


def writing(seed: int, when: str) -> str:
    parts = {"constructed": "pass", "called": "pass"} | {when: WRITE}
    return HEAD + RAW.replace("{seed}", str(seed)) + MODEL.format(**parts)


# What it may say of its results; each takes the place of the truth in every answer.
SAID = {
    "a time beyond all numbers": "message['device_ms'] = 10**400",
    "a time that is none": "message['device_ms'] = float('nan')",
    "a time below zero": "message['device_ms'] = -1e308",
    "a time in words": "message['device_ms'] = 'fast'",
    "half a character": "message['looks'] = [{'plain': True, 'kinds': '\\ud800'}]",
    "a look without end": "message['looks'] = [{'plain': True, 'kinds': 'x' * 60_000}]",
    "looks that are none": "message['looks'] = {'plain': True}",
    "looks of nothing": "message['looks'] = [{}, None, 1]",
    "strides that are none": "message['looks'][0]['layouts'] = [{'stride': 'ab', 'shares': []}]",
    "a structure that is none": "message['looks'][0]['structure'] = [[[[[]]]]]",
    "settings that are none": "message['changed'] = {'\\ud800': [None]}",
}
UNHARMED = {name for name in SAID if name.startswith("a time") or name.startswith("settings")}
SAYING = """
def lie():
    channel = server().channel
    send = channel.send
    def forged(**message):
        if message.get("did") == "looked":
            {lie}
        send(**message)
    channel.send = forged
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    with running_worker(tmp_path_factory.mktemp("shared") / "cache") as worker:
        assert worker.judge(RIGHT).outcome is Outcome.OK
        yield worker
        assert worker.judge(RIGHT).outcome is Outcome.OK


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("when", ["constructed", "called"])
def test_noise_in_the_conversation_ends_the_candidate_alone(worker, when, seed):
    report = worker.judge(replace(RIGHT, candidate_source=writing(seed, when), limits=LIMITS))
    assert report.outcome is Outcome.REJECTED, report
    assert report.rule == "forged_message"
    assert worker.left() == (set(), set())


@pytest.mark.parametrize("name", SAID)
def test_a_lie_about_the_results_convinces_nobody(worker, name):
    source = HEAD + SAYING.replace("{lie}", SAID[name]) + MODEL.format(constructed="lie()", called="pass")
    report = worker.judge(replace(RIGHT, candidate_source=source, limits=LIMITS, with_labels=True))
    assert (report.outcome is Outcome.OK) == (name in UNHARMED), report
    assert len(report.log) < 6_000
    assert worker.left() == (set(), set())
