"""Shows the speed of light of a task."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from stark.cli.terminal.screen import console, format_fact, show_json, show_warnings
from stark_worker.protocol import report_text
from stark_worker.protocol.codec import to_json

if TYPE_CHECKING:  # at run time it loads the store
    from stark.run.judge import MeasuredBound


def show_bound(measured: MeasuredBound, as_json: bool) -> None:
    """Show a bound and what it comes from, as a table or as one JSON object."""
    bound, timing = measured.limit.bound, measured.reference.timing
    if as_json:
        facts = {
            "bound_ms": bound.bound_ms,
            "limit": bound.limit,
            "certainty": bound.certainty,
            "reference_ms": timing.median_ms if timing else None,
            "reference_share": measured.share,
            "bound": json.loads(to_json(bound)),
        }
        show_json(facts)
        return
    for name, text in report_text.bound_facts(bound):
        console.print(format_fact(name, text))
    if timing is not None and measured.share is not None:
        reached = f"{timing.median_ms:.4f} ms, {report_text.format_share(measured.share)}"
        console.print(format_fact("reference", reached))
    show_warnings(report_text.timing_warnings(measured.reference))
