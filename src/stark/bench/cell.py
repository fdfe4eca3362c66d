"""TODO."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from stark.core.records import Kind
from stark.core.settings import Settings
from stark.core.task import Task
from stark_worker.protocol.request import Score


@dataclass(frozen=True)
class Given:
    """A source to be judged, the number of the node it becomes, and the class in it to load."""

    number: int
    label: str
    source: str
    entry: str = "ModelNew"


@dataclass(frozen=True)
class Cell:
    """One run of a benchmark."""

    task: Task
    settings: Settings
    switch: str = ""
    kind: Kind = Kind.SEARCH
    given: tuple[Given, ...] = field(default=(), repr=False)
    system: str = ""  # who made what is given

    @property
    def id(self) -> str:
        parts = [self.task.name, self.kind, self.settings.evaluation.score]
        if self.kind in (Kind.SEARCH, Kind.RESCORED):
            parts += [self.settings.method, self.switch or "as it is", f"seed {self.settings.seed}"]
        elif self.kind is Kind.JUDGED:
            parts.append(self.system)
        return " | ".join(parts)

    @property
    def labels(self) -> dict[str, str]:
        return {"kind": self.kind, "switch": self.switch, "system": self.system}

    def rescored(self, winner: str | None = None, number: int = 1) -> Cell:
        """The winner of this search, to be judged by the other score. A search without one failed by that as well. It
        keeps its number: a search that was extended may have another winner."""
        other = Score.KERNELBENCH if self.settings.evaluation.score is Score.VERIFIED else Score.VERIFIED
        settings = evaluation_settings(self.settings, score=other)
        given = () if winner is None else (Given(number, "winner", winner),)
        return replace(self, kind=Kind.RESCORED, settings=settings, given=given)


def evaluation_settings(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"evaluation": settings.evaluation.model_copy(update=changes)})
