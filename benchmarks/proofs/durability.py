"""Kill a run at random moments, again and again, and see whether anything was lost, repeated or overspent.

    python benchmarks/proofs/durability.py [--kills 200] [--save]

A model server (a process of its own that keeps its own log) answers over HTTP; the run is a real process with a real
store. Each life is ended by SIGKILL at a random moment and followed by a resume. Proven from the server's log:

  one in flight   the final tree is the undisturbed run's; at most one repeated call per kill
  N in flight     at most N repeated calls per kill; no stored reply is lost or asked for again
  budget          with a limit on tokens, what the server handed out never exceeds it

The lives are forked from a parent that has imported everything, so that a kill hits work and not imports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

import langgraph.graph  # noqa: F401
import record

import stark.models.provider  # noqa: F401
from fakes import TASK, answer, digest
from stark.core.records import Event, EventKind
from stark.core.tree import Node
from stark.run import (
    api,
    assembly,
)
from stark.run.settings_loader import load_settings
from stark.store.open import open_store
from stub_server import Behaviour, StubServer

fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Trial:
    """One experiment: how a run is disturbed."""

    name: str
    kills: int
    jobs: int = 1
    attempts: int = 60
    tokens: int = 1_000_000_000
    max_output_tokens: int = 400
    compare: bool = False


@dataclass(frozen=True)
class Finding:
    """The result of a trial. ``excess`` counts a life's requests that were neither stored nor in flight at its end."""

    name: str
    kills: int
    jobs: int
    attempts: int
    requests: int
    stored_calls: int
    repeated: int
    excess: int
    stored_then_lost: int
    tokens_handed_out: int
    token_limit: int
    same_tree_as_undisturbed: bool | None

    @property
    def holds(self) -> bool:
        return (
            self.repeated <= self.kills * self.jobs
            and self.excess == self.stored_then_lost == 0
            and self.tokens_handed_out <= self.token_limit
            and self.same_tree_as_undisturbed is not False
        )


@contextmanager
def model_server(log: Path) -> Any:
    """A server in a process of its own that notes every request it answers, before it answers."""
    ready, address = fork.Pipe()
    process = fork.Process(target=_serve, args=(log, address), daemon=True)
    process.start()
    try:
        yield ready.recv()
    finally:
        process.kill()
        process.join()


def _serve(log: Path, address: Any) -> None:
    lines = log.open("a", buffering=1)

    def behave(body: Any) -> Behaviour:
        prompt = body["messages"][-1]["content"]
        text = answer(prompt)
        usage = (len(prompt) // 4, 0, min(len(text) // 4, body["max_completion_tokens"]))
        lines.write(json.dumps({"prompt": digest(prompt), "tokens": usage[0] + usage[2], "at": time.time()}) + "\n")
        return Behaviour(text=text, usage=usage, delay_s=random.random() * 0.02)

    with StubServer(behave) as server:
        address.send(server.url)
        signal.pause()


def _job(folder: Path, url: str, trial: Trial) -> assembly.Job:
    task = folder / "task.py"
    task.write_text(TASK)
    roles = {role: {"max_output_tokens": trial.max_output_tokens} for role in ("plan", "code", "debug", "solo")}
    options = {
        "jobs": trial.jobs,
        "budget": {"attempts": trial.attempts, "tokens": trial.tokens},
        "evaluation": {"evaluator": "fakes:HashEvaluator"},
        "roles": {"model": "pretend-llm", "base_url": f"{url}/v1", **roles},
    }
    return api.prepare(task, load_settings(options=options), folder / "run")


def _live(folder: Path, url: str, trial: Trial, at_work: Any) -> None:
    """One life of the run: begin it or go on with it. Whatever ends it early is the trial's doing."""
    os.environ["OPENAI_API_KEY"] = "none"

    def listener(event: Event) -> None:
        if event.kind is EventKind.ASKING:
            at_work.set()

    if (folder / "run" / "stark.db").exists() and _read(folder)[0]:
        asyncio.run(api.resume_run(folder / "run", listener=listener))
    else:
        asyncio.run(api.start(_job(folder, url, trial), listener))


Calls = dict[tuple[int, int], tuple[int, str]]  # (attempt, index) -> (prompt, reply)


def _read(folder: Path) -> tuple[list[Any], list[Node], Calls]:
    """Runs, nodes and replies that are stored so far."""
    if not (folder / "run" / "stark.db").exists():
        return [], [], {}
    with closing(open_store(folder / "run", write=False)) as store:
        runs = store.runs()
        if not runs:
            return [], [], {}
        calls = store.calls(runs[0].id)
        replies = {(call.number, call.index): (digest(call.messages[-1].content), call.reply.text) for call in calls}
        return runs, store.nodes(runs[0].id), replies


def _life(folder: Path, url: str, trial: Trial, rng: random.Random | None) -> bool:
    """A life in a process of its own, killed at a random moment where a generator is given; whether it ended by itself.

    One kill in five may come at any moment from the start on, the others once the run is at work.
    """
    at_work = fork.Event()
    process = fork.Process(target=_live, args=(folder, url, trial, at_work))
    process.start()
    if rng is not None:
        if rng.random() > 0.2:
            at_work.wait(30)
        process.join(rng.uniform(0.0, 0.4))
        if process.is_alive():
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            return False
    process.join()
    if process.exitcode:
        raise SystemExit(f"{trial.name}: a life ended with exit code {process.exitcode}")
    return True


class Watch:
    """Follows the server's log and the store from life to life."""

    def __init__(self, folder: Path, log: Path, jobs: int) -> None:
        self._folder, self._log, self._jobs = folder, log, jobs
        self._seen = 0
        self.stored: Calls = {}
        self.lost = self.excess = 0

    def life_ended(self, killed: bool) -> None:
        time.sleep(0.02)  # a request on its way when its sender died is logged by then
        requests = _read_log(self._log)[self._seen :]
        self._seen += len(requests)
        stored = _read(self._folder)[2]
        self.lost += sum(stored.get(key) != value for key, value in self.stored.items())
        unstored = len(requests) - (len(stored) - len(self.stored))
        self.excess += max(0, unstored - (self._jobs if killed else 0))
        self.stored = stored


def run_trial(trial: Trial, rng: random.Random) -> Finding:
    with tempfile.TemporaryDirectory() as name, model_server(Path(name) / "server.jsonl") as url:
        folder, log = Path(name), Path(name) / "server.jsonl"
        watch, kills = Watch(folder, log, trial.jobs), 0
        while kills < trial.kills and not _life(folder, url, trial, rng):
            kills += 1
            watch.life_ended(killed=True)
        _life(folder, url, trial, None)
        watch.life_ended(killed=False)
        requests, nodes = _read_log(log), _read(folder)[1]
        return Finding(
            name=trial.name,
            kills=kills,
            jobs=trial.jobs,
            attempts=len(nodes) - 1,
            requests=len(requests),
            stored_calls=len(watch.stored),
            repeated=len(requests) - len(watch.stored),
            excess=watch.excess,
            stored_then_lost=watch.lost,
            tokens_handed_out=sum(row["tokens"] for row in requests),
            token_limit=trial.tokens,
            same_tree_as_undisturbed=nodes == _undisturbed(folder / "whole", url, trial) if trial.compare else None,
        )


def _undisturbed(folder: Path, url: str, trial: Trial) -> list[Node]:
    folder.mkdir()
    _life(folder, url, trial, None)
    return _read(folder)[1]


def _read_log(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def trials(kills: int) -> list[Trial]:
    """Three ways to be disturbed, with attempts enough that every kill finds the run at work."""
    attempts = max(20, 3 * kills)
    return [
        Trial("one in flight", kills, attempts=attempts, compare=True),
        Trial("six in flight", kills, jobs=6, attempts=4 * attempts),
        Trial("six in flight, limited tokens", kills, jobs=6, attempts=1_000_000, tokens=100_000 * kills),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="kills per trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/durability.json")
    arguments = parser.parse_args()
    findings = []
    for trial in trials(arguments.kills):
        finding = run_trial(trial, random.Random(arguments.seed))
        findings.append(finding)
        print(f"{finding.name}: {'holds' if finding.holds else 'BROKEN'}")
        for key, value in asdict(finding).items():
            print(f"    {key:<26} {value}")
    if arguments.save:
        found = {"findings": [asdict(finding) for finding in findings]}
        record.write(record.result_file("durability"), record.facts() | found)
    sys.exit(0 if all(finding.holds for finding in findings) else 1)


if __name__ == "__main__":
    main()
