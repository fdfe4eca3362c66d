"""Confines the paths that a client names to its own folders, the roots."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from stark.core.errors import UsageError

RUNS = "runs"  # the folder of runs in a root
MAX_SOURCE_BYTES = 2**20
SCHEME = "file:"
LOCAL_HOSTS = ("", "localhost")


@dataclass(frozen=True)
class Roots:
    """The folders that a client may name paths in, as real paths. The first holds new runs."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, uris: Iterable[str], default: Path, within: Path | None = None) -> Roots:
        """Return the roots that a client names, or ``default`` if it names none.

        ``within`` limits them to one folder: a client on the network must not choose any folder of this machine.
        """
        named = [text for uri in uris if (text := _path_of_uri(uri)) is not None]
        if not named:
            return cls((_real(default),))
        folders = [_real(Path(text)) for text in named]
        usable = [folder for folder in folders if within is None or folder.is_relative_to(_real(within))]
        if not usable:
            raise UsageError(
                "None of the client's roots lies in the folder that this server serves.",
                "Name a root in that folder, or no root.",
            )
        return cls(tuple(dict.fromkeys(usable)))

    def source_file(self, text: str) -> Path:
        """Return the real path of a readable source file in the roots."""
        path = self.resolve(text)
        if not os.path.isfile(path):  # reading a pipe or a device would wait for ever
            raise UsageError(f"There is no file {text!r} in the roots.", self._hint())
        if path.stat().st_size > MAX_SOURCE_BYTES:
            raise UsageError(f"{text!r} is larger than 1 MB, so it is no source file.", "Name a Python file.")
        return path

    def new_file(self, text: str, suffix: str) -> Path:
        """Return the real path of a file that can be written: it has this suffix and does not exist yet."""
        path = self.resolve(text)
        if path.suffix != suffix:
            raise UsageError(f"{text!r} does not end in {suffix}.", f"Name a new file that ends in {suffix}.")
        if os.path.lexists(path):
            raise UsageError(f"{text!r} exists, and nothing is overwritten.", "Name a new file.")
        if not os.path.isdir(path.parent):
            raise UsageError(f"The folder of {text!r} does not exist.", "Create it first, or name another one.")
        return path

    def runs_folder(self) -> Path:
        """Return the folder for new runs, in the first root."""
        return self.resolve(str(self.folders[0] / RUNS))

    def resolve(self, text: str) -> Path:
        """Return the real path of a path or file URI; raise UsageError if it leads out of the roots."""
        wanted = Path(self._plain(text))
        candidates = [_real(root / wanted) for root in self._bases(wanted)]
        inside = [path for path in candidates if self._holds(path)]
        if not inside:
            raise UsageError(f"{text!r} lies outside of the roots.", self._hint())
        return next((path for path in inside if os.path.exists(path)), inside[0])

    def _plain(self, text: str) -> str:
        path = _path_of_uri(text) if text[: len(SCHEME)].lower() == SCHEME else text
        if not path or "\0" in path:
            raise UsageError(f"{text!r} is no path of a file.", self._hint())
        return path

    def _bases(self, wanted: Path) -> Sequence[Path]:
        return (Path("/"),) if wanted.is_absolute() else self.folders

    def _holds(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.folders)

    def _hint(self) -> str:
        return f"Name a path in {', '.join(map(str, self.folders))}."


def _real(path: Path) -> Path:
    """Follow every link, also one whose target does not exist."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:  # a NUL byte
        raise UsageError("A path holds a character that no path can have.", "Name another path.") from error


def _path_of_uri(uri: str) -> str | None:
    """Return the path of a file URI, decoded once; None for any other URI."""
    try:
        parts = urlsplit(uri)
        path = os.fsdecode(unquote_to_bytes(parts.path))
    except ValueError:
        return None
    is_path = parts.scheme.lower() == "file" and parts.netloc.lower() in LOCAL_HOSTS and path.startswith("/")
    return path if is_path and not parts.query and not parts.fragment and "\0" not in path else None
