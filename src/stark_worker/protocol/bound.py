"""The speed of light of a task: the time that its least work takes at the peaks of the device.

The least work is that of the algebra as the reference writes it, with every intermediate result kept on the chip. A
kernel can beat it by shorter algebra. It cannot beat ``floor_ms``: inputs have to be read, and outputs written.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Arithmetic(enum.StrEnum):
    """The precision in which products are computed. TF32 stands for fp32 products where a request allows TF32."""

    FP64 = "fp64"
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    OTHER = "other"  # whole and complex numbers


class Limit(enum.StrEnum):
    """The resource that a task needs longest. ``launch``: less time than the clock can tell from none."""

    MEMORY = "memory"
    COMPUTE = "compute"
    LAUNCH = "launch"


class Reason(enum.StrEnum):
    """A reason why a bound is only a hint."""

    GATHER = "data decides which bytes are read"
    CONTROL = "data decides which operators run"
    MASK = "a mask or zeros let parts of the work be left out"
    ALGEBRA = "products next to sums, or in a chain, can be shortened"
    CONVOLUTION = "fast algorithms compute such convolutions with fewer products"
    CACHE = "much of the data may lie in the cache"
    UNPROVEN = "changed inputs were not seen to change the outputs"
    SPARSE = "sparse tensors are not counted"
    UNCOUNTED = "operators are not counted, so the bound may be too low"
    UNTRACED = "the reference could not be traced, so no operators are counted"
    LAUNCH = "the task takes less time than launching a kernel"


class Certainty(enum.StrEnum):
    """The trust that a bound deserves. A ``hint`` may be too high or too low."""

    CERTAIN = "certain"
    HINT = "hint"


@dataclass(frozen=True)
class Doubt:
    """A reason, and the operators or bytes that gave rise to it."""

    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value} ({self.detail})" if self.detail else self.reason.value


@dataclass(frozen=True)
class Work:
    """The least work of one call.

    Bytes are those of unique memory: inputs that are read, weights that are used, and outputs that are new.
    ``operations`` are those of products, a multiplication and an addition being two, by ``Arithmetic``.
    """

    input_bytes: int
    weight_bytes: int
    output_bytes: int
    operations: dict[str, int]

    @property
    def read_bytes(self) -> int:
        return self.input_bytes + self.weight_bytes

    @property
    def moved_bytes(self) -> int:
        """The bytes that move between the device and its memory."""
        return self.read_bytes + self.output_bytes


@dataclass(frozen=True)
class Peaks:
    """Measured peaks of a device. None stands for one that it does not have or that was not measured.

    Bandwidths count bytes read plus bytes written. ``cache_gb_s`` is that of copies within the last cache.
    ``launch_ms`` is the time of one small kernel in a queue of many.
    """

    device: str
    copy_gb_s: float
    read_gb_s: float
    write_gb_s: float
    cache_gb_s: float | None = None
    cache_bytes: int = 0
    fp64_tflops: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    fp16_tflops: float | None = None
    bf16_tflops: float | None = None
    launch_ms: float = 0.0


@dataclass(frozen=True)
class ProductRate:
    """The fastest way to compute products in a precision: operations per second, and the unit in words."""

    tflops: float
    unit: str


@dataclass(frozen=True)
class Bound:
    """The least time of one call, and its origin.

    ``floor_ms`` is the part that no algebra shortens: the time to read the inputs and to write the outputs; 0 if that
    is not known. ``rates`` are the peaks that products are computed at, by ``Arithmetic``.
    """

    bound_ms: float
    limit: Limit
    memory_ms: float
    compute_ms: float
    floor_ms: float
    work: Work
    peaks: Peaks
    rates: dict[str, ProductRate]
    doubts: tuple[Doubt, ...] = ()

    @property
    def certainty(self) -> Certainty:
        return Certainty.HINT if self.doubts else Certainty.CERTAIN
