"""What the host and the worker say to each other: frozen records, JSON both ways, no torch.

A candidate's fault is a value (an ``Outcome``); a fault of the machinery is an exception on the side that noticed it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import statistics
import types
import typing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stark_worker.intervals import median_interval, ratio_interval

PROTOCOL_VERSION = 1
DEGENERATE = "degenerate"  # among the checks of a task's own model: why its check accepts answers that compute nothing
BUSY = "busy machine"  # among the checks of what was timed on the host while others computed there
MOST_SAMPLES = 1_000  # of a timing; nobody takes as many
SHAPES = 2  # on how many other shapes a candidate is tried for its label
SHAPE_S = 20.0  # how long loading it there may take, and as long again for running it


class Outcome(enum.StrEnum):
    """How an attempt ended. Every outcome but ``ok`` counts as failed."""

    OK = "ok"
    UNUSABLE_REPLY = "unusable_reply"
    REJECTED = "rejected"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    WRONG_RESULT = "wrong_result"
    TIMEOUT = "timeout"
    CRASH = "crash"
    OUT_OF_MEMORY = "out_of_memory"


class Target(enum.StrEnum):
    """The language a candidate's kernels are written in, and with it the kind of device they run on."""

    CUDA = "cuda"
    TRITON = "triton"
    CPU = "cpu"

    @property
    def device_kind(self) -> str:
        """What ``DeviceFacts.kind`` is where its kernels run."""
        return "cpu" if self is Target.CPU else "cuda"


class Precision(enum.StrEnum):
    """The floating-point type of the task's inputs and weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Score(enum.StrEnum):
    """Which rules decide whether a candidate is correct and how fast it is."""

    VERIFIED = "verified"
    KERNELBENCH = "kernelbench"


class KernelBenchVersion(enum.StrEnum):
    """Whose tolerances the score ``kernelbench`` means, and whether the device's cache is flushed: those of the first
    release, which papers compare by, or of the newest."""

    V01 = "v0.1"
    HEAD = "HEAD"


class Build(enum.StrEnum):
    """How extensions are compiled: with light headers where they suffice, or exactly as torch does it."""

    FAST = "fast"
    STOCK = "stock"


@dataclass(frozen=True)
class Limits:
    """Deadlines of one evaluation; what exceeds one is the candidate's fault and has the outcome ``timeout``."""

    build_s: float = 300.0
    run_s: float = 60.0


ALWAYS_MS = 1e12  # nothing takes longer


@dataclass(frozen=True)
class EvalRequest:
    """One candidate to judge against one task.

    ``entry`` is the class to load from ``candidate_source``: ``ModelNew``, or ``Model`` for the root of a tree,
    whose candidate is the task itself. ``atol`` and ``rtol`` take the place of the score's own tolerances. A rival is
    timed beside the candidate, in turns and on the same inputs: what "faster" is said by. A candidate that takes less
    than ``profile_below_ms`` is profiled. ``labelled`` asks for the labels that take time, and for the seeds. A task of
    a ``stranger`` is confined as a candidate is. ``tf32`` lets torch use TF32 on a GPU, on all sides.
    """

    task_source: str
    candidate_source: str
    entry: str = "ModelNew"
    target: Target = Target.CPU
    precision: Precision = Precision.FP32
    score: Score = Score.VERIFIED
    limits: Limits = Limits()
    build: Build = Build.FAST
    version: int = PROTOCOL_VERSION
    kernelbench_version: KernelBenchVersion = KernelBenchVersion.HEAD
    atol: float | None = None
    rtol: float | None = None
    rival_source: str | None = None
    rival_entry: str = "Model"
    profile_below_ms: float = 0.0  # ALWAYS_MS for everything
    labelled: bool = False
    stranger: bool = False
    tf32: bool = False

    def __post_init__(self) -> None:
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ProtocolError(f"{name} has to be a number from 0 on, not {value}")

    @property
    def with_tf32(self) -> bool:
        """Whether TF32 is allowed; a CPU has none."""
        return self.tf32 and self.target is not Target.CPU

    @property
    def flushed(self) -> bool:
        """Whether a GPU's cache is emptied before calls are timed; KernelBench v0.1 left it as it was."""
        return self.score is not Score.KERNELBENCH or self.kernelbench_version is not KernelBenchVersion.V01

    @property
    def arithmetic(self) -> str:
        """What torch computes with on a GPU, in words for a report."""
        return f"{self.precision}, torch {'with' if self.with_tf32 else 'without'} TF32"


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


class ProtocolError(ValueError):
    """A message that is not what the protocol says it should be."""


Record = TypeVar("Record")


def to_json(record: Any) -> str:
    """The record as one line of JSON."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False, allow_nan=False)


def from_json(kind: type[Record], text: str | bytes) -> Record:
    """The record that ``to_json`` wrote; anything else is a ProtocolError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {error}") from error
    return typing.cast(Record, _read(kind, data, kind.__name__))


def _read(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _read_optional(kind, data, where)
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, data, where)
    if origin is tuple:
        items, inner = _expect(list, data, where), typing.get_args(kind)[0]
        if inner is float and all(type(item) is float for item in items):  # samples, by the million in a benchmark
            return tuple(items)
        return tuple(_read(inner, item, where) for item in items)
    if origin is dict:
        value_kind = typing.get_args(kind)[1]
        return {str(key): _read(value_kind, value, where) for key, value in _expect(dict, data, where).items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise ProtocolError(f"{where}: {error}") from error
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError as error:
            raise ProtocolError(f"{where}: {error}") from error
    return _expect(kind, data, where)


def _read_optional(kind: Any, data: Any, where: str) -> Any:
    if data is None:
        return None
    (inner,) = (choice for choice in typing.get_args(kind) if choice is not type(None))
    return _read(inner, data, where)


def _read_dataclass(kind: Any, data: Any, where: str) -> Any:
    _expect(dict, data, where)
    hints = _hints(kind)
    if unknown := data.keys() - hints.keys():
        raise ProtocolError(f"{where}: unknown field {sorted(unknown)[0]!r}")
    values = {name: _read(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ProtocolError(f"{where}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _expect(kind: type, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise ProtocolError(f"{where}: expected {kind.__name__}, got {type(data).__name__}")
    return data
