"""Whether what a bundle claims holds on the machine at hand."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from stark.core.records import Final
from stark.evaluation.bundle import Bundle
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Score

SESSIONS = 0.9  # two sessions on one machine may differ by this factor beyond their intervals


class Verdict(enum.StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    UNRESOLVED = "unresolved"
    FAILS = "does not hold"


@dataclass(frozen=True)
class Verification:
    """A claim beside what was found here."""

    bundle: Bundle
    found: Final
    device: DeviceFacts

    @property
    def elsewhere(self) -> bool:
        """Whether the claim was made on another kind of device."""
        claimed = self.bundle.claim.device
        return (claimed.kind, claimed.name, claimed.cores) != (self.device.kind, self.device.name, self.device.cores)

    @property
    def verdict(self) -> Verdict:
        """Correct and faster beyond doubt holds; on the same kind of device as fast as was claimed, too."""
        interval, claimed = self.found.speedup_interval, self.bundle.final.speedup_interval
        if interval is None or claimed is None or self._slower:
            return Verdict.FAILS
        if interval[0] <= 1.0:
            return Verdict.UNRESOLVED
        short = not self.elsewhere and interval[1] < SESSIONS * claimed[0]
        return Verdict.FAILS if short else Verdict.HOLDS

    @property
    def reason(self) -> str:
        """Why, in a sentence."""
        if not self.bundle.final.holds or self.bundle.final.speedup_interval is None:
            return "The bundle itself does not claim a correct and timed kernel."
        if not self.found.holds:
            return f"The kernel is not correct here: {self.found.report.outcome.value.replace('_', ' ')}."
        endings = {
            Verdict.HOLDS: "and faster than the reference.",
            Verdict.UNRESOLVED: "but whether it is faster cannot be told from these measurements.",
            Verdict.FAILS: "but not faster than the reference." if self._slower else "but not as fast as is claimed.",
        }
        return f"The kernel is correct here, {endings[self.verdict]}"

    @property
    def _slower(self) -> bool:
        interval = self.found.speedup_interval
        return interval is None or interval[1] <= 1.0

    def rows(self) -> list[tuple[str, str, str]]:
        """For each score, what was claimed and what was found."""
        return [(score.value, _said(self.bundle.final, score), _said(self.found, score)) for score in Score]


def _said(final: Final, score: Score) -> str:
    one = replace(final, score=score)
    if one.speedup_interval is None:
        return one.report.outcome.value.replace("_", " ")
    return "correct, {:.2f}x to {:.2f}x".format(*one.speedup_interval)
