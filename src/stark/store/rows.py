"""Converts records to rows and back."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from typing import Any

from stark.core.chat import Finish, Message, Reply, Usage
from stark.core.errors import StoreError
from stark.core.records import AttemptAccount, Call, DropIn, Final, InFlight, RoleUsage, RunRecord, Spend, TicketRecord
from stark.core.settings import with_new_names
from stark.core.task import Task
from stark.core.tree import Attempt, Judgement, Node, Plan, Role
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import DeviceFacts, EvalReport, Phases
from stark_worker.protocol.request import Score

PHASES_PLACE = 6  # among the figures of a judgement; earlier versions stored none


def run_row(run: RunRecord) -> dict[str, Any]:
    return {
        "id": run.id,
        "created_at": run.created_at,
        "task": record_text(run.task),
        "given": run.given,
        "settings": plain_text(run.settings),
        "templates": plain_text(run.templates),
        "versions": plain_text(run.versions),
        "device": record_text(run.device),
        "labels": plain_text(run.labels),
    }


def run_of(row: sqlite3.Row) -> RunRecord:
    return RunRecord(
        id=row["id"],
        created_at=row["created_at"],
        task=from_json(Task, row["task"]),
        given=row["given"],
        settings=with_new_names(json.loads(row["settings"])),
        templates=json.loads(row["templates"]),
        versions=json.loads(row["versions"]),
        device=from_json(DeviceFacts, row["device"]),
        labels=json.loads(row["labels"]) if "labels" in row.keys() else {},  # noqa: SIM118  missing in an older file that is salvaged
    )


def node_row(run: int, position: int, node: Node) -> dict[str, Any]:
    return {
        "run": run,
        "id": node.id,
        "position": position,
        "parent_id": node.parent_id,
        "role": node.role,
        "source": node.source,
        "plan": record_text(node.plan) if node.plan else None,
        "report": record_text(node.report),
        "explanation": node.attempt.explanation,
        "outside_share": node.attempt.outside_share,
        "same_as": node.same_as,
        "notes": plain_text(node.notes),
        "judgement": judgement_text(node.judgement),
    }


def node_of(row: sqlite3.Row) -> Node:
    attempt = Attempt(
        role=Role(row["role"]),
        source=row["source"],
        report=from_json(EvalReport, row["report"]),
        plan=from_json(Plan, row["plan"]) if row["plan"] else None,
        explanation=row["explanation"],
        outside_share=row["outside_share"],
        notes=tuple(json.loads(row["notes"])),
    )
    return Node(row["id"], row["parent_id"], attempt, row["same_as"])


def judgement_of(row: sqlite3.Row) -> Judgement:
    number, role, outcome, *figures = json.loads(row["judgement"])
    facts, phases = figures[:PHASES_PLACE], figures[PHASES_PLACE:]
    return Judgement(number, Role(role), Outcome(outcome), *facts, *(each and Phases(*each) for each in phases))


def compute_judgement(row: sqlite3.Row | dict[str, Any]) -> Judgement:
    """Compute the judgement of a node that was stored without one."""
    report, notes = from_json(EvalReport, row["report"]), tuple(json.loads(row["notes"]))
    attempt = Attempt(Role(row["role"]), None, report, notes=notes)
    return Node(row["id"], row["parent_id"], attempt, row["same_as"]).judgement


def judgement_text(judgement: Judgement) -> str:
    """Format the fields without names: a report on many runs reads ten thousands of these."""
    return plain_text(dataclasses.astuple(judgement))


def ticket_row(run: int, ticket: TicketRecord) -> dict[str, Any]:
    others = plain_text([dataclasses.astuple(other) for other in ticket.in_flight])
    place = {"parent_id": ticket.parent_id, "visible": ticket.visible, "in_flight": others}
    return {"run": run, "number": ticket.number, **place}


def ticket_of(row: sqlite3.Row) -> TicketRecord:
    in_flight = tuple(InFlight(*other) for other in json.loads(row["in_flight"]))
    return TicketRecord(row["number"], row["parent_id"], row["visible"], in_flight)


def call_row(run: int, reservation: int, call: Call) -> dict[str, Any]:
    reply = call.reply
    return {
        "run": run,
        "number": call.number,
        "index": call.index,
        "reservation": reservation,
        "role": call.role,
        "model": call.model,
        "form": call.form,
        "window": plain_text(call.window),
        "started_at": call.started_at,
        "duration_s": call.duration_s,
        "reply_model": reply.model,
        "finish": reply.finish,
        "input_tokens": reply.usage.input_tokens,
        "output_tokens": reply.usage.output_tokens,
        "cached_input_tokens": reply.usage.cached_input_tokens,
        "cost_usd": reply.cost_usd,
        "notes": plain_text(reply.notes),
        "arguments": reply.arguments,
        "text": reply.text,
        "messages": plain_text([{"role": message.role, "content": message.content} for message in call.messages]),
    }


def call_of(row: sqlite3.Row) -> Call:
    return Call(
        number=row["number"],
        index=row["index"],
        role=Role(row["role"]),
        model=row["model"],
        messages=tuple(Message(**message) for message in json.loads(row["messages"])),
        form=row["form"],
        window=tuple(json.loads(row["window"])),
        reply=_reply_of(row),
        started_at=row["started_at"],
        duration_s=row["duration_s"],
    )


def final_row(run: int, final: Final) -> dict[str, Any]:
    return {
        "run": run,
        "node_id": final.node_id,
        "score": final.score.value,
        "verified": record_text(final.verified),
        "kernelbench": record_text(final.kernelbench),
        "drop_in_source": final.drop_in.source if final.drop_in else None,
        "drop_in_report": record_text(final.drop_in.report) if final.drop_in else None,
    }


def final_of(row: sqlite3.Row) -> Final:
    verified, kernelbench = (from_json(EvalReport, row[name]) for name in ("verified", "kernelbench"))
    source = row["drop_in_source"] if "drop_in_source" in row.keys() else None  # noqa: SIM118 - a row is no mapping
    drop_in = None if source is None else DropIn(source, from_json(EvalReport, row["drop_in_report"]))
    return Final(row["node_id"], Score(row["score"]), verified, kernelbench, drop_in)


def usage_of(row: sqlite3.Row) -> tuple[Role, RoleUsage]:
    usage = Usage(row["input_tokens"], row["output_tokens"], row["cached_input_tokens"])
    return Role(row["role"]), RoleUsage(row["calls"], usage, row["usd"], row["duration_s"])


def account_of(row: sqlite3.Row) -> AttemptAccount:
    spend = Spend(row["tokens"] or 0, row["usd"] or 0.0)
    return AttemptAccount(row["number"], row["settled"], spend, bool(row["is_waiting"]))


def _reply_of(row: sqlite3.Row) -> Reply:
    return Reply(
        text=row["text"],
        arguments=row["arguments"],
        finish=Finish(row["finish"]),
        usage=Usage(row["input_tokens"], row["output_tokens"], row["cached_input_tokens"]),
        cost_usd=row["cost_usd"],
        model=row["reply_model"],
        notes=tuple(json.loads(row["notes"])),
    )


def record_text(record: Any) -> str:
    """Format a dataclass as JSON; raise a StoreError for values such as NaN."""
    try:
        return to_json(record)
    except (ValueError, TypeError) as error:
        raise _unstorable(error) from error


def plain_text(value: Any) -> str:
    """Format plain lists and dicts as JSON; raise a StoreError for values such as NaN."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise _unstorable(error) from error


def _unstorable(error: Exception) -> StoreError:
    return StoreError(
        f"A record cannot be stored: {error}.", "This is a fault of STARK or of a plugin; please report it."
    )
