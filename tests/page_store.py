"""Runs written straight into a store, for tests and benchmarks of the page: of any size, and with any text in them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from stark.core.chat import Message, Reply, Usage
from stark.core.records import Call, DropIn, Ending, EndReason, Final, RunRecord, Spend, TicketRecord
from stark.core.settings import Settings
from stark.core.task import Task
from stark.core.tree import Attempt, Node, Plan, Role
from stark.store.open import open_store
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Score

LINES = "".join(f"    value = value * {number} + 1  # step {number}\n" for number in range(80))
FAILURES = (Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.RUNTIME_ERROR, Outcome.REJECTED, Outcome.TIMEOUT)

Text = Callable[[str], str]


def plain(text: str) -> str:
    return text


def write_run(folder: Path, attempts: int, text: Text = plain, prompt_characters: int = 2_000) -> None:
    """Write a finished run. ``text`` may change every text that a person, a model or a compiler wrote."""
    rng = random.Random(0)
    with closing(open_store(folder, write=True)) as store:
        store.db.execute("PRAGMA synchronous = OFF")
        record = make_record(text)
        store.create(record)
        root = _timed(10.0, text)
        store.finish(record.id, Node(0, None, Attempt(Role.REFERENCE, text(f"class Model:\n{LINES}"), root)))
        correct = [0]
        for number in range(1, attempts + 1):
            parent = correct[max(0, int(rng.triangular(0, len(correct), len(correct)))) - 1]
            node = make_node(number, parent, rng, text)
            store.begin(record.id, TicketRecord(number, parent, number))
            for index, role in enumerate((Role.PLAN, Role.CODE)):
                call = make_call(number, index, role, parent, text, prompt_characters)
                store.journal(record.id, store.reserve(record.id, number, index, Spend(9_999, 1.0)), call)
            store.finish(record.id, node)
            if not node.failed:
                correct.append(number)
        store.clock(record.id, 12.5 * attempts)
        if len(correct) > 1:
            best = min(store.judgements(record.id)[1:], key=lambda each: each.runtime_ms or 99).id
            report = _timed(2.0, text, opponent_ms=10.0)
            drop_in = DropIn(text(f"class ModelNew:\n{LINES}"), report)
            store.confirm(record.id, Final(best, Score.VERIFIED, report, report, drop_in))
        store.end(record.id, Ending(EndReason.DONE, text("All attempts were made.")))


def make_record(text: Text = plain) -> RunRecord:
    settings = Settings.model_validate({"budget": {"attempts": 1_000}}).model_dump(mode="json")
    device = DeviceFacts(text("a device"), "cpu", toolchain={"torch": text("2.13")})
    task = Task(text("a task"), text(LINES), text("the batch is always 16"))
    versions = {"stark": text("0.1")}
    return RunRecord("run", "2026-01-01T00:00:00+00:00", task, None, settings, {}, versions, device)


def make_node(number: int, parent: int, rng: random.Random, text: Text = plain) -> Node:
    plan = Plan(text(f"Change step {number}."), text(f"# <<<IMPROVE BEGIN>>>\n{LINES}# <<<IMPROVE END>>>\n"))
    if rng.random() < 0.35:
        log = text(f"error: expected ';' before token {number}\n" * 20)
        report = EvalReport(rng.choice(FAILURES), log=log, rule=text("a rule"), profile=text("profile\n"))
    else:
        report = _timed(10.0 / rng.lognormvariate(0.5, 0.6), text)
    changed = LINES.replace(f"step {number % 80}\n", f"changed {number}\n")
    source = text(f"class ModelNew:\n{changed}")
    return Node(number, parent, Attempt(Role.CODE, source, report, plan, text("Done."), 0.2, notes=(text("a note"),)))


def make_call(number: int, index: int, role: Role, parent: int, text: Text, characters: int) -> Call:
    messages = (Message("system", text("You are an agent.")), Message("user", text("prompt " * (characters // 7))))
    usage = Usage(characters // 4, 2_000, characters // 8)
    reply = Reply(text(f"reply {number}"), text('{"code": "x = 1"}'), usage=usage, cost_usd=0.01, model=text("a model"))
    began = "2026-01-01T00:00:00+00:00"
    return Call(number, index, role, text("a model"), messages, text("a form"), (0, parent), reply, began, 3.0)


def _timed(median_ms: float, text: Text, opponent_ms: float | None = None) -> EvalReport:
    opponent = None if opponent_ms is None else _samples(opponent_ms)
    checks = {text("a check"): text("passed")}
    return EvalReport(Outcome.OK, _samples(median_ms), checks=checks, duration_s=4.0, opponent=opponent)


def _samples(median_ms: float) -> Timing:
    return Timing(tuple(median_ms * (1 + 0.01 * (number % 7 - 3)) for number in range(50)))
