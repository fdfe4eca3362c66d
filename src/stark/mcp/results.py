"""The typed answers of the tools, and how they are made from reports.

Numbers and enums come from STARK. Every field whose name begins with ``quoted_`` holds a text that others wrote.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stark.core.errors import StarkError
from stark.core.records import Final
from stark.mcp.quoting import quote
from stark.run.judge import MeasuredBound
from stark_worker.protocol import report_text
from stark_worker.protocol.bound import Certainty, Limit
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.findings import Finding, can_work
from stark_worker.protocol.report import DeviceFacts, EvalReport, Timing
from stark_worker.protocol.request import Precision

DOUBT_SHARE = 0.1  # of a time: from here on the summary names its doubt
JUDGE = "the judge's log, with output of the compiler and the kernel"


@dataclass(frozen=True)
class Judged:
    """The verdict on one kernel. Speeds are relative to the task's own model, timed in turns with the kernel."""

    summary: str
    outcome: Outcome
    is_correct: bool
    is_surely_faster: bool
    median_ms: float | None
    reference_median_ms: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    broken_rule: str | None
    quoted_details: str


@dataclass(frozen=True)
class BaselineTime:
    """The time of one baseline."""

    name: str
    outcome: Outcome
    median_ms: float | None
    quoted_log: str


@dataclass(frozen=True)
class Baselines:
    """The times to beat."""

    summary: str
    device: str
    baselines: list[BaselineTime]


@dataclass(frozen=True)
class Profiled:
    """Where a kernel spends its time."""

    summary: str
    outcome: Outcome
    median_ms: float | None
    quoted_profile: str


@dataclass(frozen=True)
class Bounded:
    """The least time that this device needs for a task. A hint may be too high or too low; the details say why."""

    summary: str
    bound_ms: float
    limited_by: Limit
    certainty: Certainty
    floor_ms: float
    reference_median_ms: float | None
    reference_share: float | None
    quoted_details: str


@dataclass(frozen=True)
class Found:
    """One thing that was tried on the evaluating machine."""

    name: str
    state: str
    detail: str
    fix: str


@dataclass(frozen=True)
class Examined:
    """The state of the evaluating machine."""

    summary: str
    can_work: bool
    findings: list[Found]


@dataclass(frozen=True)
class Captured:
    """The task file that was written."""

    summary: str
    file: str
    precision: Precision


@dataclass(frozen=True)
class Exported:
    """The files that were written."""

    summary: str
    files: list[str]
    manifest_sha256: str | None
    quoted_details: str


def judged_of(report: EvalReport, reference: EvalReport) -> Judged:
    """Return the verdict of a report whose candidate was timed in turns with the reference."""
    interval = report.speedup_interval
    own, other = (timing.median_ms if timing else None for timing in (report.timing, report.opponent))
    same_turns = replace(reference, timing=report.opponent) if reference.timing and report.opponent else reference
    details = "\n".join(report_text.format_lines(report, same_turns))
    return Judged(
        summary=_summarise(report),
        outcome=report.outcome,
        is_correct=report.timing is not None,
        is_surely_faster=interval is not None and interval[0] > 1.0,
        median_ms=own,
        reference_median_ms=other,
        speedup=other / own if own and other else None,
        speedup_low=interval[0] if interval else None,
        speedup_high=interval[1] if interval else None,
        broken_rule=report.rule,
        quoted_details=quote(details, JUDGE),
    )


def _summarise(report: EvalReport) -> str:
    verdict = report_text.format_verdict(report)
    if report.timing is None:
        return f"Not correct: {verdict}."
    if report.speedup_interval is None:
        return f"Correct: {verdict}."
    low, high = report.speedup_interval
    speed = "faster than" if low > 1.0 else "slower than" if high < 1.0 else "not surely faster than"
    found = f"Correct, {speed} the reference: {verdict}, {low:.2f}x to {high:.2f}x (99 % confidence)."
    return found + _doubt(report.timing)


def _doubt(timing: Timing) -> str:
    """Return a sentence on an interval that a larger task would narrow."""
    if timing.unsure_ms < DOUBT_SHARE * timing.median_ms:
        return ""
    return f" Of the time, {timing.unsure_ms:.3f} ms are in doubt, as an empty call takes them; a larger task is surer."


def baselines_of(reports: Mapping[str, EvalReport], device: DeviceFacts) -> Baselines:
    """Return the times of the baselines; one that cannot run here says why."""
    times = [
        BaselineTime(
            name,
            report.outcome,
            report.timing.median_ms if report.timing else None,
            quote(_doubts(report), JUDGE, limit=2_000),
        )
        for name, report in reports.items()
    ]
    shown = [f"{each.name} {_milliseconds(each.median_ms, each.outcome)}" for each in times]
    return Baselines(f"{'; '.join(shown)}.", device.name, times)


def _doubts(report: EvalReport) -> str:
    log = "" if report.timing else report.log
    return "\n".join([*report_text.timing_warnings(report), *report_text.task_warnings(report), log]).strip()


def _milliseconds(value: float | None, outcome: Outcome) -> str:
    return f"{value:.3f} ms" if value is not None else f"cannot run here ({outcome.value.replace('_', ' ')})"


def bounded_of(measured: MeasuredBound) -> Bounded:
    """Return the speed of light of a task."""
    bound, share, timing = measured.limit.bound, measured.share, measured.reference.timing
    reached = "" if share is None else f" The reference reaches {report_text.format_share(share)}."
    details = "\n".join(f"{name}: {text}" for name, text in report_text.bound_facts(bound))
    found = f"{report_text.format_bound(bound).capitalize()}."
    if bound.limit is Limit.LAUNCH:
        found += f" A call without work takes as long; the work itself needs at least {bound.floor_ms:.3f} ms."
    return Bounded(
        summary=f"{found}{reached}",
        bound_ms=bound.bound_ms,
        limited_by=bound.limit,
        certainty=bound.certainty,
        floor_ms=bound.floor_ms,
        reference_median_ms=timing.median_ms if timing else None,
        reference_share=share,
        quoted_details=quote(details, JUDGE),
    )


def profiled_of(report: EvalReport) -> Profiled:
    """Return the profile of a candidate, or the reason why there is none."""
    if report.timing is None:
        summary = f"No profile, because the kernel is not correct: {report_text.format_verdict(report)}."
        return Profiled(summary, report.outcome, None, quote(report.log, JUDGE))
    found = report.profile or ""
    summary = f"{report_text.format_verdict(report)}. " + ("Its profile:" if found else "No profile was made here.")
    return Profiled(summary, report.outcome, report.timing.median_ms, quote(found, "the profiler"))


def examined_of(findings: Sequence[Finding]) -> Examined:
    """Return the state of the machine. What a chat model's provider answered is not shown."""
    works = can_work(findings)
    missing = [finding.name for finding in findings if finding.state == "missing"]
    summary = "Kernels can be judged here." if works else f"Kernels cannot be judged here yet: {', '.join(missing)}."
    rows = [Found(each.name.strip(), str(each.state), each.detail, each.fix) for each in findings]
    return Examined(summary, works, rows)


def summarise_final(final: Final) -> str:
    """Return the result of a final check in a sentence."""
    if not final.holds:
        return f"It failed the final check: {final.report.outcome.value.replace('_', ' ')}."
    interval = final.speedup_interval
    if interval is None:
        return "It passed the final check."
    return "It passed the final check: {:.2f}x to {:.2f}x as fast as the reference.".format(*interval)


def format_error(error: StarkError) -> str:
    """Return an error for an agent. It may quote a compiler or a model, so all of it is marked as data."""
    return f"This did not work ({type(error).__name__}).\n{quote(str(error), 'STARK and the tools that it ran')}"
