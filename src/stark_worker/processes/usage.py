"""How much memory a candidate's process takes on the host, as the system says and not the process. No torch."""

from __future__ import annotations

import re
from pathlib import Path

_RESET_PEAK = "5"


class Footprint:
    """What a process takes at most from here on, of memory that is its own alone: neither files nor the arena.

    Counted in pages that were touched, so it is known to a few megabytes. None where the system does not tell.
    """

    def __init__(self, process: int) -> None:
        self._entry = Path("/proc", str(process))
        try:
            (self._entry / "clear_refs").write_text(_RESET_PEAK)
            self._before: int | None = self._sizes()["RssAnon"]
        except (OSError, KeyError):
            self._before = None

    def more_bytes(self) -> int | None:
        """The peak beyond what there was in the beginning."""
        if self._before is None:
            return None
        try:
            now = self._sizes()
            return now["VmHWM"] - now["RssFile"] - now["RssShmem"] - self._before
        except (OSError, KeyError):  # it has ended
            return None

    def _sizes(self) -> dict[str, int]:
        found = re.findall(r"^(\w+):\s*(\d+) kB$", (self._entry / "status").read_text(), re.MULTILINE)
        return {name: int(size) * 1024 for name, size in found}
