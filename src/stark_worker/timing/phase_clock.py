"""Measures the phases of one evaluation: a new phase ends the one before, so no time is lost or counted twice."""

from __future__ import annotations

import time
from dataclasses import replace

from stark_worker.protocol.report import EvalReport, Phase, Phases


class PhaseClock:
    """Adds up the seconds of phases, in any order and number."""

    def __init__(self, first: Phase) -> None:
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._phase, self._began = first, time.monotonic()

    def begin(self, phase: Phase) -> None:
        """End the current phase and begin another."""
        now = time.monotonic()
        self._seconds[self._phase] += now - self._began
        self._phase, self._began = phase, now

    def read(self) -> Phases:
        """Return the seconds so far."""
        self.begin(self._phase)
        return Phases(**self._seconds)

    def add_to(self, report: EvalReport) -> EvalReport:
        """Return a report with these phases added to its own. Its own are a part of what was ``start`` here."""
        around, inside = self.read(), report.phases_s or Phases()
        around = replace(around, start=max(around.start - inside.total_s, 0.0))
        return replace(report, phases_s=around + inside)
