"""The arithmetic from work and peaks to a bound. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from stark_worker.protocol.bound import Arithmetic, Bound, Doubt, Limit, Peaks, ProductRate, Reason, Work

SPLIT_PRODUCTS = 3  # of two-part numbers in a short format, for one product as exact as in fp32
MATTERS = 0.05  # of the bytes or operations: a doubt about less is none
CACHE_MATTERS = 1.25  # the ratio between the times with and without the cache
ALWAYS = frozenset({Reason.CONTROL, Reason.MASK, Reason.SPARSE, Reason.UNCOUNTED, Reason.UNTRACED})


@dataclass(frozen=True)
class Suspicion:
    """A possible doubt, which counts if the bytes or operations that it concerns do."""

    reason: Reason
    detail: str = ""
    bytes: int = 0
    operations: int = 0


@dataclass(frozen=True)
class Conditions:
    """The conditions of a measurement: a flushed cache, and the time that the clock cannot tell from none."""

    flushed: bool
    least_ms: float = 0.0


def make_bound(work: Work, peaks: Peaks, suspicions: tuple[Suspicion, ...], conditions: Conditions) -> Bound:
    """Return the bound of this work on a device with these peaks."""
    memory_ms = moving_ms(work.read_bytes, work.output_bytes, peaks, conditions.flushed)
    rates = {kind: rate for kind in work.operations if (rate := product_rate(Arithmetic(kind), peaks))}
    compute_ms = sum(work.operations[kind] / rate.tflops / 1e9 for kind, rate in rates.items())
    least_ms = max(conditions.least_ms, peaks.launch_ms)
    bound_ms = max(memory_ms, compute_ms, least_ms)
    limits = {memory_ms: Limit.MEMORY, compute_ms: Limit.COMPUTE, least_ms: Limit.LAUNCH}
    limit = limits[bound_ms]
    doubts = [
        *_weigh(suspicions, work, limit),
        *_uncounted(work, rates),
        *_cache_doubts(work, peaks, conditions.flushed, limit),
        *([Doubt(Reason.LAUNCH, f"{1e3 * max(memory_ms, compute_ms):.2f} us")] if limit is Limit.LAUNCH else []),
    ]
    floor_ms = _floor_ms(work, peaks, suspicions, conditions.flushed)
    return Bound(bound_ms, limit, memory_ms, compute_ms, floor_ms, work, peaks, rates, tuple(doubts))


def moving_ms(read: int, written: int, peaks: Peaks, flushed: bool) -> float:
    """Return the time to move so many bytes. What is read and written in pairs moves as in a copy.

    Without a flush, as much as the cache holds is taken to be there.
    """
    total, cached_ms = read + written, 0.0
    if not flushed and peaks.cache_gb_s and total:
        found = min(peaks.cache_bytes, total)
        cached_ms = found / max(peaks.cache_gb_s, peaks.copy_gb_s) / 1e6
        read, written = (size * (total - found) // total for size in (read, written))
    both = min(read, written)
    times = 2 * both / peaks.copy_gb_s, (read - both) / peaks.read_gb_s, (written - both) / peaks.write_gb_s
    return cached_ms + sum(times) / 1e6


def product_rate(kind: Arithmetic, peaks: Peaks) -> ProductRate | None:
    """Return the fastest way to compute products in a precision; None if no peak of it is known.

    Three products of numbers split in two short parts are as exact as one in fp32.
    """
    own: float | None = getattr(peaks, f"{kind}_tflops", None)
    ways = [ProductRate(own, f"{kind} products")] if own else []
    if kind is Arithmetic.FP32:
        shorter = {Arithmetic.TF32: peaks.tf32_tflops, Arithmetic.FP16: peaks.fp16_tflops}
        ways += [
            ProductRate(tflops / SPLIT_PRODUCTS, f"fp32 products, each by {SPLIT_PRODUCTS} in {name}")
            for name, tflops in shorter.items()
            if tflops
        ]
    if kind is Arithmetic.TF32 and peaks.tf32_tflops is None and peaks.fp32_tflops:
        ways = [ProductRate(peaks.fp32_tflops, "fp32 products")]
    return max(ways, key=lambda way: way.tflops, default=None)


def _weigh(suspicions: tuple[Suspicion, ...], work: Work, limit: Limit) -> list[Doubt]:
    """Keep what concerns enough of the work. Shorter algebra matters if the arithmetic limits."""
    operations = sum(work.operations.values())
    return [
        Doubt(each.reason, each.detail)
        for each in suspicions
        if each.reason in ALWAYS
        or (each.bytes and each.bytes > MATTERS * work.moved_bytes)
        or (limit is Limit.COMPUTE and each.operations > MATTERS * operations)
    ]


def _uncounted(work: Work, rates: dict[str, ProductRate]) -> list[Doubt]:
    missing = sorted(kind for kind in work.operations if kind not in rates)
    return [Doubt(Reason.UNCOUNTED, f"products in {', '.join(missing)}")] if missing else []


def _cache_doubts(work: Work, peaks: Peaks, flushed: bool, limit: Limit) -> list[Doubt]:
    """Doubt a bound by memory if the cache could make much of a difference to it."""
    if limit is not Limit.MEMORY:
        return []
    if flushed:  # what is written may stay there
        written = max(work.output_bytes - peaks.cache_bytes, 0)
        times = [moving_ms(work.read_bytes, size, peaks, True) for size in (written, work.output_bytes)]
    else:
        times = [moving_ms(work.read_bytes, work.output_bytes, peaks, choice) for choice in (False, True)]
    if times[1] <= CACHE_MATTERS * times[0]:
        return []
    return [Doubt(Reason.CACHE, f"it holds {peaks.cache_bytes / 2**20:.0f} MiB of {work.moved_bytes / 2**20:.1f}")]


def _floor_ms(work: Work, peaks: Peaks, suspicions: tuple[Suspicion, ...], flushed: bool) -> float:
    """Return the time to move inputs and outputs, without inputs that are in doubt."""
    reasons = {each.reason for each in suspicions}
    if reasons & {Reason.CONTROL, Reason.SPARSE, Reason.UNTRACED}:
        return 0.0
    unsure = sum(each.bytes for each in suspicions if each.reason in (Reason.GATHER, Reason.UNPROVEN, Reason.MASK))
    return moving_ms(max(work.input_bytes - unsure, 0), work.output_bytes, peaks, flushed)
