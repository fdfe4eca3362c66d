"""Settings: the paper's defaults, files, assignments, and refusals that name the nearest key."""

from __future__ import annotations

import pytest

from paths import ROOT
from stark.core.errors import SettingsError, UsageError
from stark.core.settings import RENAMED, Settings, with_new_names
from stark.run.methods import METHODS
from stark.run.settings_loader import explain, known_keys, load_settings

CONFIGS = ROOT / "configs"


def test_defaults_are_the_papers_hyper_parameters():
    settings = load_settings()
    assert settings.budget.attempts == 30
    assert (settings.search.epsilon, settings.search.n_root, settings.search.n_child) == (0.3, 5, 3)
    assert (settings.windows.leaders, settings.windows.cap) == (2, 5)
    roles = settings.roles
    temperatures = [role.temperature for role in (roles.plan, roles.code, roles.debug, roles.solo)]
    assert temperatures == [0.8, 0.1, 0.1, 0.7]


def test_every_setting_has_a_meaning():
    assert all(meaning for _, _, meaning in explain(Settings()))
    assert "search.epsilon" in known_keys()


def test_later_layers_prevail_and_leave_their_neighbours_alone(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('method = "ma-only"\n[roles.plan]\nmodel = "a:b"\n[search]\nepsilon = 0.4\n')
    settings = load_settings(file, ["search.epsilon=0.35", "roles.code.model=c:d"], {"search": {"n_root": 7}})
    assert (settings.search.epsilon, settings.search.n_root) == (0.35, 7)
    assert (settings.roles.plan.model, settings.roles.plan.temperature) == ("a:b", 0.8)
    assert settings.roles.code.model == "c:d"


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("search.epsilo=0.3", "Did you mean search.epsilon"),
        ("serach.epsilon=0.3", "Did you mean search.epsilon"),
        ("roles.plan.modle=x", "Did you mean roles.plan.model"),
        ("search.epsilon=often", "The setting search.epsilon cannot be 'often'"),
        ("search.epsilon=1.5", "less than or equal to 1"),
        ("search=3", "There is no setting search"),
        ("evaluation.target=vulkan", "The setting evaluation.target cannot be 'vulkan'"),
        ("search.epsilon", "has no value"),
        ("budget.attempts=-1", "greater than or equal to 0"),
        ("search.epsilon.deep=1", "There is no setting search.epsilon.deep"),
    ],
)
def test_a_bad_setting_is_refused_with_a_way_out(assignment, sentence):
    with pytest.raises(SettingsError) as caught:
        load_settings(sets=[assignment])
    assert sentence in str(caught.value)


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_is_refused_with_the_new_one_and_read_silently_from_a_store(old, tmp_path):
    (group, name), new = old.split("."), RENAMED[old]
    file = tmp_path / "old.toml"
    file.write_text(f"[{group}]\n{name} = 1\n")
    for given in ({"file": file}, {"sets": [f"{old}=1"]}, {"options": {group: {name: 1}}}):
        with pytest.raises(SettingsError, match=f"is now called {new}"):
            load_settings(**given)
    defaults = Settings().model_dump(mode="json")
    value = defaults[group].pop(new.split(".")[1])
    stored = {**defaults, group: {**defaults[group], name: "others" if value is False else value}}
    assert with_new_names(stored) == Settings().model_dump(mode="json")


def test_an_old_cap_that_counted_all_includes_the_root():
    assert with_new_names({"seed": 1, "windows": {"cap_counts": "all"}}) == {
        "seed": 1,
        "windows": {"cap_includes_root": True},
    }


def test_a_file_that_is_missing_or_broken_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("a = = b")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings(tmp_path / "broken.toml")


def test_text_that_is_no_toml_is_taken_as_it_is():
    assert load_settings(sets=["roles.model=openai:gpt-5"]).roles.plan.model == "openai:gpt-5"


def test_a_model_for_all_roles_yields_to_a_roles_own():
    sets = ["roles.model=a:b", "roles.base_url=http://x/v1", "roles.api_key_env=KEY", "roles.code.model=c:d"]
    roles = load_settings(sets=sets).roles
    assert (roles.plan.model, roles.plan.base_url, roles.plan.api_key_env) == ("a:b", "http://x/v1", "KEY")
    assert (roles.code.model, roles.code.base_url, roles.code.api_key_env) == ("c:d", None, None)


def test_one_temperature_for_all_is_an_ablation():
    roles = load_settings(sets=["roles.temperature=0.5"]).roles
    assert {roles.plan.temperature, roles.code.temperature, roles.debug.temperature, roles.solo.temperature} == {0.5}


@pytest.mark.parametrize(
    ("method", "policy", "windows"),
    [
        ("stark", "epsilon-greedy", True),
        ("search-agent", "epsilon-greedy", False),
        ("ma-only", "root-or-repair", False),
        ("sampling", "always-root", False),
        ("reflexion", "last-attempt", False),
    ],
)
def test_methods_are_the_papers_table(method, policy, windows):
    settings = load_settings(sets=[f"method={method}"])
    assert (settings.search.policy, settings.windows.enabled) == (policy, windows)


def test_an_explicit_setting_prevails_over_the_method():
    settings = load_settings(sets=["method=stark", "search.policy=mcts", "windows.enabled=false"])
    assert (settings.search.policy, settings.windows.enabled) == ("mcts", False)


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="reflexion"):
        load_settings(sets=["method=reflection"])


@pytest.mark.parametrize("name", ["paper", "default", *METHODS])
def test_shipped_files_load(name):
    settings = load_settings(CONFIGS / f"{name}.toml")
    assert settings.method == (name if name in METHODS else {"paper": "stark", "default": "informed"}[name])


def test_the_papers_file_is_the_papers_setup():
    settings = load_settings(CONFIGS / "paper.toml")
    assert (settings.evaluation.score, settings.evaluation.target) == ("kernelbench", "cuda")
    assert settings.search == load_settings(sets=["method=stark"]).search
    assert settings.windows == load_settings().windows
    assert settings.prompts.wording == "paper"
    assert settings.roles.plan.max_output_tokens == 16_384
    assert (settings.budget.stop_at_bound, settings.budget.stop_after) == (None, None)
