"""A run as a JSON document: all that its page draws, without long texts.

The document has a head, which changes, and one row per node, which never does. A reader that holds the first rows asks
only for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stark.core.bound import speed_of_light
from stark.core.interfaces import StoreReader
from stark.core.records import Ending, Final, Kind, RoleUsage, RunRecord
from stark.core.tree import ROOT_ID, Node, Role
from stark.page.missing import name_missing
from stark_worker.protocol.bound import Bound
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.report_text import bound_facts
from stark_worker.protocol.request import Score

Json = dict[str, Any]

EXCERPT = 200  # characters of advice or log in a row


class RunDocument:
    """The document of one run. Each ``update`` reads only what is new."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.rows: list[Json] = []
        self.head: Json = {}
        self.bound: Bound | None = None

    def update(self, store: StoreReader, records: Sequence[RunRecord], is_live: bool = False) -> None:
        """Read the nodes that have landed since, and the head. ``records`` are all runs of the store."""
        nodes = store.nodes(self.record.id, len(self.rows))
        if not self.rows and nodes:
            self.bound = nodes[0].report.bound
        self.rows += map(node_row, nodes)
        self.head = self._read_head(store, records, is_live)

    def after(self, known: int = 0) -> Json:
        """Return the head, and the rows without the first ``known``."""
        return {**self.head, "first": known, "nodes": self.rows[known:]}

    def _read_head(self, store: StoreReader, records: Sequence[RunRecord], is_live: bool) -> Json:
        run_id = self.record.id
        final, ending, usage = store.final(run_id), store.ending(run_id), store.usage(run_id)
        accounts = {account.number: account for account in store.accounts(run_id)}
        baselines = read_baselines(store, records, self.record)
        best_ms = min((row["ms"] for row in self.rows if row["ms"] is not None and row["id"] != ROOT_ID), default=None)
        pending = store.unfinished(run_id) if is_live else []
        return {
            **describe_run(self.record),
            "models": store.models(run_id),
            "seconds": store.seconds(run_id),
            "is_live": is_live,
            "ending": describe_ending(ending),
            "usage": {role: _describe_usage(each) for role, each in usage.items()},
            "spent": add_usage(usage),
            "costs": [[each.number, each.spent.tokens, each.spent.usd] for each in accounts.values()],
            "in_flight": [
                {
                    "number": ticket.number,
                    "parent": ticket.parent_id,
                    "calls": accounts[ticket.number].calls if ticket.number in accounts else 0,
                    "is_waiting": ticket.number in accounts and accounts[ticket.number].is_waiting,
                }
                for ticket in pending
            ],
            "final": final and describe_final(final),
            "winner": find_winner(self.rows, final),
            "leaders": find_leaders(self.rows, int(self.record.settings.get("windows", {}).get("leaders", 2))),
            "baselines": [{"name": name, "ms": report_ms(report)} for name, report in baselines],
            "bound": describe_bound(self.bound, best_ms),
            "missing": name_missing(self.record, self.rows, final, ending, usage, baselines, self.bound, is_live),
        }


def run_document(store: StoreReader, record: RunRecord, is_live: bool = False) -> Json:
    """Return the whole document of a run."""
    document = RunDocument(record)
    document.update(store, store.runs(), is_live)
    return document.after()


def node_row(node: Node) -> Json:
    """Return a node without its texts."""
    report, plan = node.report, node.plan
    return {
        "id": node.id,
        "parent": node.parent_id,
        "role": node.role,
        "outcome": report.outcome,
        "rule": report.rule,
        "ms": node.runtime_ms,
        "same_as": node.same_as,
        "seconds": report.duration_s if node.same_as is None else 0.0,
        "lines": None if node.source is None else node.source.count("\n") + 1,
        "advice": excerpt(plan.advice) if plan else "",
        "grounded": plan.grounded if plan else None,
        "outside": node.attempt.outside_share,
        "log": excerpt(report.log),
        "notes": [excerpt(note) for note in node.notes],
    }


def excerpt(text: str) -> str:
    """Return the beginning of a text on one line."""
    words = " ".join(text[: 2 * EXCERPT].split())
    return words if len(words) <= EXCERPT else words[: EXCERPT - 1] + "…"


def describe_run(record: RunRecord) -> Json:
    """Return the facts of a run that were known when it began."""
    evaluation, task = record.settings["evaluation"], record.task
    return {
        "run": record.id,
        "created_at": record.created_at,
        "task": {"name": task.name, "level": task.level, "number": task.number, "hint": task.hint},
        "kind": record.kind,
        "method": record.method,
        "seed": record.settings["seed"],
        "score": evaluation["score"],
        "target": evaluation["target"],
        "budget": record.settings["budget"],
        "device": record.device.name,
        "tools": record.device.tools,
        "settings": record.settings,
        "versions": record.versions,
    }


def describe_bound(bound: Bound | None, best_ms: float | None) -> Json | None:
    """Return the bound that counts now and its origin in words, or None if none is stored."""
    light = speed_of_light(bound, best_ms)
    if bound is None or light is None:
        return None
    return {
        "ms": light.bound_ms,
        "is_certain": light.is_certain,
        "is_followed": light.is_followed,
        "limit": bound.limit,
        "facts": bound_facts(bound),
    }


def describe_ending(ending: Ending | None) -> Json | None:
    """Return why a run ended, in words."""
    if ending is None:
        return None
    return {"reason": ending.reason, "meaning": ending.reason.meaning, "message": ending.message}


def describe_final(final: Final) -> Json:
    """Return the final check without its texts and samples."""
    return {
        "node": final.node_id,
        "score": final.score,
        "holds": final.holds,
        "scores": {
            Score.VERIFIED: _describe_check(final.verified),
            Score.KERNELBENCH: _describe_check(final.kernelbench),
        },
        "drop_in": final.drop_in and {"holds": final.drop_in.holds, **_describe_check(final.drop_in.report)},
    }


def report_ms(report: EvalReport) -> float | None:
    """Return the time of a report."""
    return report.timing.median_ms if report.timing else None


def read_baselines(store: StoreReader, records: Sequence[RunRecord], record: RunRecord) -> list[tuple[str, EvalReport]]:
    """Return eager and torch.compile as a benchmark timed them for the same task by the same score."""
    if record.kind is Kind.BASELINES:
        return []
    key = _baseline_key(record)
    found = [each for each in records if each.kind is Kind.BASELINES and _baseline_key(each) == key]
    nodes = [node for each in found for node in store.nodes(each.id) if node.id != ROOT_ID]
    return [(node.judgement.label or f"#{node.id}", node.report) for node in nodes]


def find_winner(rows: Sequence[Json], final: Final | None) -> int | None:
    """Return the confirmed node, None if none was confirmed, and the fastest if there was no final check."""
    if final is not None:
        return final.node_id if final.holds else None
    fastest = find_leaders(rows, 1)
    return fastest[0] if fastest else None


def find_leaders(rows: Sequence[Json], count: int) -> list[int]:
    """Return the fastest correct candidates, no source twice."""
    correct = [row for row in rows if row["ms"] is not None and row["id"] != ROOT_ID and row["same_as"] is None]
    return [row["id"] for row in sorted(correct, key=lambda row: (row["ms"], row["id"]))[:count]]


def add_usage(usage: Mapping[Role, RoleUsage]) -> Json:
    """Return tokens and money of all roles; money is None if a price is not known."""
    prices = [each.usd for each in usage.values()]
    known = [price for price in prices if price is not None]
    return {
        "tokens": sum(each.usage.total for each in usage.values()),
        "usd": sum(known) if len(known) == len(prices) else None,
    }


def _describe_usage(usage: RoleUsage) -> Json:
    return {
        "calls": usage.calls,
        "input_tokens": usage.usage.input_tokens,
        "cached_input_tokens": usage.usage.cached_input_tokens,
        "output_tokens": usage.usage.output_tokens,
        "usd": usage.usd,
        "seconds": usage.duration_s,
    }


def _describe_check(report: EvalReport) -> Json:
    return {
        "outcome": report.outcome,
        "ms": report_ms(report),
        "reference_ms": report.opponent.median_ms if report.opponent else None,
        "interval": report.speedup_interval,
    }


def _baseline_key(record: RunRecord) -> tuple[Any, ...]:
    evaluation = record.settings["evaluation"]
    rules = (evaluation.get(name) for name in ("score", "kernelbench_version", "target", "precision", "tf32"))
    return (record.task.name, *rules)
