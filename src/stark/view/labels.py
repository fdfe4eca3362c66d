"""What kind of kernel it is and how it was checked, as text for the terminal and for exported files."""

from __future__ import annotations

from stark_worker.protocol import EvalReport, Labels


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
