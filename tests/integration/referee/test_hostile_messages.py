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
    honest = json.dumps({"did": "done", "kinds": [], "layouts": [], "offsets": [], "changed": []}).encode()
    return chance.choice([
        lambda: chance.randbytes(chance.randrange(1, 5000)),
        lambda: honest[: chance.randrange(1, len(honest))],
        lambda: b" " * chance.randrange(60_000, 80_000) + honest,
        lambda: b"[" * chance.randrange(1, 60_000),
        lambda: json.dumps({"did": chance.choice(["loaded", "launched", "done", 7, None])}).encode(),
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
    "half a character": "message['kinds'] = '\\ud800'",
    "kinds without end": "message['kinds'] = 'x' * 60_000",
    "kinds that are none": "message['kinds'] = {'plain': True}",
    "no kinds": "del message['kinds']",
    "plain in words": "message['plain'] = 'yes'",
    "strides that are none": "message['layouts'] = [{'stride': 'ab', 'shares': []}]",
    "layouts of nothing": "message['layouts'] = [{}, None, 1]",
    "one layout too many": "message['layouts'] *= 2",
    "no layouts": "message['layouts'] = None",
    "a structure that is none": "message['structure'] = [[[[[]]]]]",
    "settings that are none": "message['changed'] = {'\\ud800': [None]}",
    "settings without end": "message['changed'] = ['x' * 50_000]",
    "places that are none": "message['offsets'] = [10**400, -1, True, {'a': []}]",
    "no places": "del message['offsets']",
    "a time of its own": "message['total_ms'] = message['device_ms'] = 1e-9",
}
UNHARMED = {  # no result is looked for where a process on the host says, and no time is heard
    *("settings that are none", "settings without end", "places that are none", "no places", "a time of its own"),
}
SAYING = """
def lie():
    channel = server().channel
    send = channel.send
    def forged(**message):
        if message.get("did") == "done":
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
