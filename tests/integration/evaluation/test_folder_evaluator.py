"""The folder evaluator with real worker processes: two sides that know nothing but the folder."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from stark.core.errors import EvaluatorError, TaskError, UsageError
from stark.core.settings import EvaluationSettings
from stark.evaluation.folder import FolderEvaluator
from stark_worker.protocol.codec import to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.folder import FOLDERS
from stark_worker.protocol.request import Entry, EvalRequest, Limits, Target
from stark_worker.scheduler.serve import ANSWER_LIFETIME_S
from waiting import wait_until
from worker_fixture import SOURCES, below, serving

TASK = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 + 1


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
"""
RIGHT = TASK.replace("class Model(", "class ModelNew(")
WRONG = RIGHT.replace("+ 1", "+ 1.5")


def evaluator(folder: Path, worker_timeout_s: float = 60.0, **settings) -> FolderEvaluator:
    return FolderEvaluator(EvaluationSettings(folder=str(folder), worker_timeout_s=worker_timeout_s, **settings))


def evaluate(folder: Path, *sources: str, task: str = TASK):
    async def all_at_once():
        async with evaluator(folder) as judge:
            return await asyncio.gather(*(judge.evaluate(EvalRequest(task, source)) for source in sources))

    return asyncio.run(all_at_once())


def left_in(folder: Path) -> list[Path]:
    return [path for part in FOLDERS for path in (folder / part).iterdir()]


def test_requests_are_answered_and_nothing_is_left(tmp_path):
    with serving(tmp_path):
        right, wrong = evaluate(tmp_path, RIGHT, WRONG)
        assert (right.outcome, wrong.outcome) == (Outcome.OK, Outcome.WRONG_RESULT)
        assert asyncio.run(evaluator(tmp_path).device()).kind == "cpu"
        with pytest.raises(TaskError, match="get_inputs"):
            evaluate(tmp_path, RIGHT, task=TASK.replace("torch.randn(64, 64)", "undefined"))
    assert left_in(tmp_path) == []


def test_either_side_may_die_and_come_back(tmp_path):
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path), TASK, RIGHT], env={**os.environ, "PYTHONPATH": str(SOURCES)}
    )
    wait_until(lambda: list((tmp_path / "requests").glob("*.json")) if (tmp_path / "requests").exists() else [])
    host.kill()
    host.wait()
    with serving(tmp_path) as first:
        wait_until(lambda: list((tmp_path / "working").glob("*.json")))
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert list((tmp_path / "working").glob("*.json"))
    (tmp_path / "stop").unlink()
    with serving(tmp_path):
        (report,) = evaluate(tmp_path, RIGHT)
    assert report.outcome is Outcome.OK
    assert left_in(tmp_path) == []  # what the first host asked was taken up, not asked again


def test_a_returning_host_may_want_another_profile(tmp_path):
    """From what time on one is wanted depends on how far the run is."""

    async def ask_and_go(wish: float) -> None:
        async with evaluator(tmp_path) as judge:
            asking = asyncio.create_task(judge.evaluate(EvalRequest(TASK, RIGHT, profile_below_ms=wish)))
            for _ in range(20):  # it asks at its first turn, and looks for the answer at the others
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])

    for wish in (1e12, 11.7):
        asyncio.run(ask_and_go(wish))
    assert len(list((tmp_path / "requests").glob("*.json"))) == 1


async def ask_as_two_hosts(folder: Path):
    async def ask():
        async with evaluator(folder) as judge:
            return await judge.evaluate(EvalRequest(TASK, RIGHT))

    return await asyncio.gather(ask(), ask())


def test_hosts_that_ask_the_same_at_once_both_get_an_answer(tmp_path):
    with serving(tmp_path):
        reports = asyncio.run(ask_as_two_hosts(tmp_path))
    assert [report.outcome for report in reports] == [Outcome.OK, Outcome.OK]
    assert left_in(tmp_path) == []


def test_old_answers_are_removed_when_a_worker_starts(tmp_path):
    for part in ("answers", "asked"):
        (tmp_path / part).mkdir()
        for name, age_s in (("old.json", ANSWER_LIFETIME_S + 60), ("new.json", ANSWER_LIFETIME_S - 60)):
            (tmp_path / part / name).write_text("{}")
            os.utime(tmp_path / part / name, (time.time() - age_s,) * 2)
    with serving(tmp_path):
        wait_until((tmp_path / "heartbeat").exists)
    assert [path.name for path in left_in(tmp_path)] == ["new.json", "new.json"]


def test_a_worker_of_another_kind_is_refused(tmp_path):
    async def ask():
        async with evaluator(tmp_path, target=Target.CUDA, retries=0) as judge:
            with pytest.raises(EvaluatorError, match=f"serve {tmp_path} --target cuda"):
                await judge.device()
            with pytest.raises(EvaluatorError, match="serves the target cpu; the request is for cuda"):
                await judge.evaluate(EvalRequest(TASK, RIGHT, target=Target.CUDA))

    with serving(tmp_path):
        asyncio.run(ask())
    assert left_in(tmp_path) == []


def test_reports_of_different_devices_are_not_taken_for_those_of_one(tmp_path):
    async def ask():
        async with evaluator(tmp_path) as judge:
            here = await judge.device()
            (tmp_path / "device.json").write_text(to_json(replace(here, name="another one")))
            assert (await judge.evaluate(EvalRequest(TASK, RIGHT))).outcome is Outcome.OK  # as it was when first asked
        async with evaluator(tmp_path) as judge:
            with pytest.raises(EvaluatorError, match=f"another one .*{re.escape(here.name)}.*cannot be compared"):
                await judge.evaluate(EvalRequest(TASK, RIGHT))

    with serving(tmp_path):
        asyncio.run(ask())


SLEEPING = RIGHT + "\nimport subprocess\nsubprocess.run(['sleep', '6420.25'])\n"


async def kill_referees(worker: int) -> None:
    """Whenever a candidate of this worker sleeps."""
    known: set[int] = set()
    while True:
        await asyncio.sleep(0.1)
        running = below(worker)
        new = {process for process, name in running.items() if name == "sleep"} - known
        known |= new
        for process in (process for process, name in running.items() if new and name == "stark-referee"):
            os.kill(process, signal.SIGKILL)


def test_a_candidate_that_ends_the_referee_every_time_has_crashed(tmp_path):
    async def ask(worker: int):
        killing = asyncio.create_task(kill_referees(worker))
        async with evaluator(tmp_path, retries=1) as judge:
            report = await judge.evaluate(EvalRequest(TASK, SLEEPING))
        killing.cancel()
        return report

    with serving(tmp_path) as worker:
        report = asyncio.run(ask(worker.pid))
    assert report.outcome is Outcome.CRASH
    assert "died every time" in report.log


IMPATIENT = (
    "import sys; from stark_worker import __main__; from stark_worker.scheduler import lane; "
    "lane.REFERENCE_SLACK_S = -19.0; __main__.main(sys.argv[1:])"
)


def test_a_referee_that_never_answers_is_the_candidates_doing_but_not_the_references(tmp_path):
    slow = EvalRequest(TASK, SLEEPING, limits=Limits(build_s=10.0, run_s=10.0))
    reference = replace(slow, task_source=TASK + "\nimport time\ntime.sleep(60)\n", entry=Entry.REFERENCE)

    async def ask():
        async with evaluator(tmp_path) as judge:
            report = await judge.evaluate(slow)
            with pytest.raises(EvaluatorError, match="reference is very slow"):
                await judge.evaluate(reference)
            return report

    with serving(tmp_path, ("-c", IMPATIENT)):
        report = asyncio.run(ask())
    assert report.outcome is Outcome.TIMEOUT
    assert "No answer within 1 s" in report.log


HURRIED = (
    "import sys; from stark_worker import __main__; from stark_worker.scheduler import serve; "
    "serve.RETRY_EVERY_S, serve.GIVE_UP_AFTER_S = 0.2, 3.0; "
    "sys.exit(__main__.main(sys.argv[1:]))"
)


def block(path: Path) -> None:
    """Have every write of this file fail, also for root."""
    path.unlink(missing_ok=True)
    (path / "in the way").mkdir(parents=True)


def unblock(path: Path) -> None:
    (path / "in the way").rmdir()
    path.rmdir()


def test_a_folder_that_cannot_be_written_for_a_moment_is_waited_for(tmp_path, capfd):
    heartbeat = tmp_path / "heartbeat"
    with serving(tmp_path, ("-c", HURRIED)) as worker:
        wait_until(heartbeat.exists)
        block(heartbeat)
        output = ""

        def warned() -> bool:
            nonlocal output
            output += capfd.readouterr().err
            return "will be retried" in output

        wait_until(warned)
        unblock(heartbeat)
        (report,) = evaluate(tmp_path, RIGHT)
        assert heartbeat.exists()
    assert report.outcome is Outcome.OK
    assert worker.returncode == 0
    assert f"ends because {tmp_path / 'stop'} exists" in capfd.readouterr().err


def test_a_folder_that_stays_unwritable_ends_the_worker_with_one_sentence(tmp_path, capfd):
    with serving(tmp_path, ("-c", HURRIED)) as worker:
        wait_until((tmp_path / "heartbeat").exists)
        block(tmp_path / "heartbeat")
        assert worker.wait() == 3
    output = capfd.readouterr().err
    assert "Traceback" not in output
    assert output.splitlines()[-1].startswith(f"worker: {tmp_path} cannot be used: ")
    assert "start the worker again" in output
    assert not list(tmp_path.glob(".heartbeat*")), "no drafts are left"


HOST = """
import asyncio, sys
from stark.evaluation.folder import FolderEvaluator
from stark.core.settings import EvaluationSettings
from stark_worker.protocol.request import EvalRequest

async def main():
    async with FolderEvaluator(EvaluationSettings(folder=sys.argv[1])) as judge:
        await judge.evaluate(EvalRequest(sys.argv[2], sys.argv[3]))

asyncio.run(main())
"""


def test_no_worker_is_said_plainly(tmp_path):
    async def ask():
        async with evaluator(tmp_path, worker_timeout_s=0.3) as judge:
            await judge.evaluate(EvalRequest(TASK, RIGHT))

    with pytest.raises(EvaluatorError, match="python -m stark_worker serve"):
        asyncio.run(ask())


def test_a_folder_has_to_be_named():
    with pytest.raises(UsageError, match=r"evaluation\.folder"):
        FolderEvaluator(EvaluationSettings())
