"""The chat models of the project, each put through the suite for third parties, and what queues alone do."""

from __future__ import annotations

import asyncio

import pytest

from conformance.chat_model import FORM, ChatModelConformance
from stark.core.chat import Finish, Message, Reply, Usage
from stark.core.errors import ModelUnavailable, UsageError
from stark.core.settings import RoleSettings
from stark.core.tree import Role
from stark.models.open import open_model
from stub_server import Behaviour, StubServer

ASKED = [Message("user", "Write one.")]


def write_script(folder, *names):
    for name in names:
        (folder / name).write_text(f"reply of {name}", encoding="utf-8")
    return RoleSettings(model=f"scripted:{folder}")


def answers(model, count):
    return [asyncio.run(model.reply(ASKED, FORM)) for _ in range(count)]


class TestScripted(ChatModelConformance):
    @pytest.fixture
    def model(self, tmp_path):
        return open_model(Role.CODE, write_script(tmp_path, *[f"{n:02}-code.md" for n in range(8)]))


class TestReplay(ChatModelConformance):
    @pytest.fixture
    def model(self):
        kept = [Reply(text=f"reply {n}", usage=Usage(5, 5), cost_usd=0.5, model="m") for n in range(8)]
        return open_model(Role.CODE, RoleSettings(model="replay:runs/1"), load_replies=lambda folder, role: {1: kept})


class TestPlaybook(ChatModelConformance):
    @pytest.fixture
    def model(self):
        return open_model(Role.CODE, RoleSettings(model="playbook"))


class TestProvider(ChatModelConformance):
    @pytest.fixture(params=["chat", "openai:gpt-4o", "anthropic:claude-sonnet-4-6"])
    def model(self, request, monkeypatch, tmp_path):
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)  # plain HTTP needs no certificates, which take long to read
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
        with StubServer(Behaviour(text="hello")) as server:
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            base_url = f"{server.url}/v1" if request.param == "chat" else None
            yield open_model(Role.CODE, RoleSettings(model=request.param, base_url=base_url, temperature=0.1))


def test_a_role_has_its_own_queue_in_the_order_of_the_numbers(tmp_path):
    settings = write_script(tmp_path, "2-code.md", "10-code.md", "01-plan.md", "notes.txt", "03-code.md.bak")
    texts = [reply.text for reply in answers(open_model(Role.CODE, settings), 2)]
    assert texts == ["reply of 2-code.md", "reply of 10-code.md"]
    (plan,) = answers(open_model(Role.PLAN, settings), 1)
    assert (plan.text, plan.model, plan.cost_usd, plan.usage) == ("reply of 01-plan.md", "scripted", 0.0, Usage())


def test_a_script_that_is_too_short_says_so(tmp_path):
    model = open_model(Role.CODE, write_script(tmp_path, "01-code.md"))
    answers(model, 1)
    with pytest.raises(ModelUnavailable, match="shorter than the run"):
        answers(model, 1)


def test_a_resumed_script_goes_on_where_it_was(tmp_path):
    settings = write_script(tmp_path, "01-code.md", "02-code.md", "03-code.md")
    assert answers(open_model(Role.CODE, settings, answered=2), 1)[0].text == "reply of 03-code.md"


def test_a_folder_without_replies_is_no_script(tmp_path):
    with pytest.raises(UsageError, match=r"01-plan\.md"):
        open_model(Role.CODE, write_script(tmp_path, "readme.md"))


def test_a_reply_that_is_not_text_is_named(tmp_path):
    (tmp_path / "01-code.md").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="UTF-8"):
        open_model(Role.CODE, RoleSettings(model=f"scripted:{tmp_path}"))


def test_a_replay_gives_what_was_said_and_charges_nothing():
    asked = []
    kept = [
        Reply(text="first"),
        Reply(
            text="cut", arguments="{", finish=Finish.TRUNCATED, usage=Usage(9, 9), cost_usd=1.0, model="m", notes=("n",)
        ),
    ]

    def stored(folder, role):
        asked.append((folder, role))
        return {4: kept}

    model = open_model(Role.DEBUG, RoleSettings(model="replay:/runs/a:b"), answered=1, load_replies=stored)
    (reply,) = answers(model.at(4, 1), 1)
    with pytest.raises(ModelUnavailable, match="attempt 5"):
        model.at(5, 0)
    assert asked == [("/runs/a:b", Role.DEBUG)]
    assert reply == Reply("cut", "{", Finish.TRUNCATED, Usage(), 0.0, "m", ("n",))
