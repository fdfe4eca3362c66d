"""TODO."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, field

from stark_worker.protocol.codec import PROTOCOL_VERSION, ProtocolError
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.intervals import median_interval, ratio_interval

DEGENERATE = "degenerate"  # among the checks of a task's own model: why its check accepts answers that compute nothing


BUSY = "busy machine"  # among the checks of what was timed on the host while others computed there


MOST_SAMPLES = 1_000  # of a timing; nobody takes as many


@dataclass(frozen=True)
class Timing:
    """Samples of one measurement, in milliseconds, in the order they were taken.

    Beside others that were taken in turns, all of them together may be too long or too short by ``unsure_ms``: of what
    is too short for a device's clock, or takes longer by itself than in a row.
    """

    samples_ms: tuple[float, ...]
    unsure_ms: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.unsure_ms < math.inf:
            raise ProtocolError("what is unsure about a timing is a time")
        if not self.samples_ms or not all(0.0 < sample < math.inf for sample in self.samples_ms):
            raise ProtocolError("a timing needs samples, and each of them takes some time")
        if len(self.samples_ms) > MOST_SAMPLES:
            raise ProtocolError(f"a timing has at most {MOST_SAMPLES} samples")

    @property
    def median_ms(self) -> float:
        """The runtime a node is scored by."""
        return statistics.median(self.samples_ms)

    @property
    def mean_ms(self) -> float:
        """The runtime as KernelBench tells it."""
        return statistics.fmean(self.samples_ms)

    @property
    def interval_ms(self) -> tuple[float, float]:
        """Between which times the median lies with 99 % confidence."""
        return median_interval(self.samples_ms)

    def ratio_to(self, other: Timing) -> tuple[float, float]:
        """Between which shares of another's time it lies with 99 % confidence, where both were taken in turns."""
        unsure = self.unsure_ms / self.median_ms + other.unsure_ms / other.median_ms
        return ratio_interval(self.samples_ms, other.samples_ms, unsure)


@dataclass(frozen=True)
class DeviceFacts:
    """What was measured on. Facts nobody could read off the machine are None."""

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
        """The versions that times depend on. Python's is not one of them: it runs no kernel."""
        return {name: version for name, version in self.toolchain.items() if name != "python"}


class Kernels(enum.StrEnum):
    """Whose kernels a candidate spends its time in."""

    CUSTOM = "custom"
    LIBRARY = "library only"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Labels:
    """What kind of kernel a correct candidate is. None of it is an offence, and None is what nobody found out.

    ``precision`` is inferred from the error against a double-precision reference. ``own_share`` is the share of the
    time that is spent in kernels the candidate brought; that and ``kernels`` are as true as its process is honest.
    ``extra_memory_mb`` is the peak beyond inputs, weights and outputs. ``other_shapes`` holds what came of each.
    """

    first_call_ms: float
    precision: str | None = None
    extra_memory_mb: float | None = None
    kernels: Kernels | None = None
    own_share: float | None = None
    other_shapes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EvalReport:
    """What the evaluator found out about one candidate.

    ``rule`` names the broken rule when the outcome is ``rejected``. ``log`` is the compiler's or the run's output, or
    where the result differs, cut to what a person or a model needs. ``timing`` is there exactly when the outcome is ok.
    ``rival`` holds the times of the request's rival, sample by sample taken beside the candidate's. ``built`` is false
    when the candidate did not get as far as being loaded. ``seeds`` are those of the weights, of the checked inputs and
    of the calls on them, told afterwards; those of the inputs are never told to a candidate.
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
    rival: Timing | None = None
    built: bool = True
    labels: Labels | None = None
    seeds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.outcome is Outcome.OK) != (self.timing is not None):
            raise ProtocolError(f"a report with outcome {self.outcome} and timing {self.timing} contradicts itself")
        if self.timing and self.rival and len(self.timing.samples_ms) != len(self.rival.samples_ms):
            raise ProtocolError("the samples of a candidate and of its rival come in pairs")

    @property
    def sandbox(self) -> str:
        """The level of confinement the candidate ran at, or was built at; empty where nothing of it ran."""
        return self.checks.get("isolation", "").partition(":")[0]
