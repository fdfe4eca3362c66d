"""What the host and the worker say to each other: frozen records, JSON both ways, no torch.

A candidate's fault is a value (an ``Outcome``); a fault of the machinery is an exception on the side that noticed it.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from stark_worker.protocol.codec import PROTOCOL_VERSION, ProtocolError

SHAPES = 2  # on how many other shapes a candidate is tried for its label


SHAPE_S = 20.0  # how long loading it there may take, and as long again for running it


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
