"""Whether a grid fits into the store it is to go on in: one store is one experiment. What does not is refused before
anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stark.bench.cell import Cell
from stark.core.errors import UsageError
from stark.core.records import Kind, RunRecord
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Node
from stark.run.config import differences
from stark.store.lookup import settings_of

MAY_CHANGE = ("budget",)
MAY_DIFFER = {"method", "seed", *MAY_CHANGE}  # between the searches of one experiment


def changes(cell: Cell, record: RunRecord) -> list[tuple[str, str]]:
    """Every setting that a cell was stored with otherwise: its group, and both values in words."""
    return list(differences(cell.settings.model_dump(mode="json"), record.settings))


def check_rules(cells: Sequence[Cell], records: Iterable[RunRecord]) -> None:
    """Refuse searches with another model, evaluator or anything else than those of the store: all would be taken for
    the method's doing. A switch is named in the report."""
    wanted = {cell.settings.method: cell.settings for cell in cells if cell.kind is Kind.SEARCH and not cell.switch}
    for record in records:
        if not wanted or record.labels.get("kind") != Kind.SEARCH or record.labels.get("switch"):
            continue
        if changed := _other_rules(wanted, settings_of(record)):
            raise UsageError(
                f"The store holds searches by other rules: {', '.join(changed)}.",
                "Choose a new folder with --store; --switch compares variants of a method in one store, and "
                "--both-scores judges the winner of a search by both scores.",
            )


def check_settings(cell: Cell, record: RunRecord) -> None:
    """Refuse a run that was begun with other settings or on another task."""
    other = [said for group, said in changes(cell, record) if group not in MAY_CHANGE]
    if other or record.task.source != cell.task.source:
        what = ", ".join(other) if other else "another task file"
        raise UsageError(
            f"The store holds {cell.id!r} with {what}.",
            "Choose a new folder with --store, or go on with the settings that began it.",
        )


def check_attempts(cell: Cell, begun: int) -> None:
    """Refuse a budget that a search has exceeded already."""
    allowed = cell.settings.budget.attempts
    if begun > allowed:
        raise UsageError(
            f"The store holds {cell.id!r} with {begun} attempts: it cannot be a run of {allowed} any more.",
            f"Give --attempts {begun} or more, or choose a new folder with --store.",
        )


def check_sources(cell: Cell, nodes: Iterable[Node]) -> None:
    """Refuse kernels of another tool where others were judged under their names."""
    given = {each.number: each.source for each in cell.given}
    for node in nodes:
        if node.id != ROOT_ID and given.get(node.id) != node.source:
            now = "is another one now" if node.id in given else "is not there any more"
            raise UsageError(
                f"The kernel of {cell.system} for {cell.task.name}, {node.notes[0]}, that the store has judged {now}.",
                "Choose a new folder with --store, or give the kernels that were judged.",
            )


def _other_rules(wanted: Mapping[str, Settings], stored: Settings) -> list[str]:
    """What a stored search does otherwise than those of its method; where there are none now, than any, but for what
    is the method's own."""
    own = stored.method in wanted
    now = wanted[stored.method] if own else next(iter(wanted.values()))
    return [said for _, said in differences(_rules(now, own), _rules(stored, own))]


def _rules(settings: Settings, own: bool) -> dict[str, Any]:
    rules = settings.model_dump(mode="json", exclude=MAY_DIFFER)
    if not own:
        del rules["search"]["policy"], rules["windows"]["enabled"]
    return rules
