"""A client chooses among the rules of a server, and can raise no limit and load no code."""

from __future__ import annotations

import pytest

from stark.core.errors import SettingsError, UsageError
from stark.mcp.guides import RULES, describe_way
from stark.mcp.rules import Choice, SearchChoice, ServerRules
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Precision, Score, Target


def rules(*sets, **options):
    return ServerRules.load(None, sets, options)


def test_a_choice_leaves_all_other_rules():
    chosen = rules("evaluation.rtol=0.5").evaluation(Choice(Target.TRITON, Precision.BF16, Score.KERNELBENCH))
    assert (chosen.target, chosen.precision, chosen.score) == (Target.TRITON, Precision.BF16, Score.KERNELBENCH)
    assert chosen.rtol == 0.5
    assert rules("evaluation.target='cuda'").evaluation(Choice()).target is Target.CUDA


def test_a_file_counts_as_it_was_when_the_server_started(tmp_path):
    file = tmp_path / "rules.toml"
    file.write_text("[evaluation]\nrtol = 0.001\n")
    loaded = ServerRules.load(file, [], {})
    file.write_text("[evaluation]\nrtol = 1000.0\n")
    assert loaded.evaluation(Choice()).rtol == 0.001


def test_wrong_settings_are_found_at_the_start():
    with pytest.raises(SettingsError):
        rules("evaluation.no_such=1")


@pytest.mark.parametrize(
    "asked", [SearchChoice(usd=10.5), SearchChoice(attempts=31), SearchChoice(minutes=2.0), SearchChoice(usd=1e308)]
)
def test_a_client_raises_no_limit(asked):
    with pytest.raises(UsageError, match="at most"):
        rules("budget.attempts=30", "budget.wall_s=60").search(Choice(), asked)


def test_a_client_lowers_limits():
    chosen = rules("budget.wall_s=600").search(Choice(), SearchChoice(3, 0.5, 1.0)).budget
    assert (chosen.attempts, chosen.usd, chosen.wall_s) == (3, 0.5, 60.0)


@pytest.mark.parametrize("name", ["os:System", "package.module:Class", "scripted:/etc", "replay:/x", "fakes:Pretend"])
def test_a_client_names_no_code_and_no_folder_as_a_model(name):
    with pytest.raises(UsageError, match="cannot be chosen"):
        rules().search(Choice(), SearchChoice(model=name))


def test_another_model_gets_neither_the_address_nor_the_key_of_the_servers_own():
    server = rules(roles={"model": "mine", "base_url": "http://user:secret-word@host/v1", "api_key_env": "MY_KEY"})
    assert server.search(Choice(), SearchChoice()).roles.plan.api_key_env == "MY_KEY"
    other = server.search(Choice(), SearchChoice(model="openai:gpt-5")).roles
    for role in (other.plan, other.code, other.debug, other.solo):
        assert (role.model, role.base_url, role.api_key_env) == ("openai:gpt-5", None, None)
    assert set(server.key_names()) == {"MY_KEY"}
    assert set(server.passwords()) == {"secret-word"}


def test_the_rules_of_judging_name_every_outcome():
    assert all(f"- {outcome}: " in RULES for outcome in Outcome)


def test_the_guided_way_names_the_file_and_the_target():
    assert "'a b.py'" in describe_way("a b.py", Target.CUDA)
    assert "target cuda" in describe_way("a b.py", Target.CUDA)
