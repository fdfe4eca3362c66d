"""The worker's answer to the host: outcome, timing and facts about one candidate."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from stark_worker.protocol.bound import Bound
from stark_worker.protocol.codec import PROTOCOL_VERSION, ProtocolError, rename_fields
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.interface import Interface, ShapeTrial
from stark_worker.protocol.intervals import median_interval, ratio_interval
from stark_worker.protocol.isolation import Isolation, Level, parse_isolation

MAX_SAMPLES = 1_000  # of one timing; no evaluation takes as many


@dataclass(frozen=True)
class Timing:
    """Samples of one measurement, in milliseconds, in the order they were taken.

    All of them may be too long or too short by ``unsure_ms``: two processes differ, and a call awake could have hidden
    work.
    """

    samples_ms: tuple[float, ...]
    unsure_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.unsure_ms < math.inf:
            raise ProtocolError(f"doubt must be a finite time of at least 0, not {self.unsure_ms}")
        if not self.samples_ms or not all(0.0 < sample < math.inf for sample in self.samples_ms):
            raise ProtocolError("a timing needs samples, and each of them takes some time")
        if len(self.samples_ms) > MAX_SAMPLES:
            raise ProtocolError(f"a timing has at most {MAX_SAMPLES} samples")

    @property
    def median_ms(self) -> float:
        """The runtime by which a node is scored."""
        return statistics.median(self.samples_ms)

    @property
    def mean_ms(self) -> float:
        """The runtime that KernelBench reports."""
        return statistics.fmean(self.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """The bounds of the median with 99 % confidence."""
        return median_interval(self.samples_ms)

    def ratio_to(self, other: Timing) -> tuple[float, float]:
        """The bounds of this time divided by the other, with 99 % confidence, if both were taken in turns."""
        unsure = self.unsure_ms / self.median_ms + other.unsure_ms / other.median_ms
        return ratio_interval(self.samples_ms, other.samples_ms, unsure)


@dataclass(frozen=True)
class DeviceFacts:
    """The device of a measurement. A fact that could not be read is None."""

    name: str
    kind: str
    architecture: str | None = None
    memory_gb: float | None = None
    bandwidth_gb_s: float | None = None
    shared_memory_kb: float | None = None
    cores: int | None = None
    toolchain: dict[str, str] = field(default_factory=dict)

    @property
    def tools(self) -> dict[str, str]:
        """The versions on which times depend. Python's is left out: it runs no kernel."""
        return {name: version for name, version in self.toolchain.items() if name != "python"}


class Kernels(enum.StrEnum):
    """The origin of the kernels in which a candidate spends its time: ``custom`` from half of it in its own on."""

    CUSTOM = "custom"
    MIXED = "mixed"
    LIBRARY = "library only"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Labels:
    """Facts about a correct candidate that break no rule. None stands for a fact that was not found out.

    ``precision`` is inferred from the error against a double-precision reference. ``own_share`` is the share of the
    time spent in the candidate's own kernels. It and ``kernels`` are reported by the candidate's process.
    ``extra_memory_mb`` is the peak beyond inputs, weights and outputs. ``interface`` is that for which it was judged.
    """

    first_call_ms: float
    precision: str | None = None
    extra_memory_mb: float | None = None
    kernels: Kernels | None = None
    own_share: float | None = None
    other_shapes: tuple[ShapeTrial, ...] = ()
    interface: Interface | None = None

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of older labels, which held shapes as text, in their form of today."""
        if isinstance(shapes := data.get("other_shapes"), dict):
            data = data | {"other_shapes": [_read_shapes(text) | {"outcome": what} for text, what in shapes.items()]}
        return data


def _read_shapes(text: str) -> dict[str, Any]:
    shapes = [[int(size) for size in shape.split("x") if size.isdigit()] for shape in text.split(", ")]
    return {"shapes": shapes}


class Check(enum.StrEnum):
    """The names of the facts in ``EvalReport.checks``."""

    ARITHMETIC = "arithmetic"
    HANDSHAKE = "handshake_ms"
    WEIGHTS = "weights"
    CORRECTNESS = "correctness"
    TIMING = "timing"
    CLOCKS = "clocks"
    CACHE = "cache"
    FLOOR = "floor"
    PRECISION = "precision"
    OPPONENT = "opponent"
    EXCLUSIVE = "exclusive"


@dataclass(frozen=True)
class EvalReport:
    """The evaluator's findings about one candidate.

    ``timing`` is set exactly if the outcome is ok. ``rule`` names the broken rule if the outcome is ``rejected``.
    ``log`` is the output of the compiler or the run, or where the result differs, cut to what a reader needs.
    ``checks`` holds facts about how the candidate was judged, as text for a reader. Old reports have other keys too.
    ``opponent`` holds the opponent's times, sample by sample in turns with the candidate's.
    ``built`` is false if the candidate was never loaded. ``isolation`` is that of the process that built or ran it.
    ``seeds`` are those of the weights, the checked inputs and the calls on them. The candidate never receives those
    of the inputs.
    ``degenerate`` states why the task's check accepts answers that compute nothing; only the reference's report has it.
    ``busy_warning`` describes other load on the host during timing.
    ``reference_isolation`` is that of the process that ran an untrusted task's own model.
    ``dtype_mismatch`` is true if torch complained about a dtype.
    ``bound`` is the least time of the task on this device; only the reference's report has it.
    """

    outcome: Outcome
    timing: Timing | None = None
    log: str = ""
    rule: str | None = None
    checks: dict[str, str] = field(default_factory=dict)
    profile: str | None = None
    device: DeviceFacts | None = None
    duration_s: float = 0.0
    version: int = PROTOCOL_VERSION
    opponent: Timing | None = None
    built: bool = True
    labels: Labels | None = None
    seeds: dict[str, int] = field(default_factory=dict)
    isolation: Isolation | None = None
    reference_isolation: Isolation | None = None
    degenerate: str | None = None
    busy_warning: str | None = None
    dtype_mismatch: bool = False
    bound: Bound | None = None

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != (self.timing is not None):
            raise ProtocolError(f"a report with outcome {self.outcome} and timing {self.timing} contradicts itself")
        if self.timing and self.opponent and len(self.timing.samples_ms) != len(self.opponent.samples_ms):
            raise ProtocolError("the samples of a candidate and of its opponent must come in pairs")

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an older report under their names of today."""
        data = rename_fields(data, {"rival": "opponent"})
        if isinstance(checks := data.get("checks"), dict):
            data |= _split_checks(checks)
        return data

    @property
    def speedup_interval(self) -> tuple[float, float] | None:
        """The speed relative to the opponent, as an interval with 99 % confidence."""
        return self.opponent.ratio_to(self.timing) if self.timing and self.opponent else None

    @property
    def sandbox_level(self) -> Level | None:
        """The level of confinement in which the candidate ran or was built; None if nothing of it ran."""
        return self.isolation.level if self.isolation else None


def _split_checks(checks: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that older reports hold as text among their checks, and the checks that remain."""
    fields: dict[str, Any] = {}
    checks = rename_fields(checks, {"rival": Check.OPPONENT})
    for name, target in {"degenerate": "degenerate", "busy machine": "busy_warning"}.items():
        if name in checks:
            fields[target] = checks.pop(name)
    for name, target in {"isolation": "isolation", "isolation of the reference": "reference_isolation"}.items():
        if isolation := parse_isolation(str(checks.get(name, ""))):
            del checks[name]
            fields[target] = {"level": isolation.level, "details": isolation.details}
    return fields | {"checks": checks}
