"""The host's question to the worker: one candidate to judge against one task."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stark_worker.protocol.codec import PROTOCOL_VERSION, ProtocolError, rename_fields

EXTRA_SHAPES = 3  # a labelled candidate is also tried on this many other shapes


EXTRA_SHAPE_S = 20.0  # the deadline for loading it on another shape, and again for running it


ALWAYS_MS = 1e12  # no call takes longer


MAX_VARIANTS = 32  # of one candidate


class Target(enum.StrEnum):
    """The language of a candidate's kernels, which also decides the kind of device."""

    CUDA = "cuda"
    TRITON = "triton"
    CPU = "cpu"

    @property
    def device_kind(self) -> str:
        """The ``DeviceFacts.kind`` on which its kernels run."""
        return "cpu" if self is Target.CPU else "cuda"


class Precision(enum.StrEnum):
    """The floating-point type of the task's inputs and weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Score(enum.StrEnum):
    """The rules that decide whether a candidate is correct and how fast it is."""

    VERIFIED = "verified"
    KERNELBENCH = "kernelbench"


class KernelBenchVersion(enum.StrEnum):
    """The KernelBench release whose rules the score ``kernelbench`` applies: its tolerances and its cache flushing.

    Papers compare by the first release.
    """

    V01 = "v0.1"
    HEAD = "HEAD"


class Build(enum.StrEnum):
    """The way extensions are compiled: with light headers if they suffice, or exactly as torch does."""

    FAST = "fast"
    STOCK = "stock"


class Entry(enum.StrEnum):
    """The class to load from a source."""

    REFERENCE = "Model"
    CANDIDATE = "ModelNew"


@dataclass(frozen=True)
class Limits:
    """Deadlines of one evaluation. A candidate that misses one gets the outcome ``timeout``, or earlier ``hangs``."""

    build_s: float = 300.0
    run_s: float = 60.0


_NEW_NAMES = {
    "rival_source": "opponent_source",
    "rival_entry": "opponent_entry",
    "labelled": "with_labels",
    "stranger": "untrusted_task",
}


@dataclass(frozen=True)
class EvalRequest:
    """One candidate to judge against one task.

    ``entry`` is the class to load from ``candidate_source``. The root of a tree is the task's own ``Model``.
    ``atol`` and ``rtol`` replace the score's own tolerances.
    The opponent is timed in turns with the candidate, on the same inputs.
    A candidate that takes less than ``profile_below_ms`` is profiled; ``ALWAYS_MS`` profiles every candidate.
    ``with_labels`` asks for the labels that take time, and for the seeds.
    The worker confines an ``untrusted_task`` as it confines a candidate.
    Of ``variants`` the fastest one is judged: each replaces numbers in the source's ``CONSTANTS``.
    A candidate that ``is_brief`` gets fewer checks and samples: enough to rank it among others.
    A candidate that is surely 1.5 times slower than ``best_ms`` gets no more samples than show that.
    ``tf32`` lets torch use TF32 on a GPU, for the reference, the candidate and the opponent.
    """

    task_source: str
    candidate_source: str
    entry: Entry = Entry.CANDIDATE
    target: Target = Target.CPU
    precision: Precision = Precision.FP32
    score: Score = Score.VERIFIED
    limits: Limits = Limits()
    build: Build = Build.FAST
    version: int = PROTOCOL_VERSION
    kernelbench_version: KernelBenchVersion = KernelBenchVersion.HEAD
    atol: float | None = None
    rtol: float | None = None
    opponent_source: str | None = None
    opponent_entry: Entry = Entry.REFERENCE
    profile_below_ms: float = 0.0
    with_labels: bool = False
    untrusted_task: bool = False
    tf32: bool = False
    variants: tuple[dict[str, int], ...] = field(default=(), hash=False)
    is_brief: bool = False
    best_ms: float | None = None

    def __post_init__(self) -> None:
        check_variants(self.variants)
        if self.best_ms is not None and not 0.0 < self.best_ms < math.inf:
            raise ProtocolError(f"best_ms must be a time above 0, not {self.best_ms}")
        for name in ("atol", "rtol"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < math.inf:
                raise ProtocolError(f"{name} must be a number of at least 0, not {value}")

    @staticmethod
    def upgrade_json(data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of an older request under their names of today."""
        return rename_fields(data, _NEW_NAMES)

    @property
    def is_reference(self) -> bool:
        """True if the candidate is the task's own model."""
        return self.entry == Entry.REFERENCE

    @property
    def allows_tf32(self) -> bool:
        """True if torch may use TF32; a CPU has none."""
        return self.tf32 and self.target is not Target.CPU

    @property
    def flushes_cache(self) -> bool:
        """True if a GPU's cache is emptied before timed calls; KernelBench v0.1 does not empty it."""
        return self.score is not Score.KERNELBENCH or self.kernelbench_version is not KernelBenchVersion.V01

    @property
    def arithmetic(self) -> str:
        """The arithmetic torch uses on a GPU, as text for a report."""
        return f"{self.precision}, torch {'with' if self.allows_tf32 else 'without'} TF32"


def check_variants(variants: Sequence[Mapping[str, int]]) -> None:
    """Refuse too many variants, and two that are the same."""
    if len(variants) > MAX_VARIANTS:
        raise ProtocolError(f"a request has at most {MAX_VARIANTS} variants, not {len(variants)}")
    if not all(variants) or len({tuple(sorted(each.items())) for each in variants}) < len(variants):
        raise ProtocolError("each variant has to replace other constants")
