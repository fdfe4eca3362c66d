"""Compares the claim of a bundle with a measurement on this machine."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from stark.core.records import Final
from stark.evaluation.bundle import Bundle
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Score

SESSION_FACTOR = 0.9  # two sessions on one machine may differ by this factor beyond their intervals


Interval = tuple[float, float]


def contradict(one: Interval, other: Interval) -> bool:
    """True if two intervals of one speed-up differ by more than two sessions on one machine do."""
    return one[1] < SESSION_FACTOR * other[0] or other[1] < SESSION_FACTOR * one[0]


class Verdict(enum.StrEnum):
    """The result of checking a claim."""

    HOLDS = "holds"
    UNRESOLVED = "unresolved"
    FAILS = "does not hold"


@dataclass(frozen=True)
class Verification:
    """A claim and the measurement of it on this machine."""

    bundle: Bundle
    found: Final
    device: DeviceFacts

    @property
    def is_other_device(self) -> bool:
        """True if the claim was made on another kind of device."""
        claimed = self.bundle.claim.device
        return (claimed.kind, claimed.name, claimed.cores) != (self.device.kind, self.device.name, self.device.cores)

    @property
    def verdict(self) -> Verdict:
        """A claim holds if the kernel is correct and surely faster; on the same device also as fast as claimed."""
        interval, claimed = self.found.speedup_interval, self.bundle.final.speedup_interval
        if interval is None or claimed is None or self._is_slower:
            return Verdict.FAILS
        if interval[0] <= 1.0:
            return Verdict.UNRESOLVED
        short = not self.is_other_device and interval[1] < SESSION_FACTOR * claimed[0]
        return Verdict.FAILS if short else Verdict.HOLDS

    @property
    def reason(self) -> str:
        """The reason for the verdict, in a sentence."""
        if not self.bundle.final.holds or self.bundle.final.speedup_interval is None:
            return "The bundle claims no correct and timed kernel."
        if not self.found.holds:
            return f"The kernel is not correct here: {self.found.report.outcome.value.replace('_', ' ')}."
        endings = {
            Verdict.HOLDS: "and faster than the reference.",
            Verdict.UNRESOLVED: "but these measurements do not show that it is faster.",
            Verdict.FAILS: "but not faster than the reference." if self._is_slower else "but not as fast as claimed.",
        }
        return f"The kernel is correct here, {endings[self.verdict]}"

    @property
    def _is_slower(self) -> bool:
        interval = self.found.speedup_interval
        return interval is None or interval[1] <= 1.0

    def rows(self) -> list[tuple[str, str, str]]:
        """Return a row for each score: its name, the claim, the finding."""
        return [
            (score.value, _format_result(self.bundle.final, score), _format_result(self.found, score))
            for score in Score
        ]


def _format_result(final: Final, score: Score) -> str:
    one = replace(final, score=score)
    if one.speedup_interval is None:
        return one.report.outcome.value.replace("_", " ")
    return "correct, {:.2f}x to {:.2f}x".format(*one.speedup_interval)
