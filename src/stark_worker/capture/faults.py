"""The fault of a capture: one sentence, with the line at fault where there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class CaptureFault(Exception):
    """A module cannot be captured. The text is a sentence for its user."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(f"{place}: {text}" if place else text)


def run_user_code(sentence: str, step: Callable[[], Result]) -> Result:
    """Run a step of the user's own code; any error becomes a fault with this sentence."""
    try:
        return step()
    except CaptureFault:
        raise
    except Exception as error:
        raise CaptureFault(f"{sentence}: {type(error).__name__}: {error}") from error
