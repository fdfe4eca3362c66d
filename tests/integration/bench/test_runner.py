"""Benchmarks as a user meets them: real processes that are killed, stopped and started again, one store, reports."""

from __future__ import annotations

import csv
import itertools
import json
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from conformance.evaluator import KERNEL
from conformance.evaluator import TASK as REAL_TASK
from fakes import TASK, answer
from paths import ROOT
from stark.analysis.results import read_results
from stark.store.open import open_store
from stark_process import command, environment, stark_command
from stub_server import Behaviour, StubServer
from waiting import wait_until

PRETEND = ["--model", "fakes:PretendModel", "--evaluator", "fakes:HashEvaluator"]
TROUBLED = ["--model", "fakes:PretendModel", "--evaluator", "fakes:TroubledEvaluator"]


@pytest.fixture
def tasks(tmp_path):
    """Eight small tasks."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    for number in range(8):
        (folder / f"task{number}.py").write_text(f"# task {number}\n{TASK}")
    return folder


def bench(tasks, store, *words, **extra):
    return stark_command("bench", "--tasks", tasks, "--store", store, *words, **extra)


def report_of(store, folder):
    """The files of a report; how long it took is no result."""
    done = stark_command("report", store, "--out", folder)
    assert done.returncode == 0, done.stderr
    tables = {path.name: csv.DictReader(path.read_text().splitlines()) for path in folder.glob("*.csv")}
    return {
        name: [{column: value for column, value in row.items() if not column.startswith("hours ")} for row in rows]
        for name, rows in tables.items()
    }


def kill_in_the_middle(words, **extra):
    """Start a benchmark and kill it with SIGKILL when some of its runs have ended and others are in flight."""
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, text=True, env=environment(**extra))
    assert process.stdout is not None
    ended = (line for line in process.stdout if ": done" in line)
    assert len(list(itertools.islice(ended, 5))) == 5
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_killed_grid_of_all_methods_ends_with_the_report_of_an_undisturbed_one(tasks, tmp_path):
    """Three tasks, the five methods, a model server on this machine; killed in the middle."""

    def behave(body):
        prompt = body["messages"][-1]["content"]
        return Behaviour(text=answer(prompt), usage=(len(prompt) // 4, 0, 50), delay_s=0.02)

    with StubServer(behave) as server:
        options = ["--model", "stub", "--base-url", f"{server.url}/v1", "--tokens", 10**9, "--attempts", 2]
        options += ["--evaluator", "fakes:HashEvaluator", "--only", "task[0-2]"]
        disturbed, whole = tmp_path / "disturbed", tmp_path / "whole"
        kill_in_the_middle(["bench", "--tasks", tasks, "--store", disturbed, *options], OPENAI_API_KEY="none")
        assert not all(run.complete for run in read_results(disturbed))
        for store in (disturbed, whole):
            done = bench(tasks, store, *options, OPENAI_API_KEY="none")
            assert done.returncode == 0, done.stderr
    reports = [report_of(store, tmp_path / f"report-{store.name}") for store in (disturbed, whole)]
    assert reports[0] == reports[1]
    searches = [run for run in read_results(whole) if run.kind == "search"]
    assert len(searches) == 3 * 5
    assert all(run.metrics.attempts == 2 for run in searches)


def test_what_is_done_is_skipped_and_a_larger_budget_goes_on(tasks, tmp_path):
    store, options = tmp_path / "store", [*PRETEND, "--method", "reflexion", "--only", "task[01]", "--both-scores"]
    assert bench(tasks, store, *options, "--attempts", 2).returncode == 0
    again = bench(tasks, store, *options, "--attempts", 2)
    assert "Nothing was left to do." in again.stdout
    assert bench(tasks, store, *options, "--attempts", 4).returncode == 0
    results = read_results(store)
    assert [run.metrics.attempts for run in results if run.kind == "search"] == [4, 4]
    found = {(run.task, run.kind): run.metrics.best_ms for run in results}
    assert all(found[task, "rescored"] == found[task, "search"] for task in ("task0", "task1"))


@pytest.mark.parametrize(("model", "money"), [("PretendModel", "$0.00"), ("UnpricedModel", "price not known")])
def test_progress_shows_money_if_prices_are_known(tasks, tmp_path, model, money):
    words = ["--model", f"fakes:{model}", "--evaluator", "fakes:HashEvaluator", "--tokens", 10**6]
    words += ["--method", "sampling", "--only", "task[01]", "--attempts", 2, "--no-baselines"]
    done = bench(tasks, tmp_path / "store", *words)
    assert f"[4/4 attempts, {money}; nothing left" in " ".join(done.stdout.split())
    assert ("$" in done.stdout) == ("$" in money)


def test_a_store_is_one_experiment(tasks, tmp_path):
    store, options = tmp_path / "store", ["--method", "sampling", "--only", "task0", "--attempts", 1]
    assert bench(tasks, store, *PRETEND, *options).returncode == 0
    other = bench(tasks, store, *PRETEND, *options, "--set", "roles.solo.temperature=0.2")
    assert (other.returncode, "roles.solo.temperature = 0.7 (now 0.2)" in other.stderr) == (2, True)
    (tasks / "task0.py").write_text(f"# changed\n{TASK}")
    other = bench(tasks, store, *PRETEND, *options)
    assert (other.returncode, "another task file" in other.stderr) == (2, True)


def test_a_switch_is_an_axis_and_must_be_fair(tasks, tmp_path):
    options = [*PRETEND, "--only", "task0", "--attempts", 2, "--no-baselines"]
    done = bench(tasks, tmp_path / "store", *options, "--switch", "anchors.mode=off", "--seeds", 2, "--method", "stark")
    assert done.returncode == 0, done.stderr
    found = {(run.method, run.seed) for run in read_results(tmp_path / "store")}
    assert found == {(name, seed) for name in ("stark", "stark (anchors.mode=off)") for seed in (0, 1)}
    for unfair in ("budget.attempts=99", "evaluation.score=kernelbench"):
        refused = bench(tasks, tmp_path / "store", *options, "--switch", unfair)
        assert (refused.returncode, "same budget and evaluator" in refused.stderr) == (2, True)
    refused = bench(tasks, tmp_path / "store", *options, "--set", "budget.wall_s=60")
    assert (refused.returncode, "would not be fair" in refused.stderr) == (2, True)


def test_failed_tasks_faults_and_exhausted_budgets_differ(tasks, tmp_path):
    for number, trouble in enumerate(("degenerate", "broken", "fault")):
        (tasks / f"task{number}.py").write_text(f"# {trouble}\n{TASK}")
    store, repaired = tmp_path / "store", tmp_path / "repaired"
    options = [*TROUBLED, "--method", "sampling", "--attempts", 3, "--no-baselines", "--only", "task[0-4]"]
    first = bench(tasks, store, *options, "--tokens", 100, REPAIRED=str(repaired))
    assert first.returncode == 6
    for words in ("the task tests nothing", "does not work here", "infrastructure fault", "budget exhausted: tokens"):
        assert words in first.stdout
    assert "The GPU fell off the bus." in first.stderr
    repaired.touch()
    second = bench(tasks, store, *options, "--tokens", 10**6, REPAIRED=str(repaired))
    assert second.returncode == 0, second.stderr
    with closing(open_store(store, write=False)) as opened:
        endings = {record.task.name: opened.ending(record.id).reason for record in opened.runs()}
    assert endings == {"task0": "degenerate", "task1": "task"} | dict.fromkeys(("task2", "task3", "task4"), "attempts")


def test_a_benchmark_of_which_nothing_could_be_searched_fails_and_its_report_says_why(tasks, tmp_path):
    for number, trouble in enumerate(("degenerate", "broken")):
        (tasks / f"task{number}.py").write_text(f"# {trouble}\n{TASK}")
    store = tmp_path / "store"
    options = [*TROUBLED, "--method", "sampling", "--attempts", 1]
    for done in [bench(tasks, store, *options, "--only", "task[01]") for _ in range(2)]:  # the second is as fruitless
        assert done.returncode == 2
        assert "No task is usable" in done.stderr
        assert f" report {store}" in done.stderr
    assert report_of(store, tmp_path / "report")["broken.csv"] == [
        {"task": "task1", "score": "verified", "why": "The task's own code does not work. It is broken. Fix it."}
    ]
    assert bench(tasks, store, *options, "--only", "task[0-2]").returncode == 0, "one of them could"


def test_kernels_for_tasks_that_do_not_work_are_not_judged(tmp_path):
    checkout, made = tmp_path / "KernelBench" / "level1", tmp_path / "made"
    checkout.mkdir(parents=True)
    made.mkdir()
    (checkout / "1_Task.py").write_text(f"# broken\n{TASK}")
    (made / "level_1_problem_1_sample_0_kernel.py").write_text(KERNEL)
    words = ["bench", "--kernelbench", tmp_path, "--judge-only", made, "--store", tmp_path / "store", *TROUBLED]
    done = stark_command(*words)
    assert (done.returncode, "No task is usable" in done.stderr) == (2, True)


def test_a_machinery_that_is_down_ends_the_benchmark(tasks, tmp_path):
    for path in tasks.iterdir():
        path.write_text(f"# fault in {path.name}\n{TASK}")
    options = [*TROUBLED, "--parallel-runs", 1, "--no-baselines"]
    done = bench(tasks, tmp_path / "store", *options, REPAIRED=str(tmp_path / "never"))
    assert done.returncode == 6
    assert done.stdout.count("infrastructure fault") == 3 + 1  # one line each, and the summary
    assert "Stopping after 3 faults in a row" in done.stdout


@pytest.mark.parametrize("option", ["--tasks", "--kernelbench", "--dataset"])
def test_a_place_that_is_not_there_is_named(tmp_path, option):
    refused = stark_command("bench", option, tmp_path / "nowhere", *PRETEND)
    assert (refused.returncode, f"{tmp_path / 'nowhere'} does not exist." in refused.stderr.replace("\n", "")) == (
        2,
        True,
    )


def test_a_full_disk_ends_the_benchmark_and_the_same_command_goes_on(tasks, tmp_path):
    store, options = tmp_path / "store", [*PRETEND, "--method", "sampling", "--attempts", 4, "--no-baselines"]
    words = command("bench", "--tasks", tasks, "--store", store, *options)
    limited = ["bash", "-c", 'ulimit -f 400; exec "$@"', "bash", *words]  # no file may exceed 400 KiB
    full = subprocess.run(limited, capture_output=True, text=True, env=environment())
    assert (full.returncode, "space left on it" in full.stderr) == (7, True)
    assert "Traceback" not in full.stderr
    done = bench(tasks, store, *options)
    assert done.returncode == 0, done.stderr
    assert [run.metrics.attempts for run in read_results(store)] == [4] * 8


def test_a_stopped_benchmark_lets_attempts_land_and_goes_on(tasks, tmp_path):
    store, held = tmp_path / "store", tmp_path / "held"
    slow = ["--model", "fakes:HeldModel", "--evaluator", "fakes:HashEvaluator", "--method", "sampling"]
    words = [
        "bench",
        "--tasks",
        tasks,
        "--store",
        store,
        *slow,
        "--attempts",
        3,
        "--no-baselines",
        "--parallel-runs",
        4,
    ]
    held.touch()
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, text=True, env=environment(HELD_BY=str(held)))
    wait_until(lambda: (store / "stark.db").exists() and _landed(store))
    refused = stark_command(*words, HELD_BY=str(held))
    assert (refused.returncode, f"process {process.pid}" in refused.stderr) == (7, True)
    process.send_signal(signal.SIGINT)
    held.unlink()
    said = process.communicate()[0]
    assert said.count("running attempts are finished first") == 1
    assert "stopped, can be resumed" in said
    assert process.returncode == 130
    assert 0 < sum(run.metrics.attempts for run in read_results(store) if run.metrics) < 24
    done = stark_command(*words, HELD_BY=str(held))
    assert done.returncode == 0, done.stderr
    assert [run.metrics.attempts for run in read_results(store)] == [3] * 8


def _landed(store):
    with closing(open_store(store, write=False)) as opened:
        return any(len(opened.judgements(record.id)) > 1 for record in opened.runs())


def test_a_dry_run_lists_the_tasks_and_starts_nothing(tasks, tmp_path):
    done = bench(tasks, tmp_path / "store", "--dry-run", "--seeds", 2)
    assert done.returncode == 0, done.stderr
    assert all(f"task{number}" in done.stdout for number in range(8))
    assert "8 tasks, 80 searches" in done.stdout
    assert "2,400 attempts by" in done.stdout
    assert "Assumed: 40 s for a call, 6 s for an evaluation" in done.stdout
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("model", "limits", "expected"),
    [
        ("PretendModel", [], "stop before they have spent $80.00."),
        ("PretendModel", ["--tokens", 500], "stop before they have spent $80.00 or 4,000 tokens."),
        ("UnpricedModel", ["--tokens", 500], "stop before they have spent 4,000 tokens."),
        ("UnpricedModel", [], "the runs need --tokens to start."),
    ],
)
def test_a_dry_run_promises_no_limit_that_does_not_hold(tasks, tmp_path, model, limits, expected):
    words = ["--dry-run", "--model", f"fakes:{model}", "--method", "sampling", *limits]
    done = bench(tasks, tmp_path / "store", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith(f"{expected} Nothing was started.\n")
    assert ("$" in done.stdout) == (model == "PretendModel")


def test_an_estimate_needs_no_key(tasks, tmp_path, monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    named = ["--model", "anthropic:claude-sonnet-4-6"]
    done = bench(tasks, tmp_path / "store", "--dry-run", *named)
    assert done.returncode == 0, done.stderr
    assert "attempts by anthropic:claude-sonnet-4-6" in done.stdout
    assert "$" in done.stdout
    refused = bench(tasks, tmp_path / "store", *named)
    assert (refused.returncode, "ANTHROPIC_API_KEY" in refused.stderr) == (2, True)
    unknown = bench(tasks, tmp_path / "store", "--dry-run", "--model", "antropic:claude")
    assert (unknown.returncode, "anthropic" in unknown.stderr) == (2, True)


def test_one_run_of_a_benchmark_is_picked_by_name(tasks, tmp_path):
    store = tmp_path / "store"
    bench(tasks, store, *PRETEND, "--method", "sampling", "--only", "task[01]", "--attempts", 3)
    refused = stark_command("resume", store)
    assert (refused.returncode, "stark bench command that began it" in refused.stderr) == (2, True)
    for words in ([], ["--run", "sampling"], ["--run", "no such run"]):
        refused = stark_command("show", store, *words)
        assert refused.returncode == 2
        assert "holds a benchmark of 4 runs" in refused.stderr
        for name in ("task0", "task1"):
            assert f"{name} | search | verified | sampling | as it is | seed 0" in refused.stderr
    for name in ("task1 | search | verified | sampling | as it is | seed 0", "task1*sampling"):
        shown = stark_command("show", store, "--run", name)
        assert (shown.returncode, "task1" in shown.stdout) == (0, True)
    assert "You are" in stark_command("show", store, 1, "--run", "task1*sampling").stdout
    calls = tmp_path / "calls.jsonl"
    done = stark_command("export", store, "--run", "task1*sampling", "--training-data", calls, "--role", "solo")
    assert (done.returncode, len(calls.read_text().splitlines())) == (0, 3)


def test_a_single_run_can_be_reported_and_compared(tasks, tmp_path):
    for seed in (1, 2):
        options = [*PRETEND, "--attempts", 4, "--seed", seed, "--run", tmp_path / f"{seed}"]
        assert stark_command("optimize", tasks / "task0.py", *options).returncode in (0, 3)
    shown = stark_command("report", tmp_path / "1", "--table", "table-1")
    assert (shown.returncode, "Table 1" in shown.stdout) == (0, True)
    compared = stark_command("compare", tmp_path / "1", tmp_path / "2")
    assert "(1 compared)." in compared.stdout
    assert compared.stdout.count("Score: verified.") == 2
    refused = stark_command("report", tmp_path / "1", "--table", "table-9")
    assert (refused.returncode, "table-9" in refused.stderr) == (2, True)


# As KernelBench names its files: the likely 30 tasks of the paper, and next to them those the paper left out.
PAPER = [
    "level1/1_Square_matrix_multiplication_",
    "level1/3_Batched_matrix_multiplication",
    "level1/6_Matmul_with_large_K_dimension_",
    "level1/18_Matmul_with_transposed_both",
    "level1/33_BatchNorm",
    "level1/40_LayerNorm",
    "level1/42_Max_Pooling_2D",
    "level1/48_Mean_reduction_over_a_dimension",
    "level1/54_conv_standard_3D__square_input__square_kernel",
    "level1/57_conv_transposed_2D__square_input__square_kernel",
    "level1/65_conv_transposed_2D__square_input__asymmetric_kernel",
    "level1/77_conv_transposed_3D_square_input_square_kernel___padded____dilated____strided__",
    "level1/82_conv_depthwise_2D_square_input_square_kernel",
    "level1/86_conv_depthwise_separable_2D",
    "level2/1_Conv2D_ReLU_BiasAdd",
    "level2/2_ConvTranspose2d_BiasAdd_Clamp_Scaling_Clamp_Divide",
    "level2/8_Conv3d_Divide_Max_GlobalAvgPool_BiasAdd_Sum",
    "level2/18_Matmul_Sum_Max_AvgPool_LogSumExp_LogSumExp",
    "level2/23_Conv3d_GroupNorm_Mean",
    "level2/28_BMM_InstanceNorm_Sum_ResidualAdd_Multiply",
    "level2/33_Gemm_Scale_BatchNorm",
    "level2/43_Conv3d_Max_LogSumExp_ReLU",
    "level3/1_MLP",
    "level3/5_AlexNet",
    "level3/8_ResNetBasicBlock",
    "level3/11_VGG16",
    "level3/20_MobileNetV2",
    "level3/33_VanillaRNN",
    "level3/38_LSTMBidirectional",
    "level3/43_MinGPTCausalAttention",
]
NOT_IN_IT = [
    "level1/2_Standard_matrix_multiplication_",
    "level1/23_Softmax",
    "level1/26_GELU_",
    "level1/36_RMSNorm_",
    "level1/87_conv_pointwise_2D",
    "level2/3_ConvTranspose3d_Sum_LayerNorm_AvgPool_GELU",
    "level3/21_EfficientNetMBConv",
    "level4/1_EleutherAI-gpt-neo-2p7B_bs32_seq256",
]


def test_the_subset_paper_is_exactly_its_thirty_tasks(tmp_path):
    for name in (*PAPER, *NOT_IN_IT):
        file = tmp_path / "KernelBench" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TASK)
    shown = stark_command("bench", "--kernelbench", tmp_path, "--subset", "paper", "--dry-run", *PRETEND)
    assert shown.returncode == 0, shown.stderr
    assert len(PAPER) == 30
    assert [line.strip() for line in shown.stdout.splitlines() if line.strip().startswith("level")] == PAPER
    assert "30 tasks" in shown.stdout


def test_loading_a_checkout_says_what_loads_and_what_does_not(tmp_path):
    for name in (*PAPER, *NOT_IN_IT):
        file = tmp_path / "checkout" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(TASK)
    words = [sys.executable, ROOT / "benchmarks" / "perf" / "loading.py", tmp_path / "checkout", "--save"]
    for broken in ([], ["level4/1_EleutherAI-gpt-neo-2p7B_bs32_seq256"]):
        for name in broken:
            (tmp_path / "checkout" / f"{name}.py").write_text("class Model(")
        done = subprocess.run(words, capture_output=True, text=True, env=environment(STARK_RESULTS=str(tmp_path)))
        assert done.returncode == len(broken), done.stderr
        kept = json.loads((tmp_path / "loading.json").read_text())
        assert list(kept["refused"]) == broken
        assert kept["subsets"] == {"representative": 35, "paper": 30}
        assert kept["loaded"].get("level 4", 0) == 1 - len(broken)
        assert str(tmp_path) not in json.dumps(kept)


def test_kernels_of_another_tool_are_judged_for_real_by_both_scores(tmp_path):
    level = tmp_path / "checkout" / "level1"
    level.mkdir(parents=True)
    (level / "7_Relu.py").write_text(REAL_TASK)
    made = tmp_path / "their-run"
    made.mkdir()
    (made / "level_1_problem_7_sample_0_kernel.py").write_text(KERNEL)
    (made / "level_1_problem_7_sample_1_kernel.py").write_text("class ModelNew(")
    words = [
        "bench",
        "--kernelbench",
        level.parent,
        "--judge-only",
        made,
        "--store",
        tmp_path / "store",
        "--no-baselines",
        "--allow-weak-sandbox",
    ]
    done = stark_command(*words)
    assert done.returncode == 0, done.stderr
    results = read_results(tmp_path / "store")
    assert {run.score for run in results} == {"verified", "kernelbench HEAD"}
    for run in results:
        assert (run.method, run.metrics.attempts, run.metrics.correct) == ("their-run", 2, 1)
        assert run.speedup() > 0


def test_a_grid_with_the_real_evaluator(tmp_path):
    """Both kinds of run for real: a search with replies written beforehand, and torch's own reference."""
    words = ["bench", "--tasks", ROOT / "examples" / "tasks" / "gated_activation.py", "--method", "stark"]
    words += ["--model", f"scripted:{ROOT / 'examples' / 'conversations' / 'first-run'}", "--attempts", 1]
    words += ["--store", tmp_path / "store", "--no-baselines", "--allow-weak-sandbox"]
    done = stark_command(*words)
    assert done.returncode == 0, done.stderr
    (run,) = read_results(tmp_path / "store")
    assert (run.metrics.attempts, run.ending.reason) == (1, "attempts")
    assert run.metrics.root_ms > 0
