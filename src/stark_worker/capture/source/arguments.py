"""Watches a run: arguments of functions that are None, True or False in every call settle conditions."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARYING = object()


@contextmanager
def watch_arguments() -> Iterator[dict[tuple[str, int], dict[str, Any]]]:
    """Collect the arguments of all functions that are called meanwhile, by the file and line of the function."""
    seen: dict[tuple[str, int], dict[str, Any]] = {}
    settled: dict[tuple[str, int], dict[str, Any]] = {}

    def note(frame: types.FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        known = seen.setdefault((code.co_filename, code.co_firstlineno), {})
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            value = frame.f_locals.get(name, VARYING)
            value = value if value is None or isinstance(value, bool) else VARYING
            known[name] = value if known.get(name, value) is value else VARYING

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield settled
    finally:
        sys.setprofile(before)
    for function, known in seen.items():
        settled[function] = {name: value for name, value in known.items() if value is not VARYING}
