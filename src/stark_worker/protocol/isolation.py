"""The level of confinement a process reached."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.StrEnum):
    """The strength of the sandbox around a candidate.

    strong: its own user, network, mounts and shared memory; limits on files, system calls and resources.
    standard: limits on files, system calls and resources, as the ordinary user that evaluates.
    weak: less than standard, or still root; at least limits on resources.
    none: not even limits; always refused.
    """

    STRONG = "strong"
    STANDARD = "standard"
    WEAK = "weak"
    NONE = "none"


@dataclass(frozen=True)
class Isolation:
    """A level, and in ``details`` the controls that are in force and those that are missing."""

    level: Level
    details: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.details}" if self.details else str(self.level)


def parse_isolation(text: str) -> Isolation | None:
    """Read the text that reports held before isolation had fields; None if it names no level."""
    level, _, details = text.partition(": ")
    return Isolation(Level(level), details) if level in set(Level) else None
