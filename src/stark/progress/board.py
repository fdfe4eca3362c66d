"""The board: everything that views show of runs in progress. Events and stored nodes fill it."""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from stark.core.bound import SpeedOfLight, speed_of_light
from stark.core.records import Ending, Event, EventKind, Final, Kind, RunRecord, Spend
from stark.core.steps import Flight, Flights, Step, Work
from stark.core.tree import NO_ATTEMPT, ROOT_ID, Judgement, Node, Role
from stark.progress.time_left import ASSUMED, Pace, Piece, RunLeft, Seconds, estimate_seconds
from stark_worker.protocol.bound import Bound
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.request import Target

MAX_NOTES = 50
ESTIMATE_EVERY_S = 0.5
IDLE_STEPS = frozenset({Step.WAITING, Step.SHARING, Step.PREPARING})  # neither the piece's own time nor a lane's
LANE_STEPS = frozenset({Step.JUDGING, Step.REMOTE})


@dataclass(frozen=True)
class RunPlan:
    """The work of a run, and its limits. ``given`` lists the sources that are only judged, in order."""

    run: str
    task: str
    method: str
    score: str
    kind: Kind = Kind.SEARCH
    target: Target = Target.CPU
    seed: int = 0
    attempts: int = 0
    jobs: int = 1
    has_final: bool = True
    usd: float | None = None
    tokens: int | None = None
    wall_s: float | None = None
    given: tuple[Work, ...] = ()

    @classmethod
    def of(cls, record: RunRecord, given: Iterable[Work] = ()) -> RunPlan:
        """Return the plan of a stored run. Older stores lack some settings."""
        settings, budget = record.settings, record.settings.get("budget", {})
        evaluation = settings.get("evaluation", {})
        return cls(
            record.id,
            record.task.name,
            record.method,
            str(evaluation.get("score", "")),
            record.kind,
            Target(evaluation.get("target", Target.CPU)),
            int(settings.get("seed", 0)),
            int(budget.get("attempts", 0)),
            int(settings.get("jobs", 1)),
            bool(evaluation.get("final", True)),
            budget.get("usd"),
            budget.get("tokens"),
            budget.get("wall_s"),
            tuple(given),
        )


@dataclass(frozen=True)
class NodeLine:
    """A node as a line of a view."""

    id: int
    parent_id: int | None
    role: Role
    outcome: Outcome
    rule: str | None = None
    runtime_ms: float | None = None
    advice: str = ""
    bound: Bound | None = None  # of the task; only the root's line has it

    @classmethod
    def of(cls, node: Node) -> NodeLine:
        advice = node.plan.advice if node.plan is not None and node.role is not Role.PLAN else ""
        first = next((line.strip("# *") for line in advice.splitlines() if line.strip("# *")), "")
        report = node.report
        facts = (report.outcome, report.rule, node.runtime_ms, first[:200], report.bound)
        return cls(node.id, node.parent_id, node.role, *facts)

    @classmethod
    def of_judgement(cls, judged: Judgement) -> NodeLine:
        parent = None if judged.id == ROOT_ID else ROOT_ID  # a judgement does not know its parent
        return cls(judged.id, parent, judged.role, judged.outcome, None, judged.runtime_ms)


class RunBoard:
    """One run on the board."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.nodes: dict[int, NodeLine] = {}  # in landing order
        self.flights: dict[tuple[Work, int], Flight] = {}
        self.spent = Spend()
        self.final: Final | None = None
        self.ending: Ending | None = None
        self.has_ended = False

    @property
    def light(self) -> SpeedOfLight | None:
        """The bound of the task that counts, given the best; None if none is known."""
        root = self.nodes.get(ROOT_ID)
        return speed_of_light(root.bound if root else None, self.best.runtime_ms if self.best else None)

    @property
    def root_ms(self) -> float | None:
        root = self.nodes.get(ROOT_ID)
        return root.runtime_ms if root else None

    @property
    def made(self) -> int:
        """The number of finished attempts."""
        return sum(node.role not in NO_ATTEMPT for node in self.nodes.values())

    @property
    def best(self) -> NodeLine | None:
        """The winner, if it was confirmed, or else the fastest so far."""
        if self.final is not None and self.final.holds:
            return self.nodes.get(self.final.node_id)
        timed = [node for node in self.nodes.values() if node.runtime_ms is not None and node.id != ROOT_ID]
        return min(timed, key=lambda node: node.runtime_ms or 0.0, default=None)

    def speedup(self, node: NodeLine) -> float | None:
        """Return the speed of a node over the reference, as the search measured it."""
        return self.root_ms / node.runtime_ms if self.root_ms and node.runtime_ms else None

    def best_so_far(self) -> list[float]:
        """Return the best speedup after each finished attempt; 0 before the first correct kernel."""
        best, curve = 0.0, list[float]()
        for node in self.nodes.values():
            if node.id != ROOT_ID:
                best = max(best, self.speedup(node) or 0.0)
            if node.role not in NO_ATTEMPT:
                curve.append(best)
        return curve

    def left(self) -> Counter[Work]:
        """Return the work that has not begun."""
        if self.has_ended:
            return Counter()
        left: Counter[Work] = Counter({Work.REFERENCE: ROOT_ID not in self.nodes})
        if self.plan.kind is Kind.SEARCH:
            left[Work.ATTEMPT] = max(0, self.plan.attempts - self.made)
            left[Work.FINAL] = int(self.plan.has_final and self.final is None)
        else:
            left.update(self.plan.given[max(0, len(self.nodes) - 1) :])
        left.subtract(flight.work for flight in self.flights.values())
        return +left


@dataclass
class _Taken:
    """The seconds that a piece in flight has taken before its present step."""

    seconds: Seconds = field(default_factory=Seconds)
    in_lane: bool = False

    def after(self, step: Step, duration_s: float) -> Seconds:
        """Return the seconds, with those of a step."""
        if step in IDLE_STEPS:
            return self.seconds
        in_lane = self.is_in_lane(step)
        return self.seconds + (Seconds(lane=duration_s) if in_lane else Seconds(own=duration_s))

    def is_in_lane(self, step: Step) -> bool:
        """True if a step holds a lane. Without a GPU, a build does too."""
        return step in LANE_STEPS or (step is Step.BUILDING and self.in_lane)


class _LaneMeter:
    """Counts the lanes that work at the same time, by their average while any of them works.

    A lane begins its next piece before the last one has landed, so a single moment would show one lane too many.
    """

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._busy_s = self._lane_s = 0.0

    def measure(self, in_lanes: int, now: float) -> None:
        if self._last is not None and self._last[1]:
            self._busy_s += now - self._last[0]
            self._lane_s += (now - self._last[0]) * self._last[1]
        self._last = (now, in_lanes)

    @property
    def count(self) -> int:
        return max(1, round(self._lane_s / self._busy_s)) if self._busy_s else 1


class Board:
    """All runs of one command or one store. A thread that shows them holds ``lock`` meanwhile."""

    def __init__(self, parallel_runs: int = 1) -> None:
        self.runs: dict[str, RunBoard] = {}
        self.parallel_runs = parallel_runs
        self.notes: deque[str] = deque(maxlen=MAX_NOTES)
        self.lock = threading.RLock()
        self.began: float | None = None  # when the first piece began
        self._pace = Pace(ASSUMED[Target.CPU])
        self._taken: dict[tuple[str, Work, int], _Taken] = {}
        self._lanes, self._in_lanes = _LaneMeter(), 0
        self._estimate: tuple[float, float | None] = (-math.inf, None)

    def add(self, plan: RunPlan, nodes: Iterable[NodeLine] = (), final: Final | None = None) -> RunBoard:
        """Add a run, with what is stored of it. The target of the first run decides what is assumed of durations."""
        with self.lock:
            if not self.runs:
                self._pace = Pace(ASSUMED[plan.target])
            run = self.runs[plan.run] = RunBoard(plan)
            run.nodes.update({node.id: node for node in nodes})
            run.final = final
            return run

    def apply(self, event: Event, now: float) -> None:
        """Take over what an event reports."""
        with self.lock:
            if event.kind is EventKind.NOTE:
                self.notes.append(event.text)
            if (run := self.runs.get(event.run)) is not None:
                before = self._count_in_lanes(run)
                self._apply(run, event, now)
                self._in_lanes += self._count_in_lanes(run) - before  # of one run: there may be thousands
                self._lanes.measure(self._in_lanes, now)

    def _apply(self, run: RunBoard, event: Event, now: float) -> None:
        run.spent = event.spent
        number = ROOT_ID if event.number is None else event.number
        if event.step is not None:
            self._enter_step(run, event, number, event.step, now)
        elif event.kind is EventKind.LANDED and event.node is not None:
            run.nodes[number] = NodeLine.of(event.node)
            self._leave(run, now, number)
        elif event.kind is EventKind.CONFIRMED:
            run.final = event.final
            self._leave(run, now, number)
        elif event.kind is EventKind.CUT_SHORT:
            self._drop(run, [key for key in run.flights if key[1] == number])
        elif event.kind is EventKind.ENDED:
            run.has_ended, run.ending = True, event.ending
            self._drop(run, list(run.flights))

    def flights(self, now: float) -> Flights:
        """Return what is in flight, for the file of it."""
        with self.lock:
            flights = tuple(flight for run in self.runs.values() for flight in run.flights.values())
            return Flights(flights, self.seconds_left(now), now)

    def seconds_left(self, now: float) -> float | None:
        """Return the estimated seconds to the end of all runs, or None while nothing is known."""
        at, value = self._estimate
        if now - at >= ESTIMATE_EVERY_S:
            value = self._estimate_seconds(now)
            self._estimate = (now, value)
        return value

    @property
    def spent(self) -> Spend:
        return sum((run.spent for run in self.runs.values()), Spend())

    @property
    def made(self) -> int:
        """The attempts that all searches have made."""
        return sum(run.made for run in self._searches)

    @property
    def planned(self) -> int:
        """The attempts that all searches will have made; one that ended early makes no more."""
        return sum(run.made if run.has_ended else max(run.made, run.plan.attempts) for run in self._searches)

    @property
    def _searches(self) -> list[RunBoard]:
        return [run for run in self.runs.values() if run.plan.kind is Kind.SEARCH]

    def _enter_step(self, run: RunBoard, event: Event, number: int, step: Step, now: float) -> None:
        self.began = now if self.began is None else self.began
        old = run.flights.get((event.work, number))
        taken = self._taken.setdefault((run.plan.run, event.work, number), _Taken())
        if old is not None:
            taken.seconds = taken.after(old.step, now - old.since)
        taken.in_lane = step is Step.WAITING or (taken.in_lane and step is Step.BUILDING)
        parent = event.node.id if event.node is not None else old.parent if old else None
        began = old.began if old else now
        run.flights[event.work, number] = Flight(run.plan.run, event.work, number, parent, step, now, began)

    def _count_in_lanes(self, run: RunBoard) -> int:
        return sum(self._taken[run.plan.run, *key].is_in_lane(each.step) for key, each in run.flights.items())

    def _leave(self, run: RunBoard, now: float, number: int) -> None:
        """Let finished work land, and learn from it."""
        for key in [key for key in run.flights if key[1] == number]:
            flight = run.flights.pop(key)
            taken = self._taken.pop((run.plan.run, *key)).after(flight.step, now - flight.since)
            if taken.total > 0:  # a reference that another run measured took nothing
                self._pace.add(flight.work, taken)

    def _drop(self, run: RunBoard, keys: Iterable[tuple[Work, int]]) -> None:
        for key in keys:
            del run.flights[key], self._taken[run.plan.run, *key]

    def _estimate_seconds(self, now: float) -> float | None:
        references: set[tuple[str, str]] = set()  # one for all runs on a task
        left = []
        for run in self.runs.values():
            waiting, reference = run.left(), (run.plan.task, run.plan.score)
            if waiting[Work.REFERENCE] and reference in references:
                del waiting[Work.REFERENCE]
            references.add(reference)
            in_flight = [
                Piece(flight.work, self._taken[run.plan.run, *key].after(flight.step, now - flight.since))
                for key, flight in run.flights.items()
            ]
            if waiting or in_flight:
                left.append(RunLeft(waiting, in_flight, run.plan.jobs))
        elapsed_s = 0.0 if self.began is None else now - self.began
        return estimate_seconds(self._pace, left, self.parallel_runs, self._lanes.count, elapsed_s)


def count_down(flights: Flights, now: float) -> Flights:
    """Return stored flights as they stand now: the time left has gone on."""
    left = flights.seconds_left
    return replace(flights, seconds_left=None if left is None else max(0.0, left - (now - flights.written_at)))
