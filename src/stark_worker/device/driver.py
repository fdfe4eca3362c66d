"""Calls the GPU driver's library in torch's context."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from stark_worker.protocol.errors import MachineryFault


def driver(function: str, *arguments: Any) -> None:
    """Call a function of the driver library; raise ``MachineryFault`` on an error."""
    bind(function)(*arguments)


def bind(function: str) -> Callable[..., None]:
    """Return a function of the driver library that raises ``MachineryFault`` on an error."""
    library = ctypes.CDLL("libcuda.so.1")
    foreign = library[function]

    def call(*arguments: Any) -> None:
        if code := foreign(*arguments):
            text = ctypes.c_char_p()
            library.cuGetErrorString(code, ctypes.byref(text))
            raise MachineryFault(f"{function} failed: {(text.value or b'unknown error').decode()} ({code})")

    return call
