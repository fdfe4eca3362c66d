"""A cell: one run of a benchmark, and its record in the store."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from stark.core.records import Kind, RunRecord
from stark.core.settings import Settings
from stark.core.task import Task
from stark.run.assembly import versions
from stark.run.methods import templates_of
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Entry, Score


@dataclass(frozen=True)
class GivenSource:
    """A source to judge, the number of its node, and the class to load from it."""

    number: int
    label: str
    source: str
    entry: Entry = Entry.CANDIDATE


@dataclass(frozen=True)
class Cell:
    """One run of a benchmark."""

    task: Task
    settings: Settings
    switch: str = ""
    kind: Kind = Kind.SEARCH
    given: tuple[GivenSource, ...] = field(default=(), repr=False)
    system: str = ""  # the tool that made the given sources

    @cached_property
    def id(self) -> str:
        parts = [self.task.name, self.kind, self.settings.evaluation.score]
        if self.kind in (Kind.SEARCH, Kind.RESCORED):  # the words are keys in stores and never change
            parts += [self.settings.method, self.switch or "as it is", f"seed {self.settings.seed}"]
        elif self.kind is Kind.JUDGED:
            parts.append(self.system)
        return " | ".join(parts)

    @property
    def labels(self) -> dict[str, str]:
        return {"kind": self.kind, "switch": self.switch, "system": self.system}

    def rescored(self, winner: str | None = None, number: int = 1) -> Cell:
        """Return the cell that judges the winner of this search by the other score.

        The winner keeps its number, because an extended search may have another winner.
        """
        other = Score.KERNELBENCH if self.settings.evaluation.score is Score.VERIFIED else Score.VERIFIED
        settings = evaluation_settings(self.settings, score=other)
        given = () if winner is None else (GivenSource(number, "winner", winner),)
        return replace(self, kind=Kind.RESCORED, settings=settings, given=given)


def evaluation_settings(settings: Settings, **changes: Any) -> Settings:
    """Return settings with changes in the group ``evaluation``."""
    return settings.model_copy(update={"evaluation": settings.evaluation.model_copy(update=changes)})


def make_run_record(cell: Cell, device: DeviceFacts) -> RunRecord:
    """Return the record that a cell is stored as."""
    return RunRecord(
        id=cell.id,
        created_at=datetime.now(UTC).isoformat(),
        task=cell.task,
        given=None,
        settings=cell.settings.model_dump(mode="json"),
        templates=templates_of(cell.settings),
        versions=versions(),
        device=device,
        labels=cell.labels,
    )
