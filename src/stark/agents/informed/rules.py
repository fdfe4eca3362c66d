"""The rules of the judge and the facts about the device, in words that fit the settings."""

from __future__ import annotations

from collections.abc import Iterator

from stark.core.settings import EvaluationSettings
from stark.core.tree import Node
from stark_worker.protocol.report import DeviceFacts, Timing
from stark_worker.protocol.request import KernelBenchVersion, Precision, Score, Target

_TYPES = {Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}


def list_rules(evaluation: EvaluationSettings, device: DeviceFacts, root: Node, with_clock: bool = True) -> list[str]:
    """Return the rules that apply, each in a line. Only planners need those of the clock."""
    clock = [_clock(evaluation, root)] if with_clock else []
    return [
        "Keep the arguments of `Model`, its parameters (names, order, shapes) and its outputs (shapes, types). Do not "
        "change inputs.",
        f"Inputs and weights are {_TYPES[evaluation.precision]}. {_tolerance(evaluation)}",
        _checks(evaluation),
        *clock,
        "The model runs in train mode under no_grad. Only outputs are compared, no buffers such as running statistics.",
        "Shapes, types and device stay as they are: specialise for them. No gradients.",
        "Weights may change between calls. Values derived from them may be kept in `self`: make them in forward(), and "
        "again when a weight's `_version` or `data_ptr()` is another.",
        *_build_rules(evaluation.target, device),
    ]


def list_facts(device: DeviceFacts) -> list[str]:
    """Return the known facts about the device."""
    known = {
        "memory ": _with_unit(device.memory_gb, "GiB"),
        "measured copy bandwidth ": _with_unit(device.bandwidth_gb_s, "GB/s"),
        "shared memory per block ": _with_unit(device.shared_memory_kb, "KB (48 static)"),
        "cores " if device.kind == Target.CPU else "multiprocessors ": device.cores,
        "": ", ".join(f"{name} {version}" for name, version in device.tools.items()) or None,
    }
    first = f"{device.name}, {device.architecture}" if device.architecture else device.name
    return [first, *(f"{name}{value}" for name, value in known.items() if value is not None)]


def noise_share(timing: Timing) -> float:
    """Return the half width of the median's 99 % interval, as a share of it."""
    low, high = timing.interval_ms
    return (high - low) / 2 / timing.median_ms


def _tolerance(evaluation: EvaluationSettings) -> str:
    loose = evaluation.precision is not Precision.FP32
    if evaluation.score is Score.KERNELBENCH:
        loose = loose or evaluation.kernelbench_version is KernelBenchVersion.V01
    default = 1e-2 if loose else 1e-4
    atol, rtol = (default if value is None else value for value in (evaluation.atol, evaluation.rtol))
    is_fixed = evaluation.score is Score.KERNELBENCH or evaluation.atol is not None
    spread = "" if is_fixed else " of the output's spread"
    text = f"A value may be off by {rtol:g} of itself plus {atol:g}{spread}."
    if evaluation.tf32:
        return f"{text} The reference itself uses TF32 in products and convolutions, and so may you."
    if loose or is_fixed:
        return text
    if evaluation.target is Target.CPU:
        return f"{text} Arithmetic and sums in half precision fail."
    return (
        f"{text} Products split into three of TF32 or two to three of FP16 (about 22 bits) count as float32 and pass; "
        "single TF32, FP16 or BF16 products and sums in half precision fail."
    )


def _checks(evaluation: EvaluationSettings) -> str:
    if evaluation.score is Score.KERNELBENCH:
        return "Correct means: equal to `Model` on random inputs, by KernelBench's protocol."
    return "Correct means: right on secret inputs of several distributions, and in the timed calls, which are compared."


def _clock(evaluation: EvaluationSettings, root: Node) -> str:
    text = "Timed call by call on new inputs; the median counts."
    if evaluation.target is not Target.CPU:
        cache = ", with the cache flushed" if _flushes(evaluation) else ""
        text = (
            f"Timed call by call on new inputs{cache}; the median counts. Launches count only where they take longer "
            "than the kernels."
        )
    share = noise_share(root.report.timing) if root.report.timing else 0.0
    return f"{text} The noise is about {max(share, 0.001):.1%}: times closer than that are equal." if share else text


def _flushes(evaluation: EvaluationSettings) -> bool:
    return evaluation.score is not Score.KERNELBENCH or evaluation.kernelbench_version is not KernelBenchVersion.V01


def _build_rules(target: Target, device: DeviceFacts) -> Iterator[str]:
    if target is Target.CUDA:
        number = (device.architecture or "").removeprefix("sm_")
        if number == "90":
            yield (
                'sm_90a (wgmma, TMA) is allowed: `extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"]`.'
            )
        yield (
            'Headers of torch and CUDA only, no CUTLASS. cuBLAS: `extra_ldflags=["-lcublas"]` and '
            "`at::cuda::getCurrentCUDABlasHandle()`. Launch on `at::cuda::getCurrentCUDAStream()`."
        )
    if target is Target.CPU:
        yield 'Flags such as `extra_cflags=["-O3", "-march=native", "-fopenmp"]` are allowed.'


def _with_unit(value: float | None, unit: str) -> str | None:
    return None if value is None else f"{value:g} {unit}"
