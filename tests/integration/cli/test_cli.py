"""The command line as a user meets it: real processes, exit codes, files on disk."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

import stark
from fakes import TASK, digest
from stark.analysis.results import read_results
from stark_process import command, environment, stark_command
from waiting import stored, wait_until

OPTIONS = ["--method", "stark", "--model", "fakes:PretendModel", "--evaluator", "fakes:HashEvaluator"]


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture
def run(task, tmp_path):
    """A finished run of eight attempts."""
    folder = tmp_path / "run"
    done = stark_command("optimize", task, *OPTIONS, "--attempts", 8, "--run", folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_from_task_to_kernel(run, tmp_path):
    shown = stark_command("show", run)
    assert "★ best" in shown.stdout
    assert shown.stdout.count("#") >= 8
    best = tmp_path / "best.py"
    assert stark_command("export", run, "--best", best).returncode == 0
    assert "class ModelNew" in best.read_text()
    compile(best.read_text(), "best.py", "exec")


def test_one_node_is_shown_with_prompt_scaffold_change_and_log(run):
    text = stark_command("show", run, 1).stdout
    parts = [
        "Call 0: plan agent",
        "You are the planner",
        "Scaffold",
        "<<<IMPROVE BEGIN>>>",
        "Change",
        "+        return x + ",
    ]
    for part in parts:
        assert part in text
    assert stark_command("show", run, 99).returncode == 2


def test_training_data_is_chat_format_with_outcomes(run, tmp_path):
    file = tmp_path / "plan.jsonl"
    assert stark_command("export", run, "--training-data", file, "--role", "plan").returncode == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines
    for line in lines:
        assert [message["role"] for message in line["messages"]] == ["system", "user", "assistant"]
        assert line["outcome"] in ("ok", "compile_error", "wrong_result", "crash")
        assert (line["runtime_ms"] is None) == (line["outcome"] != "ok")


def test_a_finished_run_is_extended(run):
    assert stark_command("resume", run, "--attempts", 12).returncode == 0
    assert stark_command("show", run, 12).returncode == 0


def test_a_replay_asks_no_model_and_is_the_same_run(run, task, tmp_path):
    again = tmp_path / "again"
    words = ["--method", "stark", "--model", f"replay:{run}", "--evaluator", "fakes:HashEvaluator", "--attempts", 8]
    words += ["--run", again]
    assert stark_command("optimize", task, *words).returncode == 0
    trees = [
        stark_command("show", folder).stdout.splitlines()[1:] for folder in (run, again)
    ]  # the first names the model
    assert trees[0] == trees[1]
    exhausted = stark_command("resume", again, "--attempts", 9)
    assert exhausted.returncode == 5
    assert "Traceback" not in exhausted.stderr


def test_nothing_faster_is_exit_code_3(task, tmp_path):
    done = stark_command("optimize", task, *OPTIONS, "--attempts", 0, "--run", tmp_path / "run")
    assert done.returncode == 3
    assert "No correct kernel was found" in done.stdout


def test_a_dry_run_estimates_and_writes_nothing(task, tmp_path):
    done = stark_command("optimize", task, *OPTIONS, "--dry-run", "--run", tmp_path / "run")
    assert done.returncode == 0
    assert "30 attempts: about 51 calls" in done.stdout
    assert not (tmp_path / "run").exists()


def test_an_unknown_price_is_not_shown_as_zero(task, tmp_path):
    unpriced = ["--model", "fakes:UnpricedModel", "--evaluator", "fakes:HashEvaluator", "--tokens", 10**6]
    words = ["optimize", task, *unpriced, "--attempts", 4, "--run", tmp_path / "run"]
    for done in (stark_command(*words, "--dry-run"), stark_command(*words)):
        assert "tokens, price not known." in done.stdout
        assert "$0.00" not in done.stdout
    estimated = stark_command(*words, "--dry-run").stdout
    assert "stops before it has spent 1,000,000 tokens. Nothing" in estimated, "a limit on money would hold nothing"


KNOWN_TASK = """\
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2.0


def get_inputs():
    return [torch.randn(4, 6)]


def get_init_inputs():
    return []
"""


def test_the_playbook_is_called_no_llm_wherever_it_is_named(tmp_path):
    task, folder, calls = tmp_path / "task.py", tmp_path / "run", tmp_path / "calls.jsonl"
    task.write_text(KNOWN_TASK)
    words = ["optimize", task, "--evaluator", "fakes:HashEvaluator", "--attempts", 2, "--run", folder]
    label = "playbook (no LLM: a library of moves)"
    assert stark_command(*words, "--dry-run").stdout.count(label) == 3, "plan, code and debug"
    assert label in stark_command(*words).stdout
    for looked in (["show", folder], ["show", folder, 1], ["report", folder], ["compare", folder, folder]):
        assert label in stark_command(*looked).stdout, looked
    assert stark_command("export", folder, "--training-data", calls, "--role", "plan").returncode == 0
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    assert lines
    assert {(line["model"], line["model_label"]) for line in lines} == {("playbook", label)}


def test_the_drawing_comes_from_the_compiled_graph(tmp_path):
    picture = tmp_path / "graph.svg"
    assert stark_command("graph", "--output", picture).returncode == 0
    for name in ("plan", "code", "debug", "evaluate", "not failed"):
        assert f">{name}<" in picture.read_text()
    assert "solo" in stark_command("graph", "--method", "sampling").stdout


def test_settings_are_printed_with_their_meaning():
    text = stark_command("config", "--set", "search.epsilon=0.4").stdout
    assert "search.epsilon = 0.4" in text
    assert "explore a leaf" in text


# -- stopping ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path):
    """A file that keeps a run from its end for as long as it is there."""
    held = tmp_path / "held"
    held.touch()
    return held


def begin(task: Path, folder: Path, held: Path, *more: object) -> subprocess.Popen[str]:
    words = ["optimize", task, "--model", "fakes:HeldModel", "--evaluator", "fakes:HashEvaluator", "--run", folder]
    return subprocess.Popen(
        command(*words, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(HELD_BY=str(held)),
    )


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_lets_attempts_in_flight_land(task, tmp_path, held, how):
    process = begin(task, tmp_path / "run", held, "--jobs", 3)
    wait_until(lambda: stored(tmp_path / "run", "calls") >= 1)
    process.send_signal(how)
    held.unlink()
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert "Ended by: stopped" in out
    finished = stark_command("resume", tmp_path / "run", "--attempts", 5, HELD_BY=str(held))
    assert "5 attempts" in finished.stdout
    assert "Traceback" not in err + finished.stderr


def test_the_second_signal_stops_at_once_and_nothing_stored_is_lost(task, tmp_path, held):
    process = begin(task, tmp_path / "run", held, "--jobs", 3)
    wait_until(lambda: stored(tmp_path / "run", "calls") >= 3)
    process.send_signal(signal.SIGINT)
    time.sleep(2.0)  # the system merges two pending signals
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130, err
    assert "Traceback" not in err
    held.unlink()
    assert stark_command("resume", tmp_path / "run", "--attempts", 6, HELD_BY=str(held)).returncode in (0, 3)


def test_a_second_writer_is_refused_by_name_while_readers_are_not(task, tmp_path, held):
    process = begin(task, tmp_path / "run", held)
    try:
        wait_until(lambda: stored(tmp_path / "run", "calls") >= 1)
        refused = stark_command("resume", tmp_path / "run")
        assert refused.returncode == 7
        assert str(process.pid) in refused.stderr
        assert stark_command("show", tmp_path / "run").returncode == 0
    finally:
        process.kill()
        process.communicate()


# -- bad input: one clear sentence, a documented exit code, nothing half-written --------------------------------------

BAD_TASKS = {
    "syntax error": ("class Model(:\n", "line 1 is not valid Python"),
    "no Model": ("def get_inputs(): return []\ndef get_init_inputs(): return []\n", "defines no class Model"),
    "no forward": (TASK.replace("forward", "backward"), "has no method forward"),
    "no get_inputs": (TASK.replace("get_inputs", "inputs"), "defines no function get_inputs()"),
    "wrong signature": (TASK.replace("get_inputs()", "get_inputs(n)"), "must be callable without arguments"),
    "null byte": (TASK + "\0", "is not valid Python"),
    "latin-1": (b"# \xe9\n" + TASK.encode(), "cannot be read"),
}


@pytest.mark.parametrize("name", BAD_TASKS)
def test_a_file_that_is_no_task_is_refused(tmp_path, name):
    content, sentence = BAD_TASKS[name]
    path = tmp_path / "bad.py"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(tmp_path, sentence, 2, "optimize", path, *OPTIONS)


def test_a_kernel_in_place_of_the_task_is_named(task, tmp_path):
    kernel = tmp_path / "kernel.py"
    kernel.write_text(TASK.replace("Model", "ModelNew"))
    refused(tmp_path, "It defines ModelNew, as a kernel does. Give the task file first.", 2, "judge", kernel, task)
    refused(tmp_path, "A kernel file defines ModelNew.", 2, "judge", task, task)


def refused(tmp_path: Path, sentence: str, code: int, *words: object, **extra: str) -> None:
    folder = tmp_path / "never"
    more = ["--run", folder] if words[0] == "optimize" and "--run" not in words else []
    done = stark_command(*words, *more, **extra)
    assert done.returncode == code, done.stderr
    assert sentence in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr
    assert not folder.exists()


EVALUATOR = ["--evaluator", "fakes:HashEvaluator"]
BAD_WORDS = {
    "unknown provider": (["--model", "opnai:gpt-5", *EVALUATOR], 2, "Did you mean 'openai'"),
    "unknown model class": (["--model", "fakes:Nobody", *EVALUATOR], 2, "cannot be loaded"),
    "no model for two roles": (["--plan-model", "fakes:PretendModel", *EVALUATOR], 2, "no chat model"),
    "missing key": (["--model", "anthropic:claude-sonnet-4-6", *EVALUATOR], 2, "ANTHROPIC_API_KEY"),
    "price unknown": (["--model", "fakes:UnpricedModel", *EVALUATOR], 2, "Limit its tokens instead"),
    "unknown setting": ([*OPTIONS, "--set", "serch.epsilon=1"], 2, "Did you mean search.epsilon"),
    "unknown method": ([*OPTIONS, "--method", "starkk"], 2, "Did you mean 'stark'"),
    "unknown policy": ([*OPTIONS, "--set", "search.policy=mtcs"], 2, "Did you mean 'mcts'"),
    "unknown evaluator": (["--model", "fakes:PretendModel", "--evaluator", "locl"], 2, "Did you mean 'local'"),
    "unknown option": ([*OPTIONS, "--atempts", "3"], 2, "No such option"),
    "missing script": (["--model", "scripted:nowhere", *EVALUATOR], 2, "nowhere"),
    "missing template": ([*OPTIONS, "--set", "prompts.plan=nowhere.j2"], 2, "prompts.plan"),
    "missing settings": ([*OPTIONS, "--config", "nowhere.toml"], 2, "nowhere.toml"),
    "missing kernel": ([*OPTIONS, "--from", "nowhere.py"], 2, "nowhere.py"),
}


@pytest.mark.parametrize("name", BAD_WORDS)
def test_bad_words_are_refused(task, tmp_path, name):
    words, code, sentence = BAD_WORDS[name]
    refused(tmp_path, sentence, code, "optimize", task, *words)


def test_a_missing_task_is_refused(tmp_path):
    refused(tmp_path, "There is no file", 2, "optimize", tmp_path / "nowhere.py", *OPTIONS)


def test_an_unwritable_run_folder_is_refused(task, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    refused(tmp_path, "file", 7, "optimize", task, *OPTIONS, "--run", tmp_path / "file" / "run")


def test_a_folder_that_holds_a_run_is_not_overwritten(run, task):
    before = stark_command("show", run).stdout
    done = stark_command("optimize", task, *OPTIONS, "--run", run)
    assert done.returncode == 2
    assert "already holds a run" in done.stderr
    assert stark_command("show", run).stdout == before


def test_a_run_of_a_newer_version_is_refused_untouched(run):
    with sqlite3.connect(run / "stark.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    for words in (["resume", run], ["show", run]):
        done = stark_command(*words)
        assert done.returncode == 7
        assert "99" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_damaged_run_is_refused_and_can_be_salvaged(run, tmp_path):
    file = run / "stark.db"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = os.urandom(8192)
    file.write_bytes(content)
    done = stark_command("resume", run)
    assert done.returncode == 7
    assert "stark salvage" in done.stderr
    assert "Traceback" not in done.stderr
    saved = stark_command("salvage", run, tmp_path / "saved")
    assert saved.returncode == 0, saved.stderr
    assert stark_command("show", tmp_path / "saved").returncode == 0


def test_settings_that_make_another_experiment_cannot_change_on_resume(run):
    done = stark_command("resume", run, "--set", "search.epsilon=0.5")
    assert done.returncode == 2
    assert "keeps its setting search" in done.stderr


# -- Python -----------------------------------------------------------------------------------------------------------


def test_the_python_api_works_where_a_loop_is_running_as_in_a_notebook(task, tmp_path):
    import asyncio

    async def cell():
        return stark.optimize(
            task,
            run=tmp_path / "run",
            roles={"model": "fakes:PretendModel"},
            evaluation={"evaluator": "fakes:HashEvaluator"},
            budget={"attempts": 5},
        )

    result = asyncio.run(cell())
    assert result.attempts == 5
    assert stark.resume(tmp_path / "run", budget={"attempts": 7}).attempts == 7


@pytest.fixture
def kernel(tmp_path):
    """One that the pretended evaluator finds correct, by its digest."""
    path = tmp_path / "kernel.py"
    sources = (TASK.replace("class Model:", "class ModelNew:") + f"# {number}\n" for number in range(100))
    path.write_text(next(source for source in sources if digest(source) % 4))
    return path


TROUBLED = ["--evaluator", "fakes:TroubledEvaluator"]
TESTS_NOTHING = "The task tests nothing, so a correct result means little: Zeros are accepted."


def test_a_verdict_shows_the_interval_of_the_median(task, kernel):
    done = stark_command("judge", task, kernel, *TROUBLED)
    assert done.returncode == 0, done.stderr
    assert "ms, with 99 % confidence" in done.stdout
    assert "tests nothing" not in done.stdout
    report = json.loads(stark_command("judge", task, kernel, *TROUBLED, "--json").stdout)
    (sample,) = report["timing"]["samples_ms"]
    assert (report["median_ms"], report["interval_ms"], report["reference_median_ms"]) == (sample, [sample] * 2, 10.0)
    assert report["degenerate"] is None


def test_a_verdict_warns_of_a_task_that_tests_nothing(task, kernel):
    task.write_text(TASK + "# degenerate\n")
    shown = stark_command("judge", task, kernel, *TROUBLED)
    assert (shown.returncode, TESTS_NOTHING in shown.stdout) == (0, True), shown
    report = json.loads(stark_command("judge", task, kernel, *TROUBLED, "--json").stdout)
    assert report["degenerate"] == "Zeros are accepted."


def test_baselines_warn_of_a_task_that_tests_nothing(task, tmp_path):
    task.write_text(TASK + "# degenerate\n")
    done = stark_command("baseline", task, *TROUBLED, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(TESTS_NOTHING) == 1


def test_a_run_continues_when_its_reader_ends(task, tmp_path):
    words = command("optimize", task, *OPTIONS, "--attempts", 8, "--run", tmp_path / "run")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")
    (found,) = read_results(tmp_path / "run")
    assert (found.metrics.attempts, found.complete) == (8, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("bench", "--tasks", "TASK", "--set", "method=sampling"), "--method"),
        (("bench", "--tasks", "TASK", "--set", "seed=7"), "--seeds"),
        (("bench", "--tasks", "TASK", "--judge-only", ".", "--attempts", "3"), "--judge-only"),
        (("judge", "TASK", "TASK", "--json", "--bundle", "kernel.zip"), "--bundle"),
    ],
)
def test_options_that_would_do_nothing_are_refused(task, words, expected):
    done = stark_command(*(task if word == "TASK" else word for word in words))
    assert done.returncode == 2
    assert expected in done.stdout + done.stderr


@pytest.mark.parametrize("place", ["task.py/best.py", "x" * 300])
def test_an_export_that_cannot_be_written_is_a_sentence(run, tmp_path, place):
    done = stark_command("export", run, "--best", tmp_path / place)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def test_an_export_does_not_take_the_place_of_a_task(run, task):
    done = stark_command("export", run, "--best", task)
    assert (done.returncode, task.read_text()) == (2, TASK)
