"""Names what a store does not hold, so that a page never leaves a silent gap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stark.core.records import Ending, Final, Kind, RoleUsage, RunRecord
from stark.core.tree import Role
from stark_worker.protocol.bound import Bound


def name_missing(
    record: RunRecord,
    rows: Sequence[Mapping[str, Any]],
    final: Final | None,
    ending: Ending | None,
    usage: Mapping[Role, RoleUsage],
    baselines: Sequence[object],
    bound: Bound | None,
    is_live: bool,
) -> list[str]:
    """Return one sentence for each thing that a run usually stores and this one does not hold."""
    if is_live:
        return []
    return [
        *_missing_of_search(rows, ending),
        *(_missing_of_winner(record, rows, final) if record.kind is Kind.SEARCH else ()),
        *(() if baselines or record.kind is not Kind.SEARCH else ("No time of torch.compile is stored here.",)),
        *(() if bound or not rows else ("No speed of light is stored, so there is no share of the bound.",)),
        *(() if usage or record.kind is not Kind.SEARCH else ("No call of a model is stored.",)),
        *(() if all(each.usd is not None for each in usage.values()) else ("The price of a model is not known.",)),
    ]


def _missing_of_search(rows: Sequence[Mapping[str, Any]], ending: Ending | None) -> Iterator[str]:
    if not rows:
        yield "No node has landed."
    elif rows[0]["ms"] is None:
        yield "The reference has no time, so there is no speed-up."
    if ending is None:
        yield "No ending is stored: the run was interrupted, or an older version wrote it."


def _missing_of_winner(record: RunRecord, rows: Sequence[Mapping[str, Any]], final: Final | None) -> Iterator[str]:
    if final is None and any(row["ms"] is not None for row in rows[1:]):
        is_off = record.settings["evaluation"].get("final") is False
        why = "was turned off" if is_off else "is not stored"
        yield f"The final check {why}: the best time comes from the search alone."
    elif final is not None and final.drop_in is None:
        yield "No drop-in is stored."
