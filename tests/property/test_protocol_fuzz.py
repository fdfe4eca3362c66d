"""Whatever arrives from a candidate's side: it is a message of the right form, or the candidate's fault."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.evaluator import KERNEL, TASK
from stark_worker.correctness.reference import Reference
from stark_worker.processes.channel import MAX_MESSAGE_BYTES, Channel, ChannelClosed, MessageMalformed, decode_message
from stark_worker.processes.handles import ProcessReaper
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import Failure, Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest, Precision
from stark_worker.referee.calls import write_job
from stark_worker.referee.candidate import Candidate
from stark_worker.referee.check import OutputChecker
from stark_worker.scheduler.builds import Builds

numbers = st.integers() | st.floats() | st.just(10**400) | st.just(-(10**400))
texts = st.text(max_size=20) | st.just("\ud800") | st.just("x" * 1000)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
of_candidates = ["begun", "ready", "loaded", "launched", "done", "waited", "failed", "profiled"]
of_builders = ["locked", "asked", "failed", "unclear", "read", "named", "built"]
words = st.sampled_from([*of_candidates, *of_builders, ""])
names = st.sampled_from(
    ["outcome", "log", "offsets", "layouts", "kinds", "changed", "weights", "code", "key", "isolation"]
)
messages = st.builds(lambda did, rest: {"did": did, **rest}, words | values, st.dictionaries(names, values, max_size=4))
packets = (
    st.binary(max_size=200)
    | messages.map(lambda message: json.dumps(message).encode())
    | messages.map(lambda message: json.dumps(message).encode()[:-3])
    | st.integers(1, 60_000).map(lambda depth: b"[" * depth)
    | st.integers(1, 10_000).map(lambda depth: b'{"did":' * depth)
    | st.integers(MAX_MESSAGE_BYTES - 1, MAX_MESSAGE_BYTES + 2).map(lambda size: b" " * size)
)


def check_failure(failure: Failure) -> None:
    assert failure.outcome is not Outcome.OK
    assert len(failure.log) < 6_000
    failure.log.encode()  # it can be stored


@given(packets)
def test_bytes_are_a_message_or_malformed(packet):
    try:
        message = decode_message(packet)
    except (MessageMalformed, ChannelClosed):
        return
    assert isinstance(message, dict)
    assert len(packet) <= MAX_MESSAGE_BYTES


@given(st.lists(packets, max_size=6))
def test_packets_keep_their_borders(sent):
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel = Channel(near)
    with near, far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        for packet in sent:
            far.send(packet)
            try:
                alone = decode_message(packet[: MAX_MESSAGE_BYTES + 1])
            except (MessageMalformed, ChannelClosed) as error:
                with pytest.raises(type(error)):
                    channel.receive(1.0)
            else:
                assert _same(channel.receive(1.0), alone)


def _same(one: object, other: object) -> bool:
    return json.dumps(one) == json.dumps(other)  # NaN is not itself


@settings(deadline=None)
@given(packets, st.sampled_from(of_candidates), st.booleans())
def test_only_what_was_to_come_is_taken(packet, awaited, may_be_late):
    (here, there), (lifeline, supervisor) = Channel.pair(), Channel.pair()
    output, print_to = os.pipe()
    files = [os.dup(here.fileno()), os.dup(lifeline.fileno()), output, os.memfd_create("arena")]
    for end in (here, lifeline):
        end.close()
    candidate = Candidate(files, Path("unused"))
    supervisor.send(code=1)
    there._socket.send(packet)
    try:
        if may_be_late:
            assert candidate.arrives_within(awaited, 5.0)
            assert decode_message(packet)["did"] == awaited
        else:
            assert candidate.expect(awaited, 5.0)["did"] == awaited
    except Failure as failure:
        check_failure(failure)
    finally:
        os.close(print_to)
        for end in (supervisor, there):
            end.close()
        candidate.close()


class Hostile:
    """A fork server whose readers and compilers send these packets, whatever they receive, and nothing more."""

    def __init__(self, packets: Mapping[str, Sequence[bytes]]) -> None:
        self._packets, self._ends, self.reaper = packets, [], ProcessReaper()

    def start(self, role: str, _folder: Path, files: Sequence[int], _more: Mapping[str, str] | None) -> Channel:
        lifeline, supervisor = Channel.pair()
        supervisor.close()
        end = socket.socket(fileno=os.dup(files[0]))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
        for packet in self._packets[role]:
            end.send(packet)
        end.shutdown(socket.SHUT_WR)
        self._ends.append(end)
        return lifeline

    async def close(self) -> None:
        await self.reaper.wait()
        for end in self._ends:
            end.close()


def says(did: str) -> st.SearchStrategy[bytes]:
    rest = st.dictionaries(names, values, max_size=3)
    return rest.map(lambda more: json.dumps({"did": did, **more}).encode())


deep = st.integers(1, 30_000).map(lambda depth: b'{"did":"failed","log":' + b"[" * depth + b"]" * depth + b"}")
key = st.just(json.dumps({"did": "named", "key": "0" * 32}).encode())


@settings(deadline=None)
@given(
    st.booleans(),
    st.lists(packets | deep | st.sampled_from(of_builders).flatmap(says), max_size=4),
    st.lists(packets | deep | key | st.sampled_from(of_builders).flatmap(says), max_size=3),
)
def test_whatever_builders_say_is_a_report_or_nothing(locked, said_by_reader, said_by_compiler):
    said_by_reader = [
        b'{"did": "locked", "isolation": {"level": "standard", "details": "limits"}}'
    ] * locked + said_by_reader

    async def build(place: str) -> EvalReport | None:
        hostile = Hostile({"reader": said_by_reader, "compiler": said_by_compiler})
        try:
            return await Builds(hostile, Path(place), Path(place, "cache"), {}).build(EvalRequest(TASK, KERNEL))
        finally:
            await hostile.close()

    with tempfile.TemporaryDirectory() as place:
        report = asyncio.run(build(place))
        assert not list(Path(place, "cache").glob("[0-9a-f]*"))  # nothing was built, so nothing is kept
    if report is not None:
        assert report.outcome is Outcome.COMPILE_ERROR
        assert from_json(EvalReport, to_json(report)) == report
        assert len(to_json(report).encode()) < 40_000


@pytest.fixture(scope="module")
def examiner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("referee")
    reference = Reference(TASK, Precision.FP32, folder)
    return OutputChecker(write_job(EvalRequest(TASK, KERNEL), reference, folder, ""), reference)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "plain": st.just(True) | values,
            "kinds": values | texts | st.just("x" * 6_000) | st.just(["float32[16, 64]"]),
            "structure": values | st.just('{"tensor": 0}'),
            "layouts": values | st.lists(st.fixed_dictionaries({}, optional={"stride": values, "shares": values})),
        },
    )
)
def test_a_description_is_right_or_a_fault_of_the_candidate(examiner, description):
    try:
        examiner.check_description(description)
    except Failure as failure:
        check_failure(failure)
    else:
        assert description["kinds"] == ["float32[16, 64]"]
        assert [tuple(one["stride"]) for one in description["layouts"]] == [(64, 1)]


@given(values)
def test_no_json_is_a_record_by_chance(value):
    with pytest.raises(ProtocolError):
        from_json(EvalReport, json.dumps(value))
