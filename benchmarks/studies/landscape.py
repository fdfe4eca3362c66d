"""A simulated kernel landscape: what an attempt on a node leads to, without a model, a compiler or a GPU.

Assumptions, each a parameter, so that a conclusion can be tested against them (``VARIATIONS``):

  the root is hard to beat      The first kernel made from the reference is on average ``handicap`` slower in log time:
                                0.7 means half as fast.
  progress is local             A child of a correct kernel changes its log speed by a step with mean ``drift`` plus
                                ``gain`` times the room that is left below the task's ceiling, and deviation ``step``.
                                The ceiling, in log speed over the root, is drawn per task from N(``ceiling``, 0.4), at
                                least 0.1. With gain, even a blind walk climbs; with a negative drift it sinks.
  failures are frequent         A share ``failing`` of attempts fails on average. How risky a node is to build upon is
                                drawn per node, so the children of one node tend to fail or succeed together.
  siblings are alike            A share ``alike`` of the variance of a step is drawn once per parent and shared by all
                                its children; so is that share of the riskiness.
  repairs keep the idea         An attempt on a failed node is a repair. It works with probability ``repair``, and has
                                then the speed the failed candidate would have had.

Nothing here was fitted to measurements; compare policies on it, not methods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from stark.core.tree import ROOT_ID, Attempt, Node, Role, Tree
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing

FAILED = EvalReport(Outcome.WRONG_RESULT)


@dataclass(frozen=True)
class Landscape:
    """The assumptions. Shares of variance and failure rates are between 0 and 1."""

    handicap: float = 0.7
    gain: float = 0.15
    drift: float = 0.0
    step: float = 0.35
    ceiling: float = 1.2
    failing: float = 0.5
    alike: float = 0.5
    repair: float = 0.5


VARIATIONS = {
    "as assumed": Landscape(),
    "easy root": Landscape(handicap=0.0),
    "hard root": Landscape(handicap=1.4),
    "steps as often hurt": Landscape(gain=0.0),
    "steps mostly hurt": Landscape(gain=0.0, drift=-0.2),
    "few failures": Landscape(failing=0.2),
    "many failures": Landscape(failing=0.75),
    "siblings differ": Landscape(alike=0.0),
    "siblings alike": Landscape(alike=0.9),
    "hopeless repairs": Landscape(repair=0.1),
    "easy repairs": Landscape(repair=0.9),
}


@dataclass(frozen=True)
class Hidden:
    """The part of a node that a policy cannot see: its log speed over the root, and what its children share."""

    speed: float
    shared_step: float
    shared_risk: float


class Simulation:
    """One search on one task. The task depends on the seed alone, so that policies can be compared on the same ones."""

    def __init__(self, landscape: Landscape, seed: int) -> None:
        task = Random(f"task {seed}")
        self._rng = Random(f"attempts {seed}")
        self._landscape = landscape
        self._ceiling = max(0.1, task.gauss(landscape.ceiling, 0.4))
        self._hidden = {ROOT_ID: self._look(0.0, task)}
        self.tree = Tree()
        self.tree.add(Node(ROOT_ID, None, Attempt(Role.REFERENCE, "root", EvalReport(Outcome.OK, Timing((1.0,))))))

    @property
    def best(self) -> float | None:
        """The log speed over the root of the best kernel so far."""
        best = self.tree.best
        return None if best is None else -math.log(best.runtime_ms or 1.0)

    def attempt(self, parent: Node) -> None:
        """Grow the tree by one child."""
        number = len(self.tree)
        hidden, correct = self._repaired(parent) if parent.failed else self._child(parent)
        self._hidden[number] = hidden
        report = EvalReport(Outcome.OK, Timing((math.exp(-hidden.speed),))) if correct else FAILED
        role = Role.DEBUG if parent.failed else Role.CODE
        self.tree.add(Node(number, parent.id, Attempt(role, f"candidate {number}", report)))

    def _child(self, parent: Node) -> tuple[Hidden, bool]:
        land, rng, before = self._landscape, self._rng, self._hidden[parent.id]
        own = math.sqrt(1 - land.alike) * rng.gauss(0, 1)
        change = land.step * (before.shared_step + own)
        if parent.id == ROOT_ID:
            change -= land.handicap
        else:
            change += land.drift + land.gain * (self._ceiling - before.speed)
        speed = min(before.speed + change, self._ceiling)
        risk = before.shared_risk + math.sqrt(1 - land.alike) * rng.gauss(0, 1)
        return self._look(speed, rng), risk < NormalDist().inv_cdf(1 - land.failing)

    def _repaired(self, parent: Node) -> tuple[Hidden, bool]:
        return self._hidden[parent.id], self._rng.random() < self._landscape.repair

    def _look(self, speed: float, rng: Random) -> Hidden:
        shared = math.sqrt(self._landscape.alike)
        return Hidden(speed, shared * rng.gauss(0, 1), shared * rng.gauss(0, 1))
