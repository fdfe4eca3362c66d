"""Keeps measured baselines by task, rules, device and versions, so that each is measured once.

Neither a baseline that failed is kept, nor one that was timed on a busy machine.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stark_worker.compiler.cache import default_cache_dir
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.folder import write_atomically
from stark_worker.protocol.report import DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest

# Raise it if the same request is measured in another way. 2: v0.1 without a flush; 3: a busy machine is reported;
# 4: single calls.
MEASUREMENT_VERSION = 4


class BaselineCache:
    """A folder with a report for each baseline."""

    def __init__(self, device: DeviceFacts, folder: Path | None = None) -> None:
        self._device = to_json(replace(device, bandwidth_gb_s=None))  # measured each time, and never the same
        self._folder = folder or default_cache_dir().parent / "baselines"

    def find(self, request: EvalRequest) -> EvalReport | None:
        """Return the kept report, if there is one."""
        try:
            return from_json(EvalReport, self._path(request).read_bytes())
        except (OSError, ProtocolError):  # missing, or written by another version
            return None

    def keep(self, request: EvalRequest, report: EvalReport) -> None:
        """Keep a report of a baseline that ran on an idle machine."""
        if report.timing is None or report.busy_warning:
            return
        with suppress(OSError):  # if it cannot be kept, it is measured again
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(request), to_json(report))

    def _path(self, request: EvalRequest) -> Path:
        key = hashlib.sha256(f"{to_json(request)}{self._device}{MEASUREMENT_VERSION}".encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"
