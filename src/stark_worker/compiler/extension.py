"""A candidate's extensions: replaces torch's ``load_inline`` and ``load`` by a faster build.

A call becomes an ``Extension``, which can be built and loaded. It has a cache key if its build reads no file that a
candidate could have written. The mode "fast" tries the light headers first, and torch's own if the light ones may be at
fault. The mode "stock" builds as torch does.
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
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import cpp_extension

from stark_worker.compiler import cache, toolchain
from stark_worker.compiler.toolchain import CPP_FILE, CUDA_FILE, BuildRequest, CompileFailed
from stark_worker.processes.environment import NVCC_VARIABLES
from stark_worker.processes.workdir import PCH_HEADER
from stark_worker.protocol.logs import compiler_errors, map_to_candidate_lines

Mode = Literal["fast", "stock"]
Build = Callable[[Path], Any]

BUILD_VARIABLES = ("CC", "CXX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", *NVCC_VARIABLES)

_UNDEFINED = re.compile(r"undefined symbol: (\w+)")
_TORCH_LOADERS = {name: inspect.unwrap(getattr(cpp_extension, name)) for name in ("load_inline", "load")}


class BuildFailed(RuntimeError):
    """A compiler refused. It is a RuntimeError, as torch raises, because candidates may expect one."""


@dataclass(frozen=True)
class Extension:
    """One call of ``load_inline`` or ``load``, with all arguments by name."""

    function: str
    call: dict[str, Any]
    mode: Mode

    @functools.cached_property
    def request(self) -> BuildRequest:
        return _inline_request(self.call) if self.function == "load_inline" else _file_request(self.call)

    @property
    def is_shareable(self) -> bool:
        """False if it may read the candidate's own files: two candidates with the same text may differ in them."""
        return self.function == "load_inline" and toolchain.reads_only_system_files(self.request)

    @property
    def key(self) -> str | None:
        """A hash of everything that decides the build; None if it cannot be shared."""
        if not self.is_shareable:
            return None
        arguments = {
            name: repr(value) for name, value in self.call.items() if name not in ("verbose", "build_directory")
        }
        flags = arguments.get("extra_cflags", "") + arguments.get("extra_cuda_cflags", "")
        surroundings = _surroundings(flags, self.request.cuda)
        return _hash([self.request.files, arguments, self.mode, surroundings])

    @property
    def headers_key(self) -> str | None:
        """A hash of the precompiled headers it can use; None if it can use none."""
        options = toolchain.pch_options(self.request) if self.mode == "fast" else None
        return None if options is None else _hash([options, _surroundings(" ".join(options), False)])

    def precompile_headers(self, folder: Path) -> None:
        """Precompile its headers in this folder."""
        toolchain.precompile_headers(self.request, folder)

    def build(self, folder: Path, pch: Path | None = None) -> Any:
        """Build it in this folder, and load it from there to prove that this works."""
        stock = functools.partial(_build_stock, _TORCH_LOADERS[self.function], self.call)
        return _build(self.request, stock, self.mode, folder, pch)

    def load(self, library: Path) -> Any:
        """Return what torch would return: the module, or the library's path."""
        return _load(library, self.request)


def install(make: Callable[[Extension], Any], mode: Mode = "fast") -> None:
    """Replace torch's functions in this process. Called before the candidate's code is imported."""
    for name, original in _TORCH_LOADERS.items():
        setattr(cpp_extension, name, _replacement(name, original, make, mode))


def _replacement(name: str, original: Callable[..., Any], make: Callable[[Extension], Any], mode: Mode) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        if call.get("with_sycl") or call.get("sycl_sources") or call.get("is_standalone"):
            return original(*args, **kwargs)  # kinds of extension that no target asks for
        return make(Extension(name, dict(call), mode))

    return load


def cached_builder(shared: Path, private: Path, used: list[Path] | None = None) -> Callable[[Extension], Any]:
    """Return a builder for an untrusted process: it reads the shared cache and writes only to the private one.

    It adds the folders of the extensions it made to ``used``.
    """

    def make(extension: Extension) -> Any:
        key = extension.key
        library = key and (cache.find(shared, key) or cache.find(private, key))
        folder = library.parent if library else private / (key or uuid.uuid4().hex)
        if used is not None:
            used.append(folder)
        if library:
            return extension.load(library)
        folder.mkdir(parents=True)
        headers = extension.headers_key
        try:
            return extension.build(folder, cache.find(shared, headers, PCH_HEADER) if headers else None)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    return make


def _build(request: BuildRequest, stock: Build, mode: Mode, folder: Path, pch: Path | None) -> Any:
    """Try the light headers, and then torch's own unless the candidate itself is clearly at fault."""
    if mode == "fast" and toolchain.can_use_light_headers(request):
        try:
            return _build_light(request, folder, pch)
        except CompileFailed as error:
            if pch and toolchain.is_pch_failure(str(error)):
                return _build(request, stock, mode, folder, None)
            if not toolchain.may_need_full_headers(compiler_errors(str(error)), request):
                raise _failure(request, map_to_candidate_lines(str(error), {}) or str(error)) from None
        except ImportError as error:
            if symbol := _undefined_symbol(str(error)):
                raise ImportError(f"{request.name}: undefined symbol: {symbol}") from None
        for leftover in folder.iterdir():
            leftover.unlink()
    try:
        return stock(folder)
    except RuntimeError as error:
        if "Error building extension" not in str(error):
            raise
        shifts = {name: len(lines) for name, lines in toolchain.IMPLICIT.items()} if request.implicit_headers else {}
        raise _failure(request, map_to_candidate_lines(f"{error}\n{error.__cause__ or ''}", shifts)) from None


def _build_light(request: BuildRequest, folder: Path, pch: Path | None) -> Any:
    for name, text in request.files.items():
        if name in (CPP_FILE, CUDA_FILE):
            (folder / name).write_text(text, encoding="utf-8")
    return _load(toolchain.build(request, folder, pch), request)


def _failure(request: BuildRequest, output: str) -> BuildFailed:
    return BuildFailed(f"Error building extension '{request.name}':\n{compiler_errors(output) or output}")


def _undefined_symbol(error: str) -> str:
    """Return the candidate's symbol that is declared but not defined, as it is written in C++; else an empty text."""
    found = _UNDEFINED.search(error)
    if found is None or found.group(1).startswith(("aoti_torch_", "torch_")):
        return ""
    return toolchain.demangle(found.group(1)).replace(f"{toolchain.OWN_NAMESPACE}::", "at::")


def _build_stock(load: Callable[..., Any], call: dict[str, Any], folder: Path) -> Any:
    copies = {name: list(value) if isinstance(value, list) else value for name, value in call.items()}
    return load(**(copies | {"build_directory": str(folder)}))


def _load(library: Path, request: BuildRequest) -> Any:
    if not request.python:
        try:
            torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
        except OSError as error:
            raise ImportError(str(error)) from error
        return str(library)
    # Use the file's name: torch numbers the modules that a process builds under one name.
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _surroundings(flags: str, cuda: bool) -> list[str]:
    """Return what decides a build apart from the call."""
    return [
        torch.__version__,
        sys.version,
        platform.machine(),
        *(os.environ.get(name, "") for name in BUILD_VARIABLES),
        *([_processor()] if "native" in flags else []),
        *toolchain.fingerprint_tools(cuda),
    ]


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _processor() -> str:
    """Return what "native" means here. Machines may share a cache."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return platform.processor()


def _inline_request(call: dict[str, Any]) -> BuildRequest:
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


def _file_request(call: dict[str, Any]) -> BuildRequest:
    paths = [os.path.abspath(path) for path in _as_list(call["sources"])]
    return _request(call, {path: Path(path).read_text(encoding="utf-8") for path in paths}, False)


def _request(call: dict[str, Any], files: dict[str, str], implicit: bool) -> BuildRequest:
    flags = {
        name: tuple(call.get(f"extra_{name}") or ()) for name in ("cflags", "cuda_cflags", "ldflags", "include_paths")
    }
    cuda = call.get("with_cuda")
    if cuda is None:
        cuda = any(name.endswith((".cu", ".cuh")) for name in files)
    python = bool(call.get("is_python_module", True))
    return BuildRequest(call["name"], files, **flags, python=python, cuda=bool(cuda), implicit_headers=implicit)


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(item) for item in value or []]
