"""How far a candidate is locked in, what of it is accepted, and how to get more. No torch."""

from __future__ import annotations

import enum
import os
from collections.abc import Collection
from dataclasses import dataclass

from stark_worker.protocol.errors import SandboxTooWeak

ALLOW_WEAK = "STARK_ALLOW_WEAK_SANDBOX"  # set for whoever is locked in by those who start it, where the user said so


class Level(enum.StrEnum):
    """How far a candidate is locked in.

    strong: a user of its own, files, system calls, network, mounts and shared memory of its own, limits.
    standard: files, system calls and limits, as the ordinary user that evaluates.
    weak: less than that, or still root; at least limits. none: not even those; refused whatever the user says.
    """

    STRONG = "strong"
    STANDARD = "standard"
    WEAK = "weak"
    NONE = "none"


class Control(enum.StrEnum):
    """The layers, each with what it is."""

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


LEAST = {Control.PRIVILEGES, Control.LIMITS}
STANDARD = LEAST | {Control.FILES, Control.CALLS}
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
class Confinement:
    """What was achieved: the controls in force, and those that are not, each with the reason."""

    level: Level
    controls: tuple[str, ...]
    missing: tuple[str, ...]

    def __str__(self) -> str:
        lacking = f"; not: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.level}: {', '.join(self.controls)}{lacking}"

    def why_not(self, control: Control) -> str:
        """Why a control is not in force."""
        reasons = (line.removeprefix(f"{control}: ") for line in self.missing if line.startswith(f"{control}: "))
        return next(reasons, "not tried, as another one is missing")


def level_of(held: Collection[Control], as_root: bool) -> Level:
    """The level that these controls amount to, for a process that still is root or is not."""
    if not set(held) >= LEAST:
        return Level.NONE
    if as_root or not set(held) >= STANDARD:
        return Level.WEAK
    return Level.STRONG if set(held) >= STRONG else Level.STANDARD


def needed() -> set[Control]:
    """What the level standard takes here: root has to stop being root as well."""
    return STANDARD | ({Control.USER} if os.geteuid() == 0 else set())


def accept(achieved: Confinement, allow_weak: bool) -> None:
    """Refuse what is weaker than standard, unless the user allows a weak sandbox."""
    if achieved.level in (Level.STRONG, Level.STANDARD) or (achieved.level is Level.WEAK and allow_weak):
        return
    lacks = [control for control in Control if control in needed() and control not in achieved.controls]
    told = [f"{control} ({achieved.why_not(control)}). {REMEDIES[control]}" for control in lacks]
    raise SandboxTooWeak(
        f"The sandbox that candidates would run in has the level {achieved.level}: no {' No '.join(told)}"
    )
