"""The work of a run and its steps, as views show them and as time left is estimated from them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from stark.core.tree import Role


class Work(enum.StrEnum):
    """A piece of work that a run does as a whole."""

    REFERENCE = "reference"
    ATTEMPT = "attempt"
    FINAL = "final check"
    COMPILE = "torch.compile"
    AUTOTUNE = "max-autotune"
    GIVEN = "given kernel"


class Step(enum.StrEnum):
    """The step that a piece of work is at. An evaluator reports the steps that it knows."""

    PREPARING = "preparing"
    PLANNING = "planning"
    CODING = "coding"
    DEBUGGING = "debugging"
    WRITING = "writing"
    EVALUATING = "evaluating"  # nothing is known beyond that
    SHARING = "waiting for an equal evaluation"
    WAITING = "waiting for the device"
    BUILDING = "building"
    JUDGING = "checking and timing"
    REMOTE = "on the worker"


STEP_OF_ROLE = {
    Role.PLAN: Step.PLANNING,
    Role.CODE: Step.CODING,
    Role.DEBUG: Step.DEBUGGING,
    Role.SOLO: Step.WRITING,
}


@dataclass(frozen=True)
class Flight:
    """A piece of work in flight. ``began`` and ``since`` (of this step) are seconds of the system's clock.

    ``number`` is that of the attempt or node; ``parent`` the node it builds upon.
    """

    run: str
    work: Work
    number: int
    parent: int | None
    step: Step
    since: float
    began: float


@dataclass(frozen=True)
class Flights:
    """All that the writer of a store has in flight, and its estimate of the time left, at ``written_at``."""

    flights: tuple[Flight, ...] = ()
    seconds_left: float | None = None
    written_at: float = 0.0
