"""Real provider clients against a real server on this machine: what goes over the wire, and what comes of it."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import re
import socket
import subprocess
import sys

import pytest

from stark.agents.replies import CODE_FORM
from stark.core.chat import Finish, Message, Usage
from stark.core.errors import ModelRefused, ModelUnavailable, ReplyLost, UsageError
from stark.core.settings import RoleSettings
from stark.core.tree import Role
from stark.models.open import open_model
from stark.models.provider import ProviderModel
from stub_server import Behaviour, StubServer
from unit.agents.test_replies import CASES, FENCED, KERNEL

KEY = "sk-Zq9-the-secret-of-this-test"
WIRES = ("chat", "responses", "messages")
MESSAGES = (
    Message("system", "You write kernels."),
    Message("user", "Write one."),
    Message("assistant", "Like \ud800 this?"),  # a reply that is sent back can hold anything
    Message("user", "No."),
)
PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
TOO_LONG = {
    "type": "error",
    "error": {"type": "invalid_request_error", "code": "context_length_exceeded", "message": "prompt is too long"},
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(variable, KEY)
    # The stub speaks plain HTTP: reading the certificates of the machine for every client would take most of the time.
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


@pytest.fixture
def at(monkeypatch):
    """Makes a model that talks to a stub server over one of the wire formats."""

    def make(server, wire="chat", **settings):
        settings = {"retries": 2, "timeout_s": 10.0, "output": "tool"} | settings
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        named = {
            "chat": {"model": "local-model", "base_url": f"{server.url}/v1", "api_key_env": "OPENAI_API_KEY"},
            "responses": {"model": "openai:gpt-4o"},
            "messages": {"model": "anthropic:claude-sonnet-4-6"},
        }
        return ProviderModel(RoleSettings(**(named[wire] | settings)), backoff_s=0.01)

    return make


def ask(model):
    return asyncio.run(model.reply(MESSAGES, CODE_FORM))


# -- replies --------------------------------------------------------------------------------------------------------


def served(case):
    if case.finish is Finish.PROMPT_TOO_LONG:
        return Behaviour(status=400, error=TOO_LONG)
    finish = {Finish.TRUNCATED: "length", Finish.REFUSED: "refusal"}.get(case.finish, "stop")
    return Behaviour(text=case.text, calls=case.calls, finish=finish)


def fits_the_wire(case, wire, stream):
    """A whole message carries the input of a tool as an object, and a streamed one takes nothing for an empty one."""
    if wire != "messages" or (stream and "" not in case.calls):
        return True
    try:
        return all(isinstance(json.loads(call), dict) for call in case.calls)
    except (ValueError, RecursionError):
        return False


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_the_table_of_replies_survives_the_wire(at, wire, stream):
    cases = [case for case in CASES if fits_the_wire(case, wire, stream)]

    async def ask_all(model):
        asked = [model.reply([Message("user", f"<case {number}>")], CODE_FORM) for number in range(len(cases))]
        return await asyncio.gather(*asked)

    def answer(body):
        return served(cases[int(re.search(r"<case (\d+)>", json.dumps(body))[1])])

    with StubServer(answer) as server:
        replies = asyncio.run(ask_all(at(server, wire, stream=stream, retries=0)))
        assert len(server.requests) == len(cases)
    for case, reply in zip(cases, replies, strict=True):
        assert reply.finish is case.finish
        case.check(case.read(reply))


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_thinking_is_no_part_of_the_answer(at, wire, stream):
    with StubServer(Behaviour(text="the answer", thinking="the thoughts")) as server:
        assert ask(at(server, wire, stream=stream)).text == "the answer"


@pytest.mark.parametrize("wire", WIRES)
def test_the_form_is_offered_as_one_tool_and_the_conversation_is_sent_in_order(at, wire):
    with StubServer() as server:
        ask(at(server, wire, temperature=0.8, max_output_tokens=77))
    body = server.requests[0].body
    (tool,) = body["tools"]
    schema = tool.get("input_schema") or (tool.get("function") or tool)["parameters"]
    assert set(schema["required"]) == {"explanation", "source"}
    assert body["temperature"] == 0.8
    assert 77 in body.values()
    sent = json.dumps(body)
    assert sent.index("You write kernels.") != -1
    assert sent.index("Write one.") < sent.index("Like ? this?") < sent.index("No.")


@pytest.mark.parametrize(
    ("wire", "output", "offered"),
    [("chat", "auto", False), ("responses", "auto", True), ("chat", "tool", True), ("responses", "text", False)],
)
def test_where_a_tool_is_offered(at, wire, output, offered):
    with StubServer() as server:
        ask(at(server, wire, output=output))
    assert bool(server.requests[0].body.get("tools")) is offered


# -- tokens and money -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
def test_usage_and_money_of_a_call(at, wire, stream):
    with StubServer(Behaviour(text="hi", usage=(1000, 400, 50))) as server:
        model = at(server, wire, stream=stream)
        reply = ask(model)
    assert reply.usage == Usage(input_tokens=1000, output_tokens=50, cached_input_tokens=400)
    if wire == "chat":
        assert reply.cost_usd is None
    else:
        uncached = model.cost_usd(Usage(1000, 50))
        assert uncached is not None
        assert 0 < reply.cost_usd < uncached


def test_prices_are_known_before_any_call_or_said_to_be_unknown():
    known = ProviderModel(RoleSettings(model="openai:gpt-4o"))
    assert known.cost_usd(Usage(1_000_000, 0)) == pytest.approx(2.5)
    assert known.cost_usd(Usage(0, 1_000_000)) == pytest.approx(10.0)
    assert known.cost_usd(Usage(10, 10, cached_input_tokens=20)) == known.cost_usd(Usage(10, 10))
    assert ProviderModel(RoleSettings(model="openai:no-such-model")).cost_usd(Usage(1, 1)) is None
    assert ProviderModel(RoleSettings(model="gpt-4o", base_url="http://localhost/v1")).cost_usd(Usage(1, 1)) is None


# -- faults that pass -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
@pytest.mark.parametrize("wire", WIRES)
def test_a_passing_fault_is_retried(at, wire, status):
    with StubServer(Behaviour(status=status), Behaviour(text="hello")) as server:
        assert ask(at(server, wire)).text == "hello"
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("headers", "seconds"), [({"Retry-After": "1"}, 1.0), ({"retry-after-ms": "300"}, 0.3)], ids=["s", "ms"]
)
def test_the_provider_says_how_long_to_wait(at, headers, seconds):
    with StubServer(Behaviour(status=429, headers=headers), Behaviour(text="hello")) as server:
        ask(at(server))
        first, second = server.requests
    assert second.at - first.at >= seconds


BROKEN = {
    "cut": Behaviour(text=FENCED, cut=True),
    "hangs": Behaviour(hang=True),
    "html": Behaviour(raw=b"<html>Sign in</html>", content_type="text/html"),
    "garbage": Behaviour(raw=b"{garbage"),
    "null": Behaviour(raw=b"null"),
    "list": Behaviour(raw=b"[]"),
    "empty": Behaviour(raw=b""),
    "no choices": Behaviour(raw=b'{"id": "x", "object": "y", "created": 1, "model": "m", "choices": []}'),
    "garbage events": Behaviour(raw=b"data: {garbage\n\n", content_type="text/event-stream"),
    "odd events": Behaviour(raw=b"data: [1]\n\ndata: [DONE]\n\n", content_type="text/event-stream"),
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_may_have_been_charged_and_did_not_arrive_is_lost(at, wire, stream, broken):
    with StubServer(broken, Behaviour(text="hello")) as server:
        with pytest.raises(ReplyLost, match=r"did not arrive completely.*resume"):
            ask(at(server, wire, stream=stream, timeout_s=1.0 if broken.hang else 10.0))
        arrived = (0, 1) if broken.hang else (1,)  # on a slow machine who gives up after a second may not have asked
        assert len(server.requests) in arrived  # asking again is for the run to decide, which has to pay for it


@pytest.mark.parametrize("wire", WIRES)
def test_a_stream_that_ends_early_without_an_error_is_no_answer_either(at, wire):
    with StubServer(Behaviour(text=FENCED, fade=True), Behaviour(text="hello")) as server:
        with pytest.raises(ReplyLost):
            ask(at(server, wire))
        assert len(server.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_usage_that_is_not_reported_is_counted_in_bytes(at, wire):
    with StubServer(Behaviour(text="hello", usage=(0, 0, 0))) as server:
        reply = ask(at(server, wire))
    assert reply.usage.output_tokens == len("hello")
    assert reply.usage.input_tokens > 0
    assert any("no usage" in note for note in reply.notes)


def test_a_slow_answer_within_the_deadline_is_waited_for(at):
    with StubServer(Behaviour(text="hello", delay_s=0.3)) as server:
        assert ask(at(server, timeout_s=10.0)).text == "hello"
        assert len(server.requests) == 1


def test_retries_come_to_an_end(at):
    with StubServer(Behaviour(status=503)) as server:
        with pytest.raises(ModelUnavailable, match=r"failed 3 times.*resume"):
            ask(at(server, retries=2))
        assert len(server.requests) == 3


def test_no_server_listens():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    with pytest.raises(ModelUnavailable, match="did not answer"):
        ask(ProviderModel(RoleSettings(model="m", base_url=url, retries=1), backoff_s=0.01))


def test_a_wait_can_be_cancelled(at):
    async def cancel_while_waiting(model, server):
        task = asyncio.create_task(model.reply(MESSAGES, CODE_FORM))
        while not server.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with StubServer(Behaviour(status=429, headers={"Retry-After": "6000"})) as server:
        asyncio.run(cancel_while_waiting(at(server), server))
        assert len(server.requests) == 1


# -- faults that stay -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 418, 422])
@pytest.mark.parametrize("wire", WIRES)
def test_a_lasting_fault_is_reported_once_and_without_the_key(at, wire, status):
    said = f"no: {KEY} {'x' * 430} {KEY} " + "and so on " * 500  # the second key lies where the message is cut
    with StubServer(Behaviour(status=status, error=said)) as server:
        with pytest.raises(ModelRefused) as caught:
            ask(at(server, wire, temperature=0.5, effort="low"))
        assert len(server.requests) == 1
    shown = str(caught.value)
    assert KEY[:6] not in shown
    assert str(status) in shown
    assert len(shown) < 1000
    if status in (401, 403):
        assert ("ANTHROPIC_API_KEY" if wire == "messages" else "OPENAI_API_KEY") in shown


def test_an_empty_account_is_not_a_rate_limit(at):
    quota = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    with StubServer(Behaviour(status=429, error=quota)) as server:
        with pytest.raises(ModelRefused, match="credit"):
            ask(at(server, "responses"))
        assert len(server.requests) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_prompt_that_is_too_long_is_a_reply(at, wire):
    with StubServer(Behaviour(status=400, error=TOO_LONG)) as server:
        reply = ask(at(server, wire))
        assert (reply.finish, reply.cost_usd, len(server.requests)) == (Finish.PROMPT_TOO_LONG, 0.0, 1)


# -- what a model does not take -------------------------------------------------------------------------------------


def refuses(field, message):
    return lambda body: Behaviour(status=400, error=message) if body.get(field) else Behaviour(text="hello")


@pytest.mark.parametrize("wire", WIRES)
def test_a_refused_temperature_is_left_out_from_then_on(at, wire):
    with StubServer(refuses("temperature", "Unsupported value: 'temperature'")) as server:
        model = at(server, wire, temperature=0.8)
        assert model.takes_temperature
        first, second = ask(model), ask(model)
        assert ["temperature" in request.body for request in server.requests] == [True, False, False]
    assert not model.takes_temperature
    assert first.notes == second.notes == ("temperature 0.8 refused by the model; called without",)


def test_calls_in_flight_together_each_learn_of_a_refusal(at):
    async def ask_twice(model):
        return await asyncio.gather(*[model.reply(MESSAGES, CODE_FORM) for _ in range(2)])

    with StubServer(refuses("temperature", "no temperature here")) as server:
        replies = asyncio.run(ask_twice(at(server, temperature=0.8)))
    assert [reply.text for reply in replies] == ["hello", "hello"]
    assert {len(reply.notes) for reply in replies} == {1}


def test_a_server_without_tools_is_asked_for_text(at):
    with StubServer(refuses("tools", "this model does not support tools")) as server:
        reply = ask(at(server))
        assert ["tools" in request.body for request in server.requests] == [True, False]
    assert reply.notes == ("tool refused by the model; asked for text",)


def test_an_effort_that_is_refused_is_left_out(at):
    with StubServer(refuses("reasoning", "reasoning.effort is not supported")) as server:
        reply = ask(at(server, "responses", model="openai:gpt-5", effort="low"))
        assert ["reasoning" in request.body for request in server.requests] == [True, False]
    assert reply.notes == ("effort low refused by the model; called without",)


@pytest.mark.parametrize(
    ("wire", "name"), [("responses", "openai:gpt-5"), ("chat", "o3"), ("messages", "anthropic:claude-opus-4-8")]
)
def test_a_temperature_that_is_known_to_be_refused_is_never_sent(at, wire, name):
    with StubServer() as server:
        model = at(server, wire, model=name, temperature=0.8)
        assert not model.takes_temperature
        assert ask(model).notes == ("temperature 0.8 refused by the model; called without",)
        assert "temperature" not in server.requests[0].body


def test_effort_turns_the_temperature_off_only_where_reasoning_does(at):
    with StubServer() as server:
        assert at(server, "responses", model="openai:gpt-5.1", temperature=0.8).takes_temperature
        assert not at(server, "responses", model="openai:gpt-5.1", temperature=0.8, effort="low").takes_temperature
        assert not at(server, "responses").takes_temperature  # none was asked for


# -- connections ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
def test_one_model_serves_one_event_loop_after_another_and_leaves_nothing_open(at, wire):
    with StubServer() as server:
        model = at(server, wire)
        assert [ask(model).text for _ in range(3)] == ["hello"] * 3
    del model
    gc.collect()  # whatever was left open would warn now, and a warning is an error


def test_many_calls_at_once(at):
    async def ask_many(model):
        return await asyncio.gather(*[model.reply(MESSAGES, CODE_FORM) for _ in range(8)])

    with StubServer(Behaviour(text="hello", delay_s=0.05)) as server:
        assert [reply.text for reply in asyncio.run(ask_many(at(server)))] == ["hello"] * 8


# -- opening --------------------------------------------------------------------------------------------------------


def opened(**settings):
    return open_model(Role.CODE, RoleSettings(**settings))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "roles.code.model"),
        ({"model": "gpt-5"}, "provider:name"),
        ({"model": "opnai:gpt-5"}, "'openai'"),
        ({"model": "qqqq:gpt-5"}, "for example"),
        ({"model": "groq:llama-3"}, r"stark-kernels\[groq\]"),
        ({"model": "deepseek:deepseek-chat"}, "DEEPSEEK_API_KEY"),
        ({"model": "openai:gpt-5", "api_key_env": "MY_UNSET_KEY"}, "MY_UNSET_KEY"),
        ({"model": "m", "base_url": "localhost:8000"}, "http://host"),
        ({"model": "no.such.module:Model"}, "cannot be loaded"),
        ({"model": "scripted:/no/such/folder"}, "01-plan.md"),
        ({"model": "replay:somewhere"}, "no store"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_model_that_cannot_be_opened_says_what_to_do(monkeypatch, settings, said):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    with pytest.raises(UsageError, match=said):
        opened(**settings)


@pytest.mark.parametrize("value", ["", "sk-with-newline\n", "sk with space", "sk-ключ"])
def test_a_key_that_is_none_is_named_and_not_shown(monkeypatch, value):
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
        opened(model="openai:gpt-4o")
    assert not value or value not in str(caught.value)


@pytest.mark.parametrize("wire", WIRES)
def test_a_key_of_its_own_goes_to_the_provider(at, monkeypatch, wire):
    monkeypatch.setenv("MY_KEY", "sk-mine")
    monkeypatch.delenv("OPENAI_API_KEY")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with StubServer() as server:
        ask(at(server, wire, api_key_env="MY_KEY"))
    headers = server.requests[0].headers
    assert "sk-mine" in (headers.get("x-api-key") or headers["authorization"])


def test_a_server_of_ones_own_needs_no_key_and_gets_none(at):
    with StubServer() as server:
        assert ask(at(server, api_key_env=None)).text == "hello"
    assert KEY not in str(server.requests[0])


@pytest.mark.parametrize(
    "url", ["https://models.example.com/v1", "https://openai.com.example.com", "http://notopenai.com", "http://8.8.8.8"]
)
def test_a_key_from_the_environment_is_not_sent_to_strangers(monkeypatch, url):
    with pytest.raises(UsageError, match="--api-key-env") as caught:
        opened(model="m", base_url=url)
    assert KEY not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-mine")
    assert key_sent(model="m", base_url=url, api_key_env="MY_KEY") == "sk-mine"
    assert key_sent(model="m", base_url=url, api_key_env="OPENAI_API_KEY") == KEY  # said in so many words
    monkeypatch.delenv("OPENAI_API_KEY")
    assert "sk-" not in key_sent(model="m", base_url=url)


def test_a_key_from_the_environment_goes_to_its_own_provider():
    assert key_sent(model="m", base_url="https://api.openai.com/v1") == KEY
    assert key_sent(model="m", base_url="https://eu.api.openai.com/v1") == KEY


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:8000", "gpu-box", "192.168.1.5", "gpu.local"])
def test_servers_nearby_are_used_without_a_key(host):
    assert "sk-" not in key_sent(model="m", base_url=f"http://{host}/v1")


def key_sent(**settings) -> str:
    return opened(**settings)._model.client.api_key


def test_a_server_that_wants_a_key_says_how_to_name_one(at):
    with StubServer(Behaviour(status=401)) as server, pytest.raises(ModelRefused, match="--api-key-env"):
        ask(at(server, api_key_env=None))


@pytest.mark.parametrize("wire", WIRES)
def test_a_process_that_calls_a_model_hides_its_memory(at, wire):
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    with StubServer() as server:
        at(server, wire)
    assert prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) == 0


class Echo:
    """A third party's chat model."""

    def __init__(self, settings):
        self.name = f"echo at {settings.temperature}"


def test_a_class_of_ones_own_is_made_from_the_settings():
    assert opened(model="integration.models.test_providers:Echo", temperature=0.3).name == "echo at 0.3"


def test_opening_a_scripted_model_does_not_import_a_provider(tmp_path):
    (tmp_path / "01-code.md").write_text(KERNEL)
    program = (
        "import sys; from stark.models.open import open_model; from stark.core.settings import RoleSettings;"
        "from stark.core.tree import Role; open_model(Role.CODE, RoleSettings(model='scripted:' + sys.argv[1]));"
        "sys.exit('pydantic_ai' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False).returncode == 0
