"""Device kinds: only timings of one device model, driver and set of versions are compared with each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stark.core.errors import EvaluatorError
from stark_worker.protocol.report import DeviceFacts


def describe_kind(facts: DeviceFacts) -> str:
    """Return all that decides if two timings can be compared; equal texts are equal kinds."""
    parts = [facts.name, facts.architecture or "", f"{facts.cores} cores" if facts.cores else ""]
    parts += [f"{name} {version}" for name, version in sorted(facts.tools.items())]
    return ", ".join(filter(None, parts))


def choose_kind(found: Iterable[str], wanted: str | None) -> str:
    """Return the one kind to measure on, from the kind of each lane. Refuse a mixed pool, and list what it holds.

    Each part of ``wanted``, between commas, must occur in the kind's description.
    """
    counts = Counter(found)
    parts = [part.strip().lower() for part in (wanted or "").split(",")]
    fitting = [kind for kind in counts if all(part in kind.lower() for part in parts)]
    if len(fitting) == 1:
        return fitting[0]
    listed = "; ".join(f"{count} x {kind}" for kind, count in sorted(counts.items()))
    if not fitting:
        raise EvaluatorError(
            f"The cluster has no device of the kind {wanted!r}. It has: {listed}.",
            "Name one of these with --device-kind, or leave it out if all are equal.",
        )
    what = f"several kinds of device that fit {wanted!r}" if wanted else "several kinds of device"
    raise EvaluatorError(
        f"The cluster has {what}, and their times cannot be compared: {listed}.",
        "Choose one with --device-kind and a part of its name; several parts are separated by commas.",
    )
