"""Tries everything that an evaluation needs on this machine, and reports what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stark_worker.doctor.escapes import Probe, probe_confinement
from stark_worker.doctor.requirements import MissingRequirement, Requirement, requirements
from stark_worker.protocol.errors import SandboxTooWeak
from stark_worker.protocol.findings import Finding, State
from stark_worker.protocol.isolation import Level
from stark_worker.protocol.request import Target
from stark_worker.sandbox.confine import confine
from stark_worker.sandbox.levels import (
    REMEDIES,
    Confinement,
    Control,
    describe_level,
    require_level,
    required_controls,
)


def examine(target: Target, allow_weak_sandbox: bool, begin: Callable[[str], None]) -> Iterator[Finding]:
    """Try all requirements of a target and yield each finding. ``begin`` is called with the name before each."""
    begin("sandbox")  # first, because a process with threads, as torch starts them, cannot be confined
    yield from _sandbox(*probe_confinement(_confine_cpu), allow_weak_sandbox)
    for requirement in requirements(allow_weak_sandbox):
        begin(requirement.name)
        yield _check(requirement, target)


def _confine_cpu(folder: Path, memory_bytes: int, processes: int) -> Confinement:
    return confine(folder, memory_bytes=memory_bytes, processes=processes, gpu=False)


def _check(requirement: Requirement, target: Target) -> Finding:
    try:
        return Finding(requirement.name, State.OK, requirement.attempt(target))
    except MissingRequirement as missing:
        state = State.MISSING if target in requirement.targets else State.NOT_NEEDED
        return Finding(requirement.name, state, missing.what, missing.fix)


def _sandbox(achieved: Confinement, probes: Sequence[Probe], allow_weak: bool) -> Iterator[Finding]:
    """Yield the level, each control, and the result of the attempts to break out."""
    try:
        require_level(achieved, allow_weak)
    except SandboxTooWeak:
        fix = "Get the controls that are missing" + (", or give --allow-weak-sandbox." if _is_weak(achieved) else ".")
        yield Finding("sandbox", State.MISSING, f"{describe_level(achieved.level)}.", fix)
        lacking = State.MISSING
    else:
        yield Finding("sandbox", State.OK, f"the level {achieved.level} is reached")
        lacking = State.NOT_NEEDED
    for control in Control:
        if control in achieved.controls:
            yield Finding(f"  {control}", State.OK, "in force")
        else:
            state = lacking if control in required_controls() else State.NOT_NEEDED
            yield Finding(f"  {control}", state, achieved.why_missing(control), REMEDIES[control])
    yield _escapes(probes, is_tolerated=_is_weak(achieved) and allow_weak)


def _escapes(probes: Sequence[Probe], is_tolerated: bool) -> Finding:
    through = [probe.name for probe in probes if not probe.blocked]
    detail = f"{len(probes) - len(through)} of {len(probes)} stopped"
    detail += f"; not stopped: {', '.join(through)}" if through else ""
    state = State.MISSING if through and not is_tolerated else State.OK
    return Finding("  attempts to break out", state, detail, "Get the controls that are missing." if through else "")


def _is_weak(achieved: Confinement) -> bool:
    return achieved.level is Level.WEAK
