"""Extensions of a candidate, built once: ``load_inline`` and ``load`` of torch with a cache and a faster way behind.

An extension lives in a folder named by a hash of everything that decides it. It is made in a folder beside and renamed
into place, so nobody ever sees half of one, and of several that make the same the first wins. There are no locks.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import cpp_extension

from stark_worker import toolchain
from stark_worker.logs import compiler_errors, in_candidate_lines
from stark_worker.toolchain import CPP_FILE, CUDA_FILE, CompileFailed, Request

Mode = Literal["fast", "stock"]
Build = Callable[[Path], Any]

CACHE_BYTES = 4 * 2**30
KEPT_S = 3600.0  # an entry used within the hour, or a build begun within it, is left alone
ENVIRONMENT = ("CC", "CXX", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")

_UNDER_WAY, _DEAD = ".build-", ".dead-"
_LOCAL_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
_UNDEFINED = re.compile(r"undefined symbol: (\w+)")


def install(cache: Path, mode: Mode = "fast") -> None:
    """Put ours in the place of torch's, in this process; called before the candidate's code is imported."""
    for name, read in (("load_inline", _inline_request), ("load", _file_request)):
        torchs = inspect.unwrap(getattr(cpp_extension, name))
        setattr(cpp_extension, name, _replacement(torchs, read, cache, mode))


def _replacement(
    torchs: Callable[..., Any], read: Callable[[dict[str, Any]], Request], cache: Path, mode: Mode
) -> Callable[..., Any]:
    signature = inspect.signature(torchs)

    @functools.wraps(torchs)
    def load(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        if call.get("with_sycl") or call.get("sycl_sources") or call.get("is_standalone"):
            return torchs(*args, **kwargs)  # not kinds of extension that candidates are asked for
        request = read(call)
        build = functools.partial(_build, request, functools.partial(_stock, torchs, call), mode)
        return _from_cache(request, _key(request, call, mode), cache, build)

    return load


def _from_cache(request: Request, key: str, cache: Path, build: Build) -> Any:
    """The extension, from its folder or new; in a private folder where the cache cannot be written to."""
    folder = cache / key
    if library := _library(folder):
        with contextlib.suppress(OSError):  # another user's entry: used all the same, only not marked as used
            os.utime(folder)
        return _load(library, request)
    with _place_to_build(cache) as place:
        result = build(place)
        for waste in (*place.glob("*.o"), *place.glob("*.log"), *place.glob(".ninja*")):
            waste.unlink()
        place.chmod(0o755)  # a cache may be shared between users
        library = _library(_publish(place, folder))
    _prune(cache)
    if not request.python:
        return str(library)
    result.__file__ = result.__spec__.origin = str(library)  # it was loaded before its folder got its name
    return result


@contextlib.contextmanager
def _place_to_build(cache: Path) -> Iterator[Path]:
    try:
        cache.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=_UNDER_WAY, dir=cache)
    except OSError:
        place = tempfile.mkdtemp(prefix="stark-build-")
    try:
        yield Path(place)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def _publish(place: Path, folder: Path) -> Path:
    """Make a finished build visible; where somebody was faster, theirs is as good. Returns where it lies."""
    if place.parent != folder.parent:
        return place
    try:
        place.rename(folder)
    except OSError:
        if _library(folder) is None:
            return place
        shutil.rmtree(place, ignore_errors=True)
    return folder


def _prune(cache: Path) -> None:
    """Drop builds nobody will finish, and the entries that were not used for longest while there is too much."""
    with contextlib.suppress(OSError):  # somebody else prunes too, or the cache is not ours to prune
        entries = sorted((entry.stat().st_mtime, entry) for entry in cache.iterdir() if entry.is_dir())
        sizes = {entry: sum(file.stat().st_size for file in entry.iterdir()) for _, entry in entries}
        total = sum(sizes.values())
        for used, entry in entries:
            unfinished = entry.name.startswith((_UNDER_WAY, _DEAD))
            if time.time() - used > KEPT_S and (unfinished or total > CACHE_BYTES):
                total -= sizes[entry]
                dead = cache / f"{_DEAD}{os.getpid()}-{entry.name}"
                entry.rename(dead)  # first out of sight, so that nobody finds an entry with files missing
                shutil.rmtree(dead, ignore_errors=True)


def _build(request: Request, stock: Build, mode: Mode, folder: Path) -> Any:
    """Try the light headers, then torch's own unless the candidate itself is plainly at fault."""
    if mode == "fast" and toolchain.fits(request):
        try:
            return _light(request, folder)
        except CompileFailed as error:
            if not toolchain.headers_to_blame(compiler_errors(str(error)), request):
                raise _failure(request, in_candidate_lines(str(error), {})) from None
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


def _light(request: Request, folder: Path) -> Any:
    for name, text in request.files.items():
        if name in (CPP_FILE, CUDA_FILE):
            (folder / name).write_text(text, encoding="utf-8")
    return _load(toolchain.build(request, folder), request)


def _failure(request: Request, said: str) -> RuntimeError:
    return RuntimeError(f"Error building extension '{request.name}':\n{compiler_errors(said) or said}")


def _missing(said: str) -> str:
    """The symbol of the candidate's own that is declared and nowhere defined, as it is written in C++."""
    found = _UNDEFINED.search(said)
    if found is None or found.group(1).startswith(("aoti_torch_", "torch_")):
        return ""
    tool = shutil.which("c++filt")
    symbol = subprocess.run([tool, found.group(1)], capture_output=True, text=True).stdout if tool else found.group(1)
    return symbol.strip().replace(f"{toolchain.OWN_NAMESPACE}::", "at::")


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


def _library(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("*.so"))), None)


def _key(request: Request, call: dict[str, Any], mode: Mode) -> str:
    said = {name: repr(value) for name, value in call.items() if name not in ("verbose", "build_directory")}
    around = [
        torch.__version__,
        sys.version,
        platform.machine(),
        mode,
        *(os.environ.get(name, "") for name in ENVIRONMENT),
    ]
    if "native" in said.get("extra_cflags", "") + said.get("extra_cuda_cflags", ""):
        around.append(_processor())
    parts = [request.files, _local_headers(request), said, around, toolchain.identity(request.cuda)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


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
