"""A report as text, for terminals and exported files."""

from __future__ import annotations

from stark_worker.protocol.bound import Bound, Peaks
from stark_worker.protocol.report import EvalReport, Labels

Fact = tuple[str, str]  # a name and a text


def format_verdict(report: EvalReport, reference_ms: float | None = None) -> str:
    """Return the time, with the speedup over a known reference, or the outcome of a failure."""
    if report.timing is None:
        rule = f" ({report.rule})" if report.rule else ""
        return f"{report.outcome.value.replace('_', ' ')}{rule}"
    time_ms = report.timing.median_ms
    return f"{time_ms:.3f} ms" + (f"  {reference_ms / time_ms:.2f}x" if reference_ms else "")


def format_lines(report: EvalReport, reference: EvalReport) -> list[str]:
    """Return everything a person wants to know about a candidate."""
    reference_ms = reference.timing.median_ms if reference.timing else None
    rows = [("kernel", format_verdict(report, reference_ms)), ("reference", format_verdict(reference))]
    warnings = (*task_warnings(reference), *timing_warnings(reference, report))
    rows += [*median_facts(report), *(("warning", text) for text in warnings), *report_facts(report)]
    lines = [f"{name:>16}  {text}" for name, text in rows] + ([report.log] if report.log else [])
    return [strip_control_chars(line) for line in lines]


def median_facts(report: EvalReport) -> list[Fact]:
    """Return the confidence interval of the median, if the report has a timing."""
    if report.timing is None:
        return []
    low, high = report.timing.interval_ms
    return [("median", f"between {low:.3f} and {high:.3f} ms, with 99 % confidence")]


def task_warnings(reference: EvalReport) -> list[str]:
    """Return the reasons why a verdict on this task means little."""
    reasons = reference.degenerate
    return [f"The task tests nothing, so a correct result means little: {reasons}"] if reasons else []


def timing_warnings(*reports: EvalReport) -> list[str]:
    """Return the reasons why the times of these reports are in doubt."""
    texts = dict.fromkeys(report.busy_warning for report in reports if report.busy_warning)
    return [f"The times may be off: {text}. Measure again on a quiet machine." for text in texts]


def strip_control_chars(text: str) -> str:
    """Replace every character that could control a terminal by a space."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def report_facts(report: EvalReport) -> list[Fact]:
    """Return the labels, the sandbox, the checks and the doubts of a report."""
    facts = [*(label_facts(report.labels) if report.labels else []), *isolation_facts(report), *report.checks.items()]
    if report.busy_warning is not None:
        facts.append(("busy machine", report.busy_warning))
    if report.degenerate is not None:
        facts.append(("degenerate", report.degenerate))
    return facts


def isolation_facts(report: EvalReport) -> list[Fact]:
    """Return the isolation of the candidate's process, and of the reference's if it was confined too."""
    sides = (("isolation", report.isolation), ("isolation of the reference", report.reference_isolation))
    return [(name, str(isolation)) for name, isolation in sides if isolation is not None]


def format_labels(labels: Labels) -> str:
    """Return the labels on one line."""
    return "; ".join(f"{name}: {text}" for name, text in label_facts(labels))


def label_facts(labels: Labels) -> list[Fact]:
    """Return the labels that were found out."""
    facts = []
    if labels.kernels is not None:
        share = "" if labels.own_share is None else f", {labels.own_share:.0%} of the time in its own"
        facts.append(("kernels", labels.kernels + share))
    if labels.precision is not None:
        facts.append(("precision class", f"{labels.precision}, inferred from its error"))
    if labels.other_shapes:
        facts.append(("other shapes", ", ".join(map(str, labels.other_shapes))))
    if labels.extra_memory_mb is not None:
        facts.append(("extra memory", f"about {labels.extra_memory_mb:.1f} MB"))
    return [*facts, ("first call", f"{labels.first_call_ms:.3f} ms")]


def format_share(share: float) -> str:
    """Return a share of the speed of light."""
    return f"{share:.0%} of the bound" if share >= 0.095 else f"{share:.1%} of the bound"


def format_bound(bound: Bound) -> str:
    """Return a bound on one line, without its origin."""
    return f"{bound.bound_ms:.4f} ms, limited by {bound.limit}, {bound.certainty}"


def bound_facts(bound: Bound) -> list[Fact]:
    """Return the speed of light of a task and its origin."""
    work = bound.work
    sizes = {"inputs": work.input_bytes, "weights": work.weight_bytes, "outputs": work.output_bytes}
    moved = ", ".join(f"{size / 2**20:.2f} MiB of {name}" for name, size in sizes.items() if size)
    facts = [
        ("speed of light", format_bound(bound)),
        *(("doubt", str(doubt)) for doubt in bound.doubts),
        ("memory", f"{bound.memory_ms:.4f} ms for {moved or 'nothing'}"),
    ]
    for kind, count in work.operations.items():
        rate = bound.rates.get(kind)
        at = (
            f"{count / rate.tflops / 1e9:.4f} ms at {rate.tflops:.4g} TFLOP/s: {rate.unit}" if rate else "no known peak"
        )
        facts.append(("compute", f"{count / 1e9:.4g} GFLOP in {kind}, {at}"))
    return [*facts, ("peaks", format_peaks(bound.peaks))]


def format_peaks(peaks: Peaks) -> str:
    """Return the measured peaks of a device on one line."""
    bandwidths = {
        "copy": peaks.copy_gb_s,
        "read": peaks.read_gb_s,
        "write": peaks.write_gb_s,
        "cache": peaks.cache_gb_s,
    }
    products = {name: getattr(peaks, f"{name}_tflops") for name in ("fp64", "fp32", "tf32", "fp16", "bf16")}
    texts = [f"{name} {value:.4g} GB/s" for name, value in bandwidths.items() if value]
    texts += [f"{name} {value:.4g} TFLOP/s" for name, value in products.items() if value]
    return f"measured on {peaks.device}: {', '.join(texts)}"
