"""Requirements of an evaluation. Each is tried by using it; a missing one is raised with the way to get it."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stark_worker.compiler.cache import default_cache_dir
from stark_worker.doctor.smoke_test import KERNELS, TASK
from stark_worker.protocol.errors import MachineryFault, TaskFault
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Build, EvalRequest, Target
from stark_worker.scheduler.worker import SHOW_GPUS_HINT, Worker, hidden_gpu_reason

FREE_BYTES = 2 * 2**30
TOOL_S = 120.0
_SUM, _TWICE, _NO_GPU = "45", "42", "no GPU"

_PROGRAM = """
#include <cstdio>
int main() {
    int sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 10; ++i) sum += i;
    std::printf("%d", sum);
}
"""
_DEVICE_PROGRAM = """
#include <cstdio>
__global__ void twice(int* x) { *x *= 2; }
int main() {
    int *x, value = 21;
    cudaError_t wrong = cudaMalloc(&x, sizeof(int));
    if (wrong == cudaErrorNoDevice || wrong == cudaErrorInsufficientDriver) {
        std::printf("no GPU");
        return 0;
    }
    cudaMemcpy(x, &value, sizeof(int), cudaMemcpyHostToDevice);
    twice<<<1, 1>>>(x);
    cudaMemcpy(&value, x, sizeof(int), cudaMemcpyDeviceToHost);
    std::printf("%d", value);
}
"""
_NO_DRIVER = "Install NVIDIA's driver; start a container with the GPU (docker run --gpus all)."
_NO_TORCH = "Install it for this Python: pip install torch ninja setuptools"


class MissingRequirement(Exception):
    """A requirement is missing; ``fix`` says how to get it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = " ".join(what.split()), fix


@dataclass(frozen=True)
class Requirement:
    """Something to try; ``targets`` are those that require it."""

    name: str
    attempt: Callable[[Target], str]
    targets: tuple[Target, ...] = tuple(Target)


def _system(_: Target) -> str:
    if not sys.platform.startswith("linux"):
        raise MissingRequirement(f"this is {sys.platform}", "Evaluate on Linux, here or behind a shared folder.")
    return f"Linux {platform.release()} on {platform.machine()}, Python {platform.python_version()}"


def _disk(_: Target) -> str:
    """Check the temporary folder, where candidates run, and the cache of extensions."""
    cache = default_cache_dir()
    parts = []
    for folder in (Path(tempfile.gettempdir()), cache):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                free = shutil.disk_usage(folder).free
        except OSError as error:
            raise MissingRequirement(
                f"{folder}: {error.strerror}", "Set TMPDIR or XDG_CACHE_HOME to a folder to write in."
            ) from error
        if free < FREE_BYTES:
            raise MissingRequirement(
                f"{folder} has {free / 2**30:.1f} GB free", f"Free {FREE_BYTES / 2**30:.0f} GB there."
            )
        parts.append(f"{free / 2**30:.0f} GB free in {folder}")
    return ", ".join(parts)


def _compiler(_: Target) -> str:
    named = os.environ.get("CXX", "c++")
    try:
        words = shlex.split(named) or [named]  # as in "ccache g++"
    except ValueError as error:
        raise MissingRequirement(f"CXX is {named}: {error}", "Set it to a C++ compiler, or unset it.") from error
    _compile_and_run(
        [*words, "-fopenmp"], "program.cpp", _PROGRAM, (_SUM,), "Install it, on Debian or Ubuntu: apt install g++"
    )
    return f"{shutil.which(words[0])} compiles, and OpenMP works"


def _headers(_: Target) -> str:
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise MissingRequirement(
            f"{header} was not found", "Install Python's headers, on Debian or Ubuntu: apt install python3-dev"
        )
    return str(header)


def _ninja(_: Target) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    if (found := shutil.which("ninja", path=path)) is None:
        raise MissingRequirement("ninja was not found", "Install it for this Python: pip install ninja")
    return found


def _torch(_: Target) -> str:
    began = time.monotonic()
    torch = _import("torch", _NO_TORCH)
    return f"torch {torch.__version__} imported in {time.monotonic() - began:.1f} s by {sys.executable}"


def _triton(_: Target) -> str:
    return f"triton {_import('triton', 'Install it for this Python: pip install triton').__version__}"


def _gpu(target: Target) -> str:
    """Start the driver and run a kernel: programs that list GPUs also list unusable ones."""
    if why := hidden_gpu_reason(target):
        raise MissingRequirement(why, SHOW_GPUS_HINT)
    try:
        code = ctypes.CDLL("libcuda.so.1").cuInit(0)
    except OSError as error:
        raise MissingRequirement("the library libcuda.so.1 was not found", _NO_DRIVER) from error
    if code:
        raise MissingRequirement(f"cuInit fails with code {code}", _NO_DRIVER)
    torch = _import("torch", _NO_TORCH)
    if not torch.cuda.is_available():
        raise MissingRequirement(
            f"torch {torch.__version__} sees no GPU", "Install a torch built for CUDA that suits this driver."
        )
    from stark_worker.device import cuda

    try:
        cuda.check_health()
    except MachineryFault as fault:
        raise MissingRequirement(str(fault), "Reset the GPU or use another: CUDA_VISIBLE_DEVICES.") from fault
    return f"{torch.cuda.get_device_name(0)} ran a kernel"


def _nvcc(_: Target) -> str:
    torch = _import("torch", _NO_TORCH)
    from stark_worker.device import cuda

    fix = "Install the CUDA toolkit of torch's major version, and set CUDA_HOME or PATH."
    if (tool := cuda.nvcc()) is None:
        raise MissingRequirement("nvcc is neither on the PATH nor under CUDA_HOME", fix)
    output = _compile_and_run([tool], "program.cu", _DEVICE_PROGRAM, (_TWICE, _NO_GPU), fix)
    if output == _NO_GPU and torch.cuda.is_available():
        raise MissingRequirement(
            "what it compiles finds no GPU, though torch does: the driver is older than the toolkit", fix
        )
    return f"{tool} compiles, and {'its kernel runs' if output == _TWICE else 'there is no GPU to try its kernel on'}"


def _profiler(target: Target) -> str:
    torch = _import("torch", _NO_TORCH)
    from stark_worker.candidate.profiler import profile_call

    device = "cpu" if target is Target.CPU else "cuda"
    try:
        x = torch.ones(256, 256, device=device)
        seen = profile_call(lambda: x @ x, device == "cuda", source="")
    except (RuntimeError, OSError) as error:
        raise MissingRequirement(f"{error}", "Agents do without profiles.") from error
    if not seen:
        fix = "Let this user profile the GPU: NVreg_RestrictProfilingToAdminUsers=0, or evaluate as root."
        raise MissingRequirement("the profiler sees no kernel", fix)
    return "sees where the time goes"


def _judge_kernel(target: Target, allow_weak_sandbox: bool) -> str:
    """Build a kernel with torch's own toolchain, confine it, check it and time it."""
    began = time.monotonic()
    request = EvalRequest(TASK, KERNELS[target], target=target, build=Build.STOCK)
    with tempfile.TemporaryDirectory(prefix="stark-doctor-") as folder:
        Path(folder).chmod(0o755)  # candidates may be another user
        try:
            report = asyncio.run(_report(request, Path(folder), allow_weak_sandbox))
        except (MachineryFault, TaskFault, OSError) as fault:
            raise MissingRequirement(str(fault), "Put right what is missing above.") from fault
    if report.timing is None:
        raise MissingRequirement(f"{report.outcome}: {report.log[-300:]}", "Put right what is missing above.")
    return f"built, checked and timed in {time.monotonic() - began:.0f} s, in a {report.sandbox_level} sandbox"


async def _report(request: EvalRequest, folder: Path, allow_weak_sandbox: bool) -> EvalReport:
    async with Worker(request.target, folder / "extensions", allow_weak_sandbox) as worker:
        return await worker.judge(request)


def requirements(allow_weak_sandbox: bool) -> list[Requirement]:
    """Return all requirements except the sandbox's controls, in the order to try them."""
    gpu = (Target.CUDA, Target.TRITON)
    return [
        Requirement("system", _system),
        Requirement("disk", _disk),
        Requirement("C++ compiler", _compiler),
        Requirement("Python's headers", _headers),
        Requirement("ninja", _ninja),
        Requirement("torch", _torch),
        Requirement("GPU", _gpu, gpu),
        Requirement("nvcc", _nvcc, (Target.CUDA,)),
        Requirement("triton", _triton, (Target.TRITON,)),
        Requirement("profiler", _profiler, ()),
        Requirement("a kernel, judged", lambda target: _judge_kernel(target, allow_weak_sandbox)),
    ]


def _import(name: str, fix: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # a shared library may be missing
        raise MissingRequirement(f"{name} cannot be imported: {error}", fix) from error


def _compile_and_run(command: list[str], name: str, source: str, expected: Sequence[str], fix: str) -> str:
    """Compile a program, run it, and return its output, which must be one of ``expected``."""
    with tempfile.TemporaryDirectory(prefix="stark-doctor-") as folder:
        path = Path(folder, name)
        path.write_text(source, encoding="utf-8")
        output = ""
        for step in ([*command, str(path), "-o", f"{folder}/program"], [f"{folder}/program"]):
            try:
                done = subprocess.run(step, capture_output=True, text=True, errors="replace", timeout=TOOL_S)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise MissingRequirement(f"{step[0]}: {error}", fix) from error
            output = done.stdout or done.stderr
            if done.returncode:
                raise MissingRequirement(f"{Path(step[0]).name} fails: {output[-300:]}", fix)
        if output not in expected:
            raise MissingRequirement(f"a program it compiled prints {output[-100:]!r} instead of {expected[0]!r}", fix)
        return output
