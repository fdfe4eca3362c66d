"""The file of what is in flight, beside the store. It is lost with its writer, so it is not part of the record."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from stark.core.steps import Flights
from stark.store.lock import is_held

FILE_NAME = "in-flight.json"
_FORM = TypeAdapter(Flights)


def write_flights(folder: Path, flights: Flights) -> None:
    """Replace the file. A full disk ends no run: views then show nothing in flight."""
    draft = folder / f".{FILE_NAME}"
    with contextlib.suppress(OSError):
        draft.write_bytes(_FORM.dump_json(flights))
        os.replace(draft, folder / FILE_NAME)


def read_flights(folder: Path) -> Flights | None:
    """Return what is in flight, or None if no process writes to the folder."""
    if not is_held(folder):
        return None
    try:
        return _FORM.validate_json((folder / FILE_NAME).read_bytes())
    except (OSError, ValidationError):  # not written yet, or by another version
        return Flights()


def remove_flights(folder: Path) -> None:
    """Remove the file: nothing is in flight after the writer ended."""
    with contextlib.suppress(OSError):
        (folder / FILE_NAME).unlink(missing_ok=True)
