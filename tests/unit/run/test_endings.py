"""Endings of a single run: stopped by its user, with a refuted winner, or with a comparison that fails."""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stark
from fakes import TASK, HashEvaluator
from stark.analysis.results import read_results
from stark.cli.main import load_app
from stark.core.errors import SettingsError, StoreError, TaskError, UsageError
from stark.run.api import change_on_resume, prepare, resume_run, start
from stark.run.settings_loader import load_settings
from stark.store import schema
from stark.store.open import open_store
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

OPTIONS = {"roles": {"model": "fakes:PretendModel"}, "budget": {"attempts": 4}}


@pytest.fixture
def task(tmp_path, monkeypatch) -> Path:
    """With no baselines that another evaluator pretended to have measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path / "task.py"


@pytest.fixture
def press(tmp_path, monkeypatch):
    """Ctrl-C while the next thing of a kind is judged: ``Model``, ``ModelNew`` or ``final``."""
    order = tmp_path / "order"
    monkeypatch.setenv("CTRL_C", str(order))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent process may have ignored it
    yield order.write_text
    signal.signal(signal.SIGINT, before)


def options(evaluator: str):
    return {**OPTIONS, "evaluation": {"evaluator": f"fakes:{evaluator}"}}


def command(*words):
    return CliRunner().invoke(load_app(), [str(word) for word in words])


def test_ctrl_c_in_a_script_ends_the_script(task, tmp_path, press):
    """Whoever calls ``optimize`` in a loop would else pay for the next one."""
    press("ModelNew")
    with pytest.raises(KeyboardInterrupt):
        stark.optimize(task, run=tmp_path / "run", **options("InterruptedEvaluator"))
    assert stark.resume(tmp_path / "run").attempts == 4


def test_ctrl_c_during_the_final_lets_it_end_and_the_run_is_complete(task, tmp_path, press):
    press("final")
    job = prepare(task, load_settings(None, [], options("InterruptedEvaluator")), tmp_path / "run")
    result = asyncio.run(start(job, signals=True))
    assert (result.reason, result.stopped) == ("attempts", True)
    assert result.final is not None
    (found,) = read_results(tmp_path / "run")
    assert found.complete


def test_ctrl_c_while_the_last_attempt_is_in_flight_leaves_a_complete_run(task, tmp_path, press):
    press("ModelNew")
    settings = load_settings(None, ["budget.attempts=1"], options("InterruptedEvaluator") | {"budget": {}})
    result = asyncio.run(start(prepare(task, settings, tmp_path / "run"), signals=True))
    assert (result.attempts, result.reason, result.stopped) == (1, "attempts", True)
    assert read_results(tmp_path / "run")[0].complete


@pytest.mark.parametrize("attempts", [4, 5])
def test_a_refuted_winner_is_not_left_behind_as_the_best(task, tmp_path, attempts):
    """It was written when a final was cut short; now the finals say that nothing holds."""
    folder, best = tmp_path / "run", tmp_path / "run" / "best.py"
    task.write_text(f"# brittle\n{TASK}")
    stark.optimize(task, run=folder, **options("SoberEvaluator"))
    assert read_results(folder)[0].metrics.best_ms is None, "or this tests nothing"
    best.write_text("class ModelNew: ...")
    done = command("resume", folder, "--attempts", attempts)
    assert done.exit_code == 3, done.output
    assert not best.exists()


def test_a_comparison_that_fails_loses_nothing(task, tmp_path):
    words = ["--model", "fakes:PretendModel", "--evaluator", "fakes:EagerEvaluator", "--attempts", 20]
    done = command("optimize", task, "--run", tmp_path / "run", *words)
    assert done.exit_code == 0, done.output
    assert "torch.compile was not timed: torch.compile cannot be had here." in done.output
    assert "class ModelNew" in (tmp_path / "run" / "best.py").read_text()


def test_a_run_of_an_earlier_version_is_brought_up_to_date_and_goes_on(task, tmp_path):
    folder = tmp_path / "run"
    with pytest.MonkeyPatch.context() as earlier:
        stark.optimize(task, run=folder, **options("HashEvaluator"))
        newer = [*schema.MIGRATIONS, lambda db: db.execute("ALTER TABLE nodes ADD COLUMN tag TEXT")]
        earlier.setattr(schema, "MIGRATIONS", newer)
        assert stark.resume(folder, budget={"attempts": 5}).attempts == 5
        done = command("resume", folder, "--attempts", 6)
        assert done.exit_code in (0, 3), done.output
        with closing(open_store(folder, write=False)) as store:
            assert store.judgements("run")[-1].id == 6


@pytest.mark.parametrize(
    ("said", "base_url", "key"),
    [
        ({"roles": {"model": "anthropic:claude-sonnet-4-6"}}, None, None),
        ({"roles": {"plan": {"model": "anthropic:claude-sonnet-4-6"}}}, None, None),
        ({"roles": {"model": "other", "base_url": "http://there/v1"}}, "http://there/v1", None),
        ({"roles": {"api_key_env": "MINE"}}, "http://localhost:8000/v1", "MINE"),
        ({"roles": {"model": "qwen"}}, "http://localhost:8000/v1", "WORK_KEY"),
    ],
)
def test_another_model_gets_neither_address_nor_key_of_the_one_before_it(said, base_url, key):
    before = {"model": "qwen", "base_url": "http://localhost:8000/v1", "api_key_env": "WORK_KEY"}
    after = change_on_resume([], said)(load_settings(None, [], {"roles": before}))
    assert (after.roles.plan.base_url, after.roles.plan.api_key_env) == (base_url, key)


@pytest.mark.parametrize("words", ["roles.plan=foo", "roles=foo", "roles.solo=3"])
def test_an_unknown_setting_is_refused(words):
    with pytest.raises(SettingsError, match="There is no setting roles"):
        change_on_resume([words])


def test_what_is_set_one_by_one_is_one_change():
    sets = ["roles.base_url=http://there/v1", "roles.model=other"]
    after = change_on_resume(sets)(load_settings(None, [], {"roles": {"model": "openai:gpt-5"}}))
    assert (after.roles.code.model, after.roles.code.base_url) == ("other", "http://there/v1")


def test_a_run_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(StoreError, match="There is no run"):
        asyncio.run(resume_run(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError):
        asyncio.run(resume_run(tmp_path / ("x" * 300)))


def test_a_run_cannot_be_made_one_of_fewer_attempts(task, tmp_path):
    folder = tmp_path / "run"
    stark.optimize(task, run=folder, **options("HashEvaluator"))
    with pytest.raises(UsageError, match="already has 4 attempts"):
        stark.resume(folder, budget={"attempts": 3})
    assert read_results(folder)[0].allowed_attempts == 4


def test_a_report_names_the_models_that_answered(task, tmp_path):
    folder = tmp_path / "run"
    stark.optimize(task, run=folder, **options("HashEvaluator"))
    stark.resume(folder, roles={"model": "fakes:UnpricedModel"}, budget={"attempts": 5, "tokens": 10**7})
    assert read_results(folder)[0].models == ("fakes:PretendModel", "fakes:UnpricedModel")
    assert "fakes:PretendModel" in command("show", folder).output


def test_a_file_of_the_users_own_is_not_taken_for_a_runs(task, tmp_path):
    folder, own = tmp_path / "mine", tmp_path / "mine" / "best.py"
    folder.mkdir()
    own.write_text("class ModelNew: ...")
    words = ["--model", "fakes:PretendModel", "--evaluator", "fakes:HashEvaluator", "--attempts", 2]
    done = command("optimize", task, "--run", folder, "--from", own, *words)
    assert isinstance(done.exception, UsageError)
    assert "would overwrite" in done.exception.message
    assert own.read_text() == "class ModelNew: ..."


def test_a_run_in_the_current_folder_has_a_name(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stark.optimize(task, run=".", **options("HashEvaluator"))
    assert read_results(tmp_path)[0].run_id == tmp_path.name


def test_a_run_without_a_faster_kernel_says_so(task, tmp_path, monkeypatch):
    async def evaluate(self, request):
        return EvalReport(Outcome.OK, Timing((10.0 if request.is_reference else 12.0,)))

    monkeypatch.setattr(HashEvaluator, "evaluate", evaluate)
    words = ["--model", "fakes:PretendModel", "--evaluator", "fakes:HashEvaluator", "--attempts", 2]
    done = command("optimize", task, "--run", tmp_path / "run", *words, "--set", "evaluation.final=false")
    assert done.exit_code == 3, done.output
    assert "not surely faster than the reference" in done.output


@pytest.mark.parametrize(
    ("report", "hint"),
    [
        (EvalReport(Outcome.WRONG_RESULT, log="Output 0 differs."), "wrong result. Two calls gave different results"),
        (EvalReport(Outcome.RUNTIME_ERROR, log="mat1 and mat2 must match", dtype_mismatch=True), "--precision bf16"),
    ],
)
def test_a_task_that_does_not_work_says_what_it_may_be(task, monkeypatch, report, hint):
    async def evaluate(self, request):
        return report

    monkeypatch.setattr(HashEvaluator, "evaluate", evaluate)
    done = command("baseline", task, "--evaluator", "fakes:HashEvaluator")
    assert isinstance(done.exception, TaskError)
    assert hint in done.exception.message


def optimize(task, folder, evaluator, *words):
    given = ["--model", "fakes:PretendModel", "--evaluator", f"fakes:{evaluator}", "--attempts", 2, "--run", folder]
    return command("optimize", task, *given, *words)


def test_measurements_that_contradict_each_other_end_undecided_and_export_nothing(task, tmp_path):
    done = optimize(task, tmp_path / "run", "ContradictingEvaluator")
    assert done.exit_code == 4, done.output
    assert "Cannot tell if the best kernel is faster: in the search 0.12x to 0.13x" in done.output
    assert not (tmp_path / "run" / "best.py").exists()


@pytest.mark.parametrize(
    ("evaluator", "bar", "code"),
    [
        ("BeatenEvaluator", "eager", 0),
        ("BeatenEvaluator", "torch.compile", 3),
        ("DriftingEvaluator", "torch.compile", 0),
    ],
)
def test_the_bar_can_be_torch_compile(task, tmp_path, evaluator, bar, code):
    done = optimize(task, tmp_path / "run", evaluator, "--beat", bar)
    assert done.exit_code == code, done.output
    is_beaten = evaluator == "BeatenEvaluator"
    assert ("torch.compile is faster than the best kernel: use torch.compile(model)." in done.output) == is_beaten
