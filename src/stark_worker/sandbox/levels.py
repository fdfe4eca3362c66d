"""The controls of a sandbox, the level they amount to, the level required, and the remedies. No torch."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection
from dataclasses import dataclass

from stark_worker.protocol.errors import SandboxTooWeak
from stark_worker.protocol.isolation import Isolation, Level

ALLOW_WEAK = "STARK_ALLOW_WEAK_SANDBOX"  # set for a sandboxed process if the user allows a weak sandbox


class Control(enum.StrEnum):
    """One layer of the sandbox. The value is its name in reports."""

    PRIVILEGES = "no new privileges"
    LIMITS = "limits"
    USER = "own user"
    NETWORK = "network namespace"
    MOUNTS = "mount namespace"
    IPC = "IPC namespace"
    SHARED_MEMORY = "own /dev/shm"
    PROCESSES = "other processes hidden"
    FILES = "Landlock"
    CALLS = "seccomp"


WEAK = {Control.PRIVILEGES, Control.LIMITS}
STANDARD = WEAK | {Control.FILES, Control.CALLS}
STRONG = STANDARD | {Control.USER, Control.NETWORK, Control.MOUNTS, Control.IPC}

_NAMESPACES = "Evaluate as root with CAP_SYS_ADMIN (docker run --cap-add SYS_ADMIN)."
REMEDIES = {
    Control.PRIVILEGES: "Use Linux 3.5 or newer.",
    Control.LIMITS: "Let the process lower its own limits (setrlimit).",
    Control.USER: "Evaluate as root that may become another user, or as an ordinary user for the level standard.",
    Control.NETWORK: _NAMESPACES,
    Control.MOUNTS: _NAMESPACES,
    Control.IPC: _NAMESPACES,
    Control.SHARED_MEMORY: _NAMESPACES,
    Control.PROCESSES: _NAMESPACES,
    Control.FILES: "Use Linux 5.13 or newer with landlock among the kernel's lsm= modules; a container has to let the "
    "landlock_* calls through.",
    Control.CALLS: "Use x86-64 or ARM64; a container has to let the call seccomp through.",
}


@dataclass(frozen=True)
class Gap:
    """Something that is not in force, and the reason. ``control`` is None if only a part of a control is missing."""

    reason: str
    control: Control | None = None

    def __str__(self) -> str:
        return f"{self.control}: {self.reason}" if self.control else self.reason


@dataclass(frozen=True)
class Confinement:
    """The controls in force in a process, and the gaps."""

    level: Level
    controls: tuple[Control, ...]
    gaps: tuple[Gap, ...]

    @property
    def isolation(self) -> Isolation:
        """The same for a report."""
        gaps = f"; not: {', '.join(map(str, self.gaps))}" if self.gaps else ""
        return Isolation(self.level, f"{', '.join(self.controls)}{gaps}")

    def __str__(self) -> str:
        return str(self.isolation)

    def why_missing(self, control: Control) -> str:
        """Return the reason why a control is not in force."""
        reasons = (gap.reason for gap in self.gaps if gap.control is control)
        return next(reasons, "not tried, because another control is missing")


def level_of(controls: Collection[Control], as_root: bool) -> Level:
    """Return the level that these controls amount to. A process that still is root is weak at best."""
    if not set(controls) >= WEAK:
        return Level.NONE
    if as_root or not set(controls) >= STANDARD:
        return Level.WEAK
    return Level.STRONG if set(controls) >= STRONG else Level.STANDARD


def required_controls() -> set[Control]:
    """Return the controls that the level standard requires here. Root must change user as well."""
    return STANDARD | ({Control.USER} if os.geteuid() == 0 else set())


def describe_level(level: Level) -> str:
    """State the level of the sandbox, without a final full stop."""
    return f"The sandbox that candidates would run in has the level {level}"


def require_level(achieved: Confinement, allow_weak: bool) -> None:
    """Raise SandboxTooWeak below the level standard. The user can allow the level weak, but not none."""
    if achieved.level in (Level.STRONG, Level.STANDARD) or (achieved.level is Level.WEAK and allow_weak):
        return
    missing = [control for control in Control if control in required_controls() and control not in achieved.controls]
    lines = [f"{control} ({achieved.why_missing(control)}). {REMEDIES[control]}" for control in missing]
    raise SandboxTooWeak(f"{describe_level(achieved.level)}: no {' No '.join(lines)}")
