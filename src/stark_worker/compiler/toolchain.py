"""The compilers: builds a library from sources as fast as possible, with light headers instead of torch's own.

A compiler reads torch's headers for half a minute, and most candidates need no more than a tensor's shape and data. The
light headers in ``headers/`` declare that much on top of torch's C interface. Code that needs more does not compile.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils import cpp_extension

from stark_worker.compiler.ptxas import parse_assembly, write_assembly
from stark_worker.processes.environment import UNPACKED_DIR, requested_architectures
from stark_worker.processes.workdir import PCH_FILE, PCH_HEADER, RESOURCES_FILE
from stark_worker.protocol.logs import error_messages

POLL_S = 0.01
OLDEST_TORCH = 210  # the first version with the C interface that the light headers use
HEADERS = Path(__file__).parent / "headers"
OWN_NAMESPACE = "stark_light"
CPP_FILE, CUDA_FILE = "main.cpp", "cuda.cu"
IMPLICIT = {CPP_FILE: ("torch/extension.h",), CUDA_FILE: ("torch/types.h", "cuda.h", "cuda_runtime.h")}

# Flags that name no files, so that headers precompiled with them are the same for every candidate.
_SHAREABLE = re.compile(r"-(?:O\w*|std=[\w+]+|m[\w.=-]+|f(?:openmp|fast-math|unroll-loops|no-[\w-]+)|W[\w-]+|[gw])")

_SYSTEM_ROOTS = ("/usr", "/opt", "/lib", "/lib64")  # the sandbox lets no candidate write here
_PATH = re.compile(r"/[\w./+-]*")

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]((?:torch|ATen|c10|caffe2|pybind11)/[^>"]*)[>"]', re.MULTILINE)
_DEFINE = re.compile(r"^#define (\w+)", re.MULTILINE)
_MACRO = re.compile(r"\b(?:TORCH|AT|C10|PYBIND11|CUDA_KERNEL)_[A-Z0-9_]+\b")
_OPENED = re.compile(r"using\s+namespace\s+(?:torch|at|c10|caffe2|pybind11|py)\b")
_FOREIGN_NAME = re.compile(rf"\b(?:torch|at|c10|caffe2|pybind11|py|{OWN_NAMESPACE})(?:::|['\"])|['\"]std['\"]")
_HALF = re.compile(r"half|float16|AT_DISPATCH", re.IGNORECASE)
_MISSING_HEADER = ("No such file or directory", "cannot open source file", "incomplete type")


class CompileFailed(Exception):
    """A compiler refused; the text is its output."""


@dataclass(frozen=True)
class BuildRequest:
    """One extension to build. ``files`` are texts by name. A name with a folder in it is a file that already exists."""

    name: str
    files: dict[str, str]
    cflags: tuple[str, ...]
    cuda_cflags: tuple[str, ...]
    ldflags: tuple[str, ...]
    include_paths: tuple[str, ...]
    python: bool
    cuda: bool
    implicit_headers: bool

    @property
    def torch_headers(self) -> set[str]:
        """The headers of torch that the sources include."""
        return {header for text in self.files.values() for header in _INCLUDE.findall(text)}

    @property
    def is_torch_free(self) -> bool:
        """True if the sources use nothing of torch. Torch's full headers cannot help them then."""
        return not (self.implicit_headers or self.python or self.torch_headers)


def reads_only_system_files(request: BuildRequest) -> bool:
    """True if no flag names a file that a candidate could have written.

    A flag without a slash names none, because compilers run in a new folder.
    """
    try:
        words = _words((*request.cflags, *request.cuda_cflags, *request.ldflags))
        return all(map(_is_system_path, request.include_paths)) and all(
            _is_system_path(word[word.index("/") :]) for word in words if "/" in word
        )
    except (ValueError, TypeError, AttributeError):  # the compiler reports a malformed flag
        return False


def _is_system_path(path: str) -> bool:
    roots = (*_SYSTEM_ROOTS, sys.prefix, str(Path(torch.__file__).parent))
    return bool(_PATH.fullmatch(path)) and any(Path(os.path.realpath(path)).is_relative_to(root) for root in roots)


def can_use_light_headers(request: BuildRequest) -> bool:
    """True if the light headers can be tried: they know all headers that the sources include."""
    known = all((HEADERS / header).is_file() for header in request.torch_headers)
    return known and torch.get_default_dtype() is torch.float32 and _torch_number() >= OLDEST_TORCH


def may_need_full_headers(output: str, request: BuildRequest) -> bool:
    """True if the full headers could make these errors go away. If not, the errors are the candidate's own.

    A missing semicolon is an error under any headers. The full headers may know a name of torch, a macro or a file that
    the light headers lack.
    """
    if request.is_torch_free:
        return False
    errors = error_messages(output)
    if any(phrase in errors for phrase in _MISSING_HEADER) or _FOREIGN_NAME.search(errors):
        return True
    if any(_OPENED.search(text) for text in request.files.values()) and re.search(r"not declared|undefined", errors):
        return True
    return bool(set(_MACRO.findall(output)) - _light_macros())


def pch_options(request: BuildRequest) -> list[str] | None:
    """Return the command that precompiles a request's implicit headers; None if other requests could not share them."""
    try:
        shareable = not request.include_paths and all(map(_SHAREABLE.fullmatch, _words(request.cflags)))
    except (ValueError, TypeError, AttributeError):  # the compiler reports a malformed flag
        return None
    is_lasting = UNPACKED_DIR not in HEADERS.parts  # a packed worker unpacks its headers for one run only
    has_implicit = request.implicit_headers and CPP_FILE in request.files
    if not (shareable and is_lasting and has_implicit and can_use_light_headers(request)):
        return None
    return _options(request, CPP_FILE)


def is_pch_failure(output: str) -> bool:
    """True if a compiler could not read a precompiled header."""
    return any(word in output for word in (PCH_HEADER, "internal compiler error", "precompiled", "PCH"))


def precompile_headers(request: BuildRequest, folder: Path) -> None:
    """Precompile the implicit headers of a request in this folder."""
    text = "".join(f"#include <{header}>\n" for header in IMPLICIT[CPP_FILE])
    (folder / PCH_HEADER).write_text(text, encoding="utf-8")
    command = [*_options(request, CPP_FILE), "-x", "c++-header", PCH_HEADER, "-o", PCH_FILE]
    if _start(command, folder, PCH_HEADER).wait():
        raise CompileFailed(_read_log(folder, PCH_HEADER))


def build(request: BuildRequest, folder: Path, pch: Path | None = None) -> Path:
    """Compile the sources in parallel in this folder and link them. ``pch`` is a header that was precompiled."""
    running = {name: _start(_compile_command(request, name, pch), folder, name) for name in request.files}
    if failed := _first_to_fail(running):
        raise CompileFailed(_read_log(folder, failed))
    output = "".join(_read_log(folder, name) for name in request.files if name.endswith(".cu"))
    (folder / RESOURCES_FILE).write_text(write_assembly(parse_assembly(output, demangle)), encoding="utf-8")
    library = folder / f"{request.name}.so"
    if _start(_link_command(request, [_object_file(name) for name in running], library), folder, "link").wait():
        raise CompileFailed(_read_log(folder, "link"))
    return library


def _first_to_fail(running: dict[str, subprocess.Popen[bytes]]) -> str | None:
    """Wait for the compilers and return the file that one refuses. Kill the others at once: errors are found early."""
    while any(process.poll() is None for process in running.values()):
        if any(process.poll() for process in running.values()):
            break
        time.sleep(POLL_S)
    for process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # nvcc starts many processes
    codes = {name: process.wait() for name, process in running.items()}
    return next((name for name, code in codes.items() if code > 0), None) or next(filter(codes.get, codes), None)


def demangle(symbol: str) -> str:
    """Return a symbol as it is written in C++, or unchanged without the tool c++filt."""
    tool = shutil.which("c++filt")
    return subprocess.run([tool, symbol], capture_output=True, text=True).stdout.strip() if tool else symbol


def fingerprint_tools(cuda: bool) -> list[str]:
    """Return what decides a build apart from the request: compilers, architecture and the light headers."""
    tools = [shutil.which(shlex.split(_cxx())[0]), _nvcc_path() if cuda else None]
    stats = [(os.path.realpath(tool), os.stat(tool)) for tool in tools if tool and os.path.exists(tool)]
    texts = [path.read_text(encoding="utf-8") for path in sorted(HEADERS.rglob("*.h"))]
    return [
        *(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats),
        *(_architecture() if cuda else []),
        *texts,
    ]


def _compile_command(request: BuildRequest, name: str, pch: Path | None) -> list[str]:
    implicit = IMPLICIT.get(name, ()) if request.implicit_headers else ()
    if pch and name == CPP_FILE:
        implicit = (str(pch),)
    return [
        *_options(request, name),
        f"-DTORCH_EXTENSION_NAME={request.name}",
        *(word for header in implicit for word in ("-include", header)),
        *("-c", name, "-o", _object_file(name)),
    ]


def _options(request: BuildRequest, name: str) -> list[str]:
    """Return the compiler and all options that affect a header."""
    is_cuda = name.endswith(".cu")
    return [
        *([_nvcc_path()] if is_cuda else shlex.split(_cxx())),
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-DSTARK_LIGHT_TORCH={_torch_number()}",
        *(["-DSTARK_LIGHT_HALF"] if any(_HALF.search(text) for text in request.files.values()) else []),
        *(f"-I{os.path.abspath(path)}" for path in (*request.include_paths, str(HEADERS))),
        *(word for path in _system_includes(request.cuda) for word in ("-isystem", path)),
        *(_nvcc_flags(request) if is_cuda else ["-fPIC", _standard(), *_words(request.cflags)]),
    ]


def _nvcc_flags(request: BuildRequest) -> list[str]:
    own = _words(request.cuda_cflags)
    chosen = any(flag.startswith(("-arch", "--gpu-architecture", "-gencode", "--generate-code")) for flag in own)
    host = ["-ccbin", os.environ["CC"]] if "CC" in os.environ else []
    standard = [] if any(flag.startswith(("-std", "--std")) for flag in own) else [_standard()]
    arch = [] if chosen else _architecture()
    flags = ["--compiler-options", "-fPIC", "--resource-usage"]
    return [*host, *cpp_extension.COMMON_NVCC_FLAGS, *arch, *flags, *own, *standard]


def _link_command(request: BuildRequest, objects: list[str], library: Path) -> list[str]:
    return [
        *shlex.split(_cxx()),
        *objects,
        "-shared",
        *_words(request.ldflags),
        *_libraries(request),
        "-o",
        str(library),
    ]


def _libraries(request: BuildRequest) -> list[str]:
    libraries = []
    if not request.is_torch_free:  # reading torch's symbols takes longer than compiling a small kernel
        cuda = ["-lc10_cuda", "-ltorch_cuda"] if request.cuda and torch.version.cuda else []
        libraries += [f"-L{cpp_extension.TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu", *cuda, "-ltorch"]
    if request.cuda:
        folders = [_toolkit() / name for name in ("lib64", "lib")]
        libraries += [*(f"-L{folder}" for folder in folders if folder.is_dir()), "-lcudart"]
    return libraries


def _architecture() -> list[str]:
    """Return nvcc's options for the requested architectures, or else for the visible device; none without either."""
    requested = requested_architectures()
    if not requested and torch.cuda.is_available():
        requested = [".".join(map(str, torch.cuda.get_device_capability()))]
    found = [(name.removesuffix("+PTX").replace(".", ""), name.endswith("+PTX")) for name in requested]
    return [
        f"-gencode=arch=compute_{number},code={kind}_{number}"
        for number, with_ptx in found
        if re.fullmatch(r"\d+[a-z]?", number)
        for kind in (("sm", "compute") if with_ptx else ("sm",))
    ]


def _system_includes(cuda: bool) -> list[str]:
    torch_folder = Path(torch.__file__).parent / "include"
    python = sysconfig.get_path("include", scheme="posix_prefix")
    toolkit = _toolkit() / "include" if cuda else None
    return [str(path) for path in (torch_folder, python, toolkit) if path and os.path.isdir(path)]


@functools.cache
def _standard() -> str:
    """Return the language standard with which this version of torch compiles extensions."""
    found = re.search(r"-std=c\+\+\d+", Path(cpp_extension.__file__).read_text(encoding="utf-8"))
    return found.group() if found else "-std=c++17"


def _torch_number() -> int:
    """Return version 2.13.0 as 213. Newer versions have a larger C interface."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major) * 100 + int(minor)


def _start(command: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{_object_file(name)}.log", "wb") as log:
        environment = os.environ | {"LC_ALL": "C"}
        return subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env=environment,
            process_group=0,
        )


def _read_log(folder: Path, name: str) -> str:
    return (folder / f"{_object_file(name)}.log").read_text(encoding="utf-8", errors="replace")


def _object_file(name: str) -> str:
    return re.sub(r"\W+", "_", name) + ".o"


def _words(flags: tuple[str, ...]) -> list[str]:
    return [word for flag in flags for word in shlex.split(flag)]


def _cxx() -> str:
    return os.environ.get("CXX", "c++")


def _nvcc_path() -> str:
    return shutil.which("nvcc", path=f"{cpp_extension.CUDA_HOME}/bin") or shutil.which("nvcc") or "nvcc"


@functools.cache
def _toolkit() -> Path:
    """Return the folder with CUDA's headers and libraries. The nvcc on the PATH can be a link or a script."""
    places = [Path(cpp_extension.CUDA_HOME or "/usr/local/cuda"), Path(_nvcc_path()).resolve().parent.parent]
    places += sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    return next((place for place in places if (place / "include" / "cuda_runtime.h").is_file()), places[0])


@functools.cache
def _light_macros() -> set[str]:
    return {name for path in HEADERS.rglob("*.h") for name in _DEFINE.findall(path.read_text(encoding="utf-8"))}
