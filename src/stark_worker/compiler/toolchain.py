"""The compilers: from sources to a library by the shortest way, against light headers instead of torch's own.

Torch's headers take half a minute to read and hardly any candidate needs more of them than a tensor's shape and data.
The headers beside this file declare that much on top of torch's C interface. What they do not know does not compile.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils import cpp_extension

from stark_worker.compiler.ptxas import resources
from stark_worker.processes.workdir import READY_HEADER, READY_MADE, RESOURCES_FILE
from stark_worker.protocol.logs import messages

POLL_S = 0.01
OLDEST_TORCH = 210  # the first with all of the C interface that the light headers stand on
HEADERS = Path(__file__).parent / "headers"
OWN_NAMESPACE = "stark_light"
CPP_FILE, CUDA_FILE = "main.cpp", "cuda.cu"
IMPLICIT = {CPP_FILE: ("torch/extension.h",), CUDA_FILE: ("torch/types.h", "cuda.h", "cuda_runtime.h")}

# Flags that say nothing about files, so that what is made of headers under them is what anybody would make of them.
_HARMLESS = re.compile(r"-(?:O\w*|std=[\w+]+|m[\w.=-]+|f(?:openmp|fast-math|unroll-loops|no-[\w-]+)|W[\w-]+|[gw])")

_INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]((?:torch|ATen|c10|caffe2|pybind11)/[^>"]*)[>"]', re.MULTILINE)
_DEFINE = re.compile(r"^#define (\w+)", re.MULTILINE)
_MACRO = re.compile(r"\b(?:TORCH|AT|C10|PYBIND11|CUDA_KERNEL)_[A-Z0-9_]+\b")
_OPENED = re.compile(r"using\s+namespace\s+(?:torch|at|c10|caffe2|pybind11|py)\b")
_FOREIGN = re.compile(rf"\b(?:torch|at|c10|caffe2|pybind11|py|{OWN_NAMESPACE})(?:::|['\"])|['\"]std['\"]")
_HALF = re.compile(r"half|float16|AT_DISPATCH", re.IGNORECASE)
_LATER = ("No such file or directory", "cannot open source file", "incomplete type")


class CompileFailed(Exception):
    """A compiler refused; the text is what it said."""


@dataclass(frozen=True)
class Request:
    """One extension to build. ``files`` are texts by name; a name with a folder in it is a file that already exists."""

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
        """The headers of torch that the sources ask for."""
        return {header for text in self.files.values() for header in _INCLUDE.findall(text)}

    @property
    def plain(self) -> bool:
        """Whether nothing of torch is used, so that there is nothing to fall back on either."""
        return not (self.implicit_headers or self.python or self.torch_headers)


def fits(request: Request) -> bool:
    """Whether the light headers can be tried at all."""
    known = all((HEADERS / header).is_file() for header in request.torch_headers)
    return known and torch.get_default_dtype() is torch.float32 and _torch_number() >= OLDEST_TORCH


def headers_to_blame(said: str, request: Request) -> bool:
    """Whether the full headers could make the difference; if not, the error is the candidate's own.

    A missing semicolon is an error under any headers. A name of torch's, a macro the light headers do not define or a
    missing file need not be.
    """
    if request.plain:
        return False
    words = messages(said)
    if any(word in words for word in _LATER) or _FOREIGN.search(words):
        return True
    if any(_OPENED.search(text) for text in request.files.values()) and re.search(r"not declared|undefined", words):
        return True
    return bool(set(_MACRO.findall(said)) - _defined())


def ready_options(request: Request) -> list[str] | None:
    """How the implicit headers of a request are compiled; None where they cannot be made ready for others as well."""
    try:
        plain = not request.include_paths and all(map(_HARMLESS.fullmatch, _words(request.cflags)))
    except (ValueError, TypeError, AttributeError):  # what is no flag is told when it is compiled
        return None
    lasting = not HEADERS.is_relative_to(tempfile.gettempdir())  # or nobody will begin with the same ones again
    if not (plain and lasting and request.implicit_headers and CPP_FILE in request.files and fits(request)):
        return None
    return _options(request, CPP_FILE)


def ready_to_blame(said: str) -> bool:
    """Whether a compiler could not make sense of what was made ready for it."""
    return any(word in said for word in (READY_HEADER, "internal compiler error", "precompiled", "PCH"))


def make_ready(request: Request, folder: Path) -> None:
    """Have the compiler read the implicit headers of a request once and for all."""
    text = "".join(f"#include <{header}>\n" for header in IMPLICIT[CPP_FILE])
    (folder / READY_HEADER).write_text(text, encoding="utf-8")
    command = [*_options(request, CPP_FILE), "-x", "c++-header", READY_HEADER, "-o", READY_MADE]
    if _start(command, folder, READY_HEADER).wait():
        raise CompileFailed(_said(folder, READY_HEADER))


def build(request: Request, folder: Path, ready: Path | None = None) -> Path:
    """Compile the sources side by side in this folder and link them, with headers that were made ready if any were."""
    running = {name: _start(_compile(request, name, ready), folder, name) for name in request.files}
    if failed := _first_to_fail(running):
        raise CompileFailed(_said(folder, failed))
    said = "".join(_said(folder, name) for name in request.files if name.endswith(".cu"))
    (folder / RESOURCES_FILE).write_text(resources(said, demangled), encoding="utf-8")
    library = folder / f"{request.name}.so"
    if _start(_link(request, [_object(name) for name in running], library), folder, "link").wait():
        raise CompileFailed(_said(folder, "link"))
    return library


def _first_to_fail(running: dict[str, subprocess.Popen[bytes]]) -> str | None:
    """Whose compiler refuses, as soon as one does: a slip is found in a fraction of the time that compiling takes."""
    while any(process.poll() is None for process in running.values()):
        if any(process.poll() for process in running.values()):
            break
        time.sleep(POLL_S)
    for process in running.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # nvcc is many processes
    codes = {name: process.wait() for name, process in running.items()}
    return next((name for name, code in codes.items() if code > 0), None) or next(filter(codes.get, codes), None)


def demangled(symbol: str) -> str:
    """A symbol as it is written in C++, where the tool for it is there."""
    tool = shutil.which("c++filt")
    return subprocess.run([tool, symbol], capture_output=True, text=True).stdout.strip() if tool else symbol


def identity(cuda: bool) -> list[str]:
    """What besides the request decides the result: compilers, architecture and our own headers."""
    tools = [shutil.which(shlex.split(_cxx())[0]), _nvcc() if cuda else None]
    stats = [(os.path.realpath(tool), os.stat(tool)) for tool in tools if tool and os.path.exists(tool)]
    texts = [path.read_text(encoding="utf-8") for path in sorted(HEADERS.rglob("*.h"))]
    return [
        *(f"{path} {stat.st_size} {stat.st_mtime_ns}" for path, stat in stats),
        *(_architecture() if cuda else []),
        *texts,
    ]


def _compile(request: Request, name: str, ready: Path | None) -> list[str]:
    implicit = IMPLICIT.get(name, ()) if request.implicit_headers else ()
    if ready and name == CPP_FILE:
        implicit = (str(ready),)
    return [
        *_options(request, name),
        f"-DTORCH_EXTENSION_NAME={request.name}",
        *(word for header in implicit for word in ("-include", header)),
        *("-c", name, "-o", _object(name)),
    ]


def _options(request: Request, name: str) -> list[str]:
    """The compiler and everything that decides what it makes of a header."""
    is_cuda = name.endswith(".cu")
    return [
        *([_nvcc()] if is_cuda else shlex.split(_cxx())),
        "-DTORCH_API_INCLUDE_EXTENSION_H",
        f"-DSTARK_LIGHT_TORCH={_torch_number()}",
        *(["-DSTARK_LIGHT_HALF"] if any(_HALF.search(text) for text in request.files.values()) else []),
        *(f"-I{os.path.abspath(path)}" for path in (*request.include_paths, str(HEADERS))),
        *(word for path in _system_includes(request.cuda) for word in ("-isystem", path)),
        *(_nvcc_flags(request) if is_cuda else ["-fPIC", _standard(), *_words(request.cflags)]),
    ]


def _nvcc_flags(request: Request) -> list[str]:
    own = _words(request.cuda_cflags)
    chosen = any(flag.startswith(("-arch", "--gpu-architecture", "-gencode", "--generate-code")) for flag in own)
    host = ["-ccbin", os.environ["CC"]] if "CC" in os.environ else []
    standard = [] if any(flag.startswith(("-std", "--std")) for flag in own) else [_standard()]
    arch = [] if chosen else _architecture()
    flags = ["--compiler-options", "-fPIC", "--resource-usage"]
    return [*host, *cpp_extension.COMMON_NVCC_FLAGS, *arch, *flags, *own, *standard]


def _link(request: Request, objects: list[str], library: Path) -> list[str]:
    return [
        *shlex.split(_cxx()),
        *objects,
        "-shared",
        *_words(request.ldflags),
        *_libraries(request),
        "-o",
        str(library),
    ]


def _libraries(request: Request) -> list[str]:
    found = []
    if not request.plain:  # reading torch's symbols takes longer than compiling a small kernel
        cuda = ["-lc10_cuda", "-ltorch_cuda"] if request.cuda and torch.version.cuda else []
        found += [f"-L{cpp_extension.TORCH_LIB_PATH}", "-lc10", "-ltorch_cpu", *cuda, "-ltorch"]
    if request.cuda:
        found += [*(f"-L{_toolkit() / name}" for name in ("lib64", "lib") if (_toolkit() / name).is_dir()), "-lcudart"]
    return found


def _architecture() -> list[str]:
    """What to build for: all that was wished for, else the device there is; none named where there is neither."""
    wishes = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split()
    if not wishes and torch.cuda.is_available():
        wishes = [".".join(map(str, torch.cuda.get_device_capability()))]
    found = [(wish.removesuffix("+PTX").replace(".", ""), wish.endswith("+PTX")) for wish in wishes]
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
    """The language standard this version of torch compiles extensions with."""
    found = re.search(r"-std=c\+\+\d+", Path(cpp_extension.__file__).read_text(encoding="utf-8"))
    return found.group() if found else "-std=c++17"


def _torch_number() -> int:
    """2.13.0 as 213: newer versions have more in their C interface."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major) * 100 + int(minor)


def _start(command: list[str], folder: Path, name: str) -> subprocess.Popen[bytes]:
    with open(folder / f"{_object(name)}.log", "wb") as log:
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


def _said(folder: Path, name: str) -> str:
    return (folder / f"{_object(name)}.log").read_text(encoding="utf-8", errors="replace")


def _object(name: str) -> str:
    return re.sub(r"\W+", "_", name) + ".o"


def _words(flags: tuple[str, ...]) -> list[str]:
    return [word for flag in flags for word in shlex.split(flag)]


def _cxx() -> str:
    return os.environ.get("CXX", "c++")


def _nvcc() -> str:
    return shutil.which("nvcc", path=f"{cpp_extension.CUDA_HOME}/bin") or shutil.which("nvcc") or "nvcc"


@functools.cache
def _toolkit() -> Path:
    """The folder with CUDA's headers and libraries; what is found on the PATH can be a link or a script."""
    places = [Path(cpp_extension.CUDA_HOME or "/usr/local/cuda"), Path(_nvcc()).resolve().parent.parent]
    places += sorted(Path("/usr/local").glob("cuda-*"), reverse=True)
    return next((place for place in places if (place / "include" / "cuda_runtime.h").is_file()), places[0])


@functools.cache
def _defined() -> set[str]:
    return {name for path in HEADERS.rglob("*.h") for name in _DEFINE.findall(path.read_text(encoding="utf-8"))}
