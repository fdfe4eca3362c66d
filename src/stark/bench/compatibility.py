"""Refuses a grid that does not fit the store it continues in: one store is one experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stark.bench.cell import Cell
from stark.core.errors import UsageError
from stark.core.records import Kind, RunRecord
from stark.core.settings import Settings
from stark.core.tree import ROOT_ID, Node
from stark.run.settings_loader import differences, without_places
from stark.store.lookup import settings_of

MAY_CHANGE = ("budget", "limits")
MAY_DIFFER = {"method", "seed", *MAY_CHANGE}  # between the searches of one experiment


def changed_settings(cell: Cell, record: RunRecord) -> list[tuple[str, str]]:
    """List the settings that differ from the stored ones: the group of each, and both values in words."""
    return list(differences(without_places(cell.settings.model_dump(mode="json")), record.settings))


def check_rules(cells: Sequence[Cell], records: Iterable[RunRecord]) -> None:
    """Refuse searches with another model, evaluator or other setting than those of the store.

    A report would credit the difference to the method. Switches are exempt: the report names them.
    """
    wanted = {cell.settings.method: cell.settings for cell in cells if cell.kind is Kind.SEARCH and not cell.switch}
    for record in records:
        if not wanted or record.labels.get("kind") != Kind.SEARCH or record.labels.get("switch"):
            continue
        if changed := _differing_rules(wanted, settings_of(record)):
            raise UsageError(
                f"The store holds searches with other settings: {', '.join(changed)}.",
                "Choose a new folder with --store. To compare variants of a method in one store, use --switch; to "
                "judge each winner by both scores, use --both-scores.",
            )


def check_settings(cell: Cell, record: RunRecord) -> None:
    """Refuse a run that began with other settings or on another task."""
    other = [text for group, text in changed_settings(cell, record) if group not in MAY_CHANGE]
    if other or record.task.source != cell.task.source:
        what = ", ".join(other) if other else "another task file"
        raise UsageError(
            f"The store holds {cell.id!r} with {what}.",
            "Choose a new folder with --store, or use the settings that the run began with.",
        )


def check_sources(cell: Cell, nodes: Iterable[Node]) -> None:
    """Refuse kernels of another tool that differ from those judged under the same names."""
    given = {each.number: each.source for each in cell.given}
    for node in nodes:
        if node.id != ROOT_ID and given.get(node.id) != node.source:
            now = "has changed" if node.id in given else "was removed"
            raise UsageError(
                f"The kernel of {cell.system} for {cell.task.name}, {node.notes[0]}, {now} since the store judged it.",
                "Choose a new folder with --store, or give the kernels that were judged.",
            )


def _differing_rules(wanted: Mapping[str, Settings], stored: Settings) -> list[str]:
    """List how a stored search differs from a wanted one of its method, or else of any method."""
    same_method = stored.method in wanted
    now = wanted[stored.method] if same_method else next(iter(wanted.values()))
    return [text for _, text in differences(_rules(now, same_method), _rules(stored, same_method))]


def _rules(settings: Settings, same_method: bool) -> dict[str, Any]:
    rules = without_places(settings.model_dump(mode="json", exclude=MAY_DIFFER))
    if not same_method:
        del rules["search"]["policy"], rules["windows"]["enabled"]
    return rules
