"""A node as a JSON document: plan, source, report, timings, and exactly what each role saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stark.agents.source_lines import MARKER
from stark.core.interfaces import StoreReader
from stark.core.records import Call, Final, RunRecord
from stark.core.tree import ROOT_ID, Node, Plan
from stark.page.run_document import Json, read_baselines
from stark_worker.protocol.baselines import EAGER
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.report_text import report_facts


def node_document(store: StoreReader, records: Sequence[RunRecord], record: RunRecord, number: int) -> Json | None:
    """Return everything stored about a node, or None if there is none. ``records`` are all runs of the store."""
    node, final = store.node(record.id, number), store.final(record.id)
    if node is None:
        return None
    root = store.node(record.id, ROOT_ID) if number != ROOT_ID else None
    baselines = read_baselines(store, records, record)
    return {
        "id": node.id,
        "parent": node.parent_id,
        "role": node.role,
        "source": node.source,
        "explanation": node.attempt.explanation,
        "outside": node.attempt.outside_share,
        "same_as": node.same_as,
        "notes": node.notes,
        "plan": node.plan and _describe_plan(node.plan),
        "report": describe_report(node.report),
        "final": _describe_final(final) if final and final.node_id == number else None,
        "timings": [
            *(_describe_timing(name, timing) for name, timing in _timings(node, root, baselines)),
            *(_describe_timing(name, timing, is_final=True) for name, timing in _final_timings(final, number)),
        ],
        "calls": [describe_call(call) for call in store.calls(record.id, number)],
    }


def describe_report(report: EvalReport) -> Json:
    """Return a report with its facts as pairs of name and text."""
    return {
        "outcome": report.outcome,
        "rule": report.rule,
        "log": report.log,
        "profile": report.profile,
        "seconds": report.duration_s,
        "built": report.built,
        "facts": report_facts(report),
        "seeds": report.seeds,
        "device": report.device.name if report.device else None,
    }


def describe_call(call: Call) -> Json:
    """Return a call: the window, every message of the prompt, the raw reply, tokens and cost."""
    reply = call.reply
    return {
        "role": call.role,
        "model": call.model,
        "answered_by": reply.model,
        "window": call.window,
        "form": call.form,
        "messages": [{"role": message.role, "content": message.content} for message in call.messages],
        "reply": reply.text,
        "arguments": reply.arguments,
        "finish": reply.finish,
        "notes": reply.notes,
        "input_tokens": reply.usage.input_tokens,
        "cached_input_tokens": reply.usage.cached_input_tokens,
        "output_tokens": reply.usage.output_tokens,
        "usd": reply.cost_usd,
        "started_at": call.started_at,
        "seconds": call.duration_s,
    }


def _describe_plan(plan: Plan) -> Json:
    return {
        "advice": plan.advice,
        "scaffold": plan.scaffold,
        "regions": list(_find_regions(plan.scaffold or "")),
        "grounded": plan.grounded,
        "violations": plan.violations,
    }


def _find_regions(scaffold: str) -> Iterator[tuple[int, int]]:
    """Yield first and last line of each marked region, markers included."""
    begun: int | None = None
    for mark in MARKER.finditer(scaffold):
        line = scaffold.count("\n", 0, mark.start()) + 1
        if "BEGIN" in mark.group().upper():
            begun = line
        elif begun is not None:
            yield begun, line
            begun = None


def _describe_final(final: Final) -> Json:
    drop_in = final.drop_in
    return {
        "score": final.score,
        "holds": final.holds,
        "verified": describe_report(final.verified),
        "kernelbench": describe_report(final.kernelbench),
        "drop_in": drop_in and {"source": drop_in.source, "holds": drop_in.holds, **describe_report(drop_in.report)},
    }


def _timings(
    node: Node, root: Node | None, baselines: Sequence[tuple[str, EvalReport]]
) -> Iterator[tuple[str, Timing]]:
    """Yield the samples of a node, and those of the times that it is compared with."""
    if node.report.timing:
        yield "this node", node.report.timing
    if node.report.opponent:
        yield f"{EAGER}, in turns with this node", node.report.opponent
    if root and root.report.timing:
        yield f"{EAGER}, at the start", root.report.timing
    for name, report in baselines:
        if report.timing and name != EAGER:
            yield name, report.timing


def _final_timings(final: Final | None, number: int) -> Iterator[tuple[str, Timing]]:
    if final is None or final.node_id != number:
        return
    drop_in = final.drop_in.report if final.drop_in else None
    reports = (("verified", final.verified), ("kernelbench", final.kernelbench), ("drop-in", drop_in))
    for name, report in reports:
        if report and report.timing:
            yield f"final check, {name}", report.timing
        if report and report.opponent:
            yield f"{EAGER}, in turns with {name}", report.opponent


def _describe_timing(name: str, timing: Timing, is_final: bool = False) -> Json:
    return {
        "name": name,
        "is_final": is_final,
        "samples_ms": timing.samples_ms,
        "median_ms": timing.median_ms,
        "interval_ms": timing.interval_ms,
        "unsure_ms": timing.unsure_ms,
    }
