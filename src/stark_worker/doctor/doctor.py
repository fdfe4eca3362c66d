"""Tries everything an evaluation on this machine needs, and says what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stark_worker.doctor.escapes import Probe, probed
from stark_worker.doctor.requirements import Lack, Need, needs
from stark_worker.protocol.errors import SandboxTooWeak
from stark_worker.protocol.findings import Finding, State
from stark_worker.protocol.request import Target
from stark_worker.sandbox.confine import confine
from stark_worker.sandbox.levels import REMEDIES, Confinement, Control, Level, accept, needed


def examine(target: Target, allow_weak_sandbox: bool, begin: Callable[[str], None]) -> Iterator[Finding]:
    """Everything this machine needs to judge kernels for a target. ``begin`` is told what is tried next."""
    begin("sandbox")  # first, because a process with threads, as torch starts them, cannot be locked in
    yield from _sandbox(*probed(_confined), allow_weak_sandbox)
    for need in needs(allow_weak_sandbox):
        begin(need.name)
        yield _tried(need, target)


def _confined(folder: Path, memory_bytes: int, processes: int) -> Confinement:
    return confine(folder, memory_bytes=memory_bytes, processes=processes, gpu=False)


def _tried(need: Need, target: Target) -> Finding:
    try:
        return Finding(need.name, State.OK, need.attempt(target))
    except Lack as lack:
        state = State.MISSING if target in need.targets else State.NOT_NEEDED
        return Finding(need.name, state, lack.what, lack.fix)


def _sandbox(achieved: Confinement, probes: Sequence[Probe], allow_weak: bool) -> Iterator[Finding]:
    """The level, each control, and whether what they have to stop was stopped."""
    try:
        accept(achieved, allow_weak)
    except SandboxTooWeak as refusal:
        fix = "Get the controls that are missing" + (", or give --allow-weak-sandbox." if _is_weak(achieved) else ".")
        yield Finding("sandbox", State.MISSING, str(refusal).partition(": no")[0] + ".", fix)
        lacking = State.MISSING
    else:
        yield Finding("sandbox", State.OK, f"the level {achieved.level} is reached")
        lacking = State.NOT_NEEDED
    for control in Control:
        if control in achieved.controls:
            yield Finding(f"  {control}", State.OK, "in force")
        else:
            state = lacking if control in needed() else State.NOT_NEEDED
            yield Finding(f"  {control}", state, achieved.why_not(control), REMEDIES[control])
    through = [probe.name for probe in probes if not probe.blocked]
    told = f"{len(probes) - len(through)} of {len(probes)} stopped"
    told += f"; not stopped: {', '.join(through)}" if through else ""
    failed = bool(through) and not (_is_weak(achieved) and allow_weak)
    fix = "Get the controls that are missing." if through else ""
    yield Finding("  attempts to break out", State.MISSING if failed else State.OK, told, fix)


def _is_weak(achieved: Confinement) -> bool:
    return achieved.level is Level.WEAK
