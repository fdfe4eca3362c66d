"""A report in words, for terminals and exported files: how it ended, what kind of kernel it is, how it was checked."""

from __future__ import annotations

from stark_worker.protocol.report import BUSY, DEGENERATE, EvalReport, Labels


def verdict(report: EvalReport, reference_ms: float | None = None) -> str:
    """The time, as a multiple of the reference's speed too where that is known; or how it failed."""
    if report.timing is None:
        rule = f" ({report.rule})" if report.rule else ""
        return f"{report.outcome.value.replace('_', ' ')}{rule}"
    time_ms = report.timing.median_ms
    return f"{time_ms:.3f} ms" + (f"  {reference_ms / time_ms:.2f}x" if reference_ms else "")


def lines(report: EvalReport, reference: EvalReport) -> list[str]:
    """Everything a person wants to know of a candidate."""
    reference_ms = reference.timing.median_ms if reference.timing else None
    rows = [("kernel", verdict(report, reference_ms)), ("reference", verdict(reference)), *median(report)]
    rows += [("warning", text) for text in (*warnings(reference), *doubts(reference, report))] + facts(report)
    return [plainly(f"{name:>16}  {text}") for name, text in rows] + ([plainly(report.log)] if report.log else [])


def median(report: EvalReport) -> list[tuple[str, str]]:
    """How sure the time is, where there is one."""
    if report.timing is None:
        return []
    low, high = report.timing.interval_ms
    return [("median", f"between {low:.3f} and {high:.3f} ms, with 99 % confidence")]


def warnings(reference: EvalReport) -> list[str]:
    """What makes a verdict on this task say little."""
    reasons = reference.checks.get(DEGENERATE)
    return [f"The task tests nothing, so that being correct says little: {reasons}"] if reasons else []


def doubts(*reports: EvalReport) -> list[str]:
    """What makes times say little, of any that are compared."""
    told = dict.fromkeys(busy for report in reports if (busy := report.checks.get(BUSY)))
    return [f"The times may be off: {busy}. Repeat it on a quiet machine before you rely on them." for busy in told]


def plainly(text: str) -> str:
    """A stranger's text without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def facts(report: EvalReport) -> list[tuple[str, str]]:
    """The labels and the checks of a report, by name."""
    labels = _labels(report.labels) if report.labels else []
    return [*labels, *report.checks.items()]


def sentence(labels: Labels) -> str:
    """The labels on one line."""
    return "; ".join(f"{name}: {text}" for name, text in _labels(labels))


def _labels(labels: Labels) -> list[tuple[str, str]]:
    rows = []
    if labels.kernels is not None:
        share = "" if labels.own_share is None else f", {labels.own_share:.0%} of the time in its own"
        rows.append(("kernels", labels.kernels + share))
    if labels.precision is not None:
        rows.append(("precision class", f"{labels.precision}, inferred from its error"))
    if labels.other_shapes:
        rows.append(("other shapes", ", ".join(f"{shape} {what}" for shape, what in labels.other_shapes.items())))
    if labels.extra_memory_mb is not None:
        rows.append(("extra memory", f"about {labels.extra_memory_mb:.1f} MB"))
    return [*rows, ("first call", f"{labels.first_call_ms:.3f} ms")]
