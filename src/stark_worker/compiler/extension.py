"""Extensions of a candidate: ``load_inline`` and ``load`` of torch with a faster way behind them.

A call becomes an ``Extension``, which knows by which key it is found in a cache, how it is built and how it is loaded.
In the mode "fast" the light headers are tried first and torch's own when they may be to blame; "stock" is torch's way.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import cpp_extension

from stark_worker.compiler import cache, toolchain
from stark_worker.compiler.toolchain import CPP_FILE, CUDA_FILE, CompileFailed, Request
from stark_worker.processes.environment import NVCC
from stark_worker.processes.workdir import READY_HEADER
from stark_worker.protocol.logs import compiler_errors, in_candidate_lines

Mode = Literal["fast", "stock"]
Build = Callable[[Path], Any]

ENVIRONMENT = ("CC", "CXX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", *NVCC)

_LOCAL_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_TORCHS = {name: inspect.unwrap(getattr(cpp_extension, name)) for name in ("load_inline", "load")}


class BuildFailed(RuntimeError):
    """A compiler refused. A RuntimeError, as from torch itself: candidates may expect one."""


@dataclass(frozen=True)
class Extension:
    """One call of ``load_inline`` or ``load``, all arguments by name, from a candidate that lies in ``home``."""

    function: str
    call: dict[str, Any]
    mode: Mode
    home: Path

    @functools.cached_property
    def request(self) -> Request:
        return _inline_request(self.call) if self.function == "load_inline" else _file_request(self.call)

    @property
    def key(self) -> str:
        """Of everything that decides what is built."""
        said = {name: repr(value) for name, value in self.call.items() if name not in ("verbose", "build_directory")}
        flags = said.get("extra_cflags", "") + said.get("extra_cuda_cflags", "")
        parts = [self.request.files, _local_headers(self.request), said, self.mode, _around(flags, self.request.cuda)]
        return _hash(parts, self.home)

    @property
    def headers_key(self) -> str | None:
        """Of the headers it begins with, where these can be made ready for all who begin so."""
        options = toolchain.ready_options(self.request) if self.mode == "fast" else None
        return None if options is None else _hash([options, _around(" ".join(options), False)], self.home)

    def make_headers(self, folder: Path) -> None:
        """Make these headers ready in this folder."""
        toolchain.make_ready(self.request, folder)

    def build(self, folder: Path, ready: Path | None = None) -> Any:
        """Build it in this folder, and load it from there to see that it can be."""
        stock = functools.partial(_stock, _TORCHS[self.function], self.call)
        return _build(self.request, stock, self.mode, folder, ready)

    def load(self, library: Path) -> Any:
        """What torch would return: the module, or the library's path."""
        return _load(library, self.request)


def install(make: Callable[[Extension], Any], mode: Mode = "fast") -> None:
    """Put ours in the place of torch's, in this process; called before the candidate's code is imported."""
    for name, torchs in _TORCHS.items():
        setattr(cpp_extension, name, _replacement(name, torchs, make, mode))


def _replacement(name: str, torchs: Callable[..., Any], make: Callable[[Extension], Any], mode: Mode) -> Any:
    signature = inspect.signature(torchs)

    @functools.wraps(torchs)
    def load(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        if call.get("with_sycl") or call.get("sycl_sources") or call.get("is_standalone"):
            return torchs(*args, **kwargs)  # not kinds of extension that candidates are asked for
        return make(Extension(name, dict(call), mode, Path.cwd()))

    return load


def from_cache_or_new(shared: Path, private: Path, used: list[Path] | None = None) -> Callable[[Extension], Any]:
    """A way to make extensions for a process that nobody trusts: it reads the shared cache and never writes to it.

    The folders of what it made are added to ``used``.
    """

    def make(extension: Extension) -> Any:
        key = extension.key
        library = cache.find(shared, key) or cache.find(private, key)
        place = library.parent if library else private / key
        if used is not None:
            used.append(place)
        if library:
            return extension.load(library)
        place.mkdir(parents=True)
        headers = extension.headers_key
        try:
            return extension.build(place, cache.find(shared, headers, READY_HEADER) if headers else None)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise

    return make


def _build(request: Request, stock: Build, mode: Mode, folder: Path, ready: Path | None) -> Any:
    """Try the light headers, then torch's own unless the candidate itself is plainly at fault."""
    if mode == "fast" and toolchain.fits(request):
        try:
            return _light(request, folder, ready)
        except CompileFailed as error:
            if ready and toolchain.ready_to_blame(str(error)):
                return _build(request, stock, mode, folder, None)
            if not toolchain.headers_to_blame(compiler_errors(str(error)), request):
                raise _failure(request, in_candidate_lines(str(error), {}) or str(error)) from None
        except ImportError as error:
            if symbol := _missing(str(error)):
                raise ImportError(f"{request.name}: undefined symbol: {symbol}") from None
        for left in folder.iterdir():
            left.unlink()
    try:
        return stock(folder)
    except RuntimeError as error:
        if "Error building extension" not in str(error):
            raise
        shifts = {name: len(lines) for name, lines in toolchain.IMPLICIT.items()} if request.implicit_headers else {}
        raise _failure(request, in_candidate_lines(f"{error}\n{error.__cause__ or ''}", shifts)) from None


def _light(request: Request, folder: Path, ready: Path | None) -> Any:
    for name, text in request.files.items():
        if name in (CPP_FILE, CUDA_FILE):
            (folder / name).write_text(text, encoding="utf-8")
    return _load(toolchain.build(request, folder, ready), request)


def _failure(request: Request, said: str) -> BuildFailed:
    return BuildFailed(f"Error building extension '{request.name}':\n{compiler_errors(said) or said}")


def _missing(said: str) -> str:
    """The symbol of the candidate's own that is declared and nowhere defined, as it is written in C++."""
    found = _UNDEFINED.search(said)
    if found is None or found.group(1).startswith(("aoti_torch_", "torch_")):
        return ""
    return toolchain.demangled(found.group(1)).replace(f"{toolchain.OWN_NAMESPACE}::", "at::")


def _stock(torchs: Callable[..., Any], call: dict[str, Any], folder: Path) -> Any:
    copies = {name: list(value) if isinstance(value, list) else value for name, value in call.items()}
    return torchs(**(copies | {"build_directory": str(folder)}))


def _load(library: Path, request: Request) -> Any:
    if not request.python:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise ImportError(str(error)) from error
        return str(library)
    # The file's name and not the request's: torch numbers the modules of one name that a process builds.
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _around(flags: str, cuda: bool) -> list[str]:
    """What besides a call decides what is built."""
    return [
        torch.__version__,
        sys.version,
        platform.machine(),
        *(os.environ.get(name, "") for name in ENVIRONMENT),
        *([_processor()] if "native" in flags else []),
        *toolchain.identity(cuda),
    ]


def _hash(parts: list[Any], home: Path) -> str:
    """Of everything that decides; the same wherever the candidate lies."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).replace(str(home), ".").encode()).hexdigest()[:32]


def _processor() -> str:
    """What "native" means here; a cache may be shared between machines."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.processor()


def _local_headers(request: Request) -> dict[str, str]:
    """Files that the sources include by name and that lie beside them or on the given paths, by path."""
    found: dict[str, str] = {}
    waiting = [(text, Path(name).parent) for name, text in request.files.items()]
    while waiting:
        text, beside = waiting.pop()
        for name in _LOCAL_INCLUDE.findall(text):
            places = [path / name for path in (beside, *map(Path, request.include_paths))]
            file = next((place for place in places if place.is_file()), None)
            if file is not None and str(file) not in found:
                found[str(file)] = file.read_text(encoding="utf-8", errors="replace")
                waiting.append((found[str(file)], file.parent))
    return found


def _inline_request(call: dict[str, Any]) -> Request:
    functions = _as_list(call["functions"]) if not isinstance(call["functions"], dict) else call["functions"]
    binding = [] if call["functions"] is None else _binding(functions)
    files = {CPP_FILE: "\n".join([*_as_list(call["cpp_sources"]), *binding])}
    if call["cuda_sources"]:
        files[CUDA_FILE] = "\n".join(_as_list(call["cuda_sources"]))
    return _request(call, files, not call.get("no_implicit_headers"))


def _binding(functions: Any) -> list[str]:
    documented = functions if isinstance(functions, dict) else {name: name for name in functions}
    lines = [f'm.def("{name}", &{name}, {json.dumps(str(doc))});' for name, doc in documented.items()]
    return ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *lines, "}"]


def _file_request(call: dict[str, Any]) -> Request:
    paths = [os.path.abspath(path) for path in _as_list(call["sources"])]
    return _request(call, {path: Path(path).read_text(encoding="utf-8") for path in paths}, False)


def _request(call: dict[str, Any], files: dict[str, str], implicit: bool) -> Request:
    flags = {
        name: tuple(call.get(f"extra_{name}") or ()) for name in ("cflags", "cuda_cflags", "ldflags", "include_paths")
    }
    cuda = call.get("with_cuda")
    if cuda is None:
        cuda = any(name.endswith((".cu", ".cuh")) for name in files)
    python = bool(call.get("is_python_module", True))
    return Request(call["name"], files, **flags, python=python, cuda=bool(cuda), implicit_headers=implicit)


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value or []]
