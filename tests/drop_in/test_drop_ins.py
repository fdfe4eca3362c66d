"""Drop-ins of odd kernels, used in many ways, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from drop_in.cases import CASES, Case
from drop_in.playbook import TASKS, playbook_case
from drop_in.uses import EQUAL, REFUSED
from stark.core.records import judged_source

USES = Path(__file__).with_name("uses.py")
EVERY = 9  # of all pairs of conditions, of most drop-ins; benchmarks/proofs/drop_ins.py tries all of all


def use(case: Case, folder: Path, *words: str) -> list[dict]:
    for name, text in {"drop_in.py": case.drop_in(), "task.py": case.task}.items():
        (folder / name).write_text(text, encoding="utf-8")
    command = [sys.executable, str(USES), str(folder / "drop_in.py"), str(folder / "task.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_drop_in_equals_the_original_in_every_use(case, tmp_path):
    first = next(number for number, each in enumerate(CASES) if each is case) % EVERY
    found = use(case, tmp_path, "pairs", "--skip", str(first), "--every", str(EVERY if first else 1))
    wrong = [each for each in found if each["outcome"] not in (EQUAL, REFUSED)]
    assert not wrong, wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_usual_call_runs_the_kernel(case, tmp_path):
    (found,) = use(case, tmp_path, "context=no_grad")
    assert (found["outcome"], found["kernel"]) == (EQUAL, case.runs)


def test_a_kernel_runs_in_the_mode_in_which_it_was_judged(tmp_path):
    (case,) = (each for each in CASES if each.name == "judged in evaluation mode")
    (found,) = use(case, tmp_path, "context=no_grad", "mode=evaluation")
    assert (found["outcome"], found["kernel"]) == (EQUAL, True)


def test_the_judge_builds_the_kernel_before_the_calls(tmp_path):
    """A compiler inside a call looks like a hang to a judge that cannot see it."""
    text = replace(CASES[0], kernel=f"{CASES[0].kernel}\nprint('the kernel runs')\n").drop_in()
    assert import_in_process(text, tmp_path) == ""
    assert import_in_process(judged_source(text), tmp_path) == "the kernel runs\n"


def import_in_process(text: str, folder: Path) -> str:
    (folder / "drop_in.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", "import drop_in"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.stem)
def test_gradients_of_every_example_task_equal_the_originals(task, tmp_path):
    (found,) = use(playbook_case(task), tmp_path, "context=gradients")
    assert (found["outcome"], found["kernel"]) == (EQUAL, True)
