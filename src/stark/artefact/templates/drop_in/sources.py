"""The two sources, each run as a module of its own."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import linecache
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import cpp_extension

from .facts import KERNEL, ORIGINAL

LOADERS = ("load", "load_inline")
Tensors = Sequence[torch.Tensor]
Weights = Mapping[str, torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]


class NotJudged(RuntimeError):
    """A call lies outside of what was judged, and the model is strict."""


class _Unfit(Exception):
    """The kernel cannot be used. The text says why."""


def _digest(*parts: object) -> str:
    """Return a hash of values; of tensors all bytes count."""
    return hashlib.sha256(repr([_plain(part) for part in parts]).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        data = value.detach().cpu().contiguous()
        return str(data.dtype), tuple(data.shape), bytes(data.flatten().view(torch.uint8).tolist())
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def _run_source(kind: str, source: str) -> types.ModuleType:
    """Run a source as a module of its own, which pickle and inspect can find."""
    name = f"stark_{kind}_{_digest(source)}"
    if name not in sys.modules:
        file, module = f"<{name}>", types.ModuleType(name)
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        module.__file__, sys.modules[name] = file, module
        try:
            exec(compile(source, file, "exec"), module.__dict__)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


_lock: threading.RLock = cpp_extension.__dict__.setdefault("_stark_lock", threading.RLock())  # one for all drop-ins


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """Name extensions that are built meanwhile by a hash of their source: two kernels never share a library."""

    def renamed(load: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(load)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            name = f"stark_{_digest(args, kwargs, torch.__version__, KERNEL)}"
            return load(name, *args[1:], **kwargs) if args else load(**kwargs | {"name": name})

        return replacement

    with _lock:
        before = {name: getattr(cpp_extension, name) for name in LOADERS}
        try:
            for name, load in before.items():
                setattr(cpp_extension, name, renamed(load))
            yield
        finally:
            for name, load in before.items():
                setattr(cpp_extension, name, load)


_original = _run_source("original", ORIGINAL)
