"""Baselines that were measured before: by task, rules, device and versions, so that each is measured once.

A baseline that could not run is not kept: what was missing may be there next time. Nor is one that was timed on a busy
machine: it would stand beside every later run.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stark_worker.compiler.cache import default_cache
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.folder import write_whole
from stark_worker.protocol.report import BUSY, DeviceFacts, EvalReport
from stark_worker.protocol.request import EvalRequest

# Counts up when the same request comes to be measured otherwise; 2: v0.1 without a flush; 3: others are told of.
MEASURED = 3


class KeptBaselines:
    """A folder with a report for each baseline."""

    def __init__(self, device: DeviceFacts, folder: Path | None = None) -> None:
        self._device = to_json(replace(device, bandwidth_gb_s=None))  # measured anew each time, and never the same
        self._folder = folder or default_cache().parent / "baselines"

    def find(self, request: EvalRequest) -> EvalReport | None:
        try:
            return from_json(EvalReport, self._path(request).read_bytes())
        except (OSError, ProtocolError):  # none there, or one by another version
            return None

    def keep(self, request: EvalRequest, report: EvalReport) -> None:
        if report.timing is None or BUSY in report.checks:
            return
        with suppress(OSError):  # what cannot be kept is measured again
            self._folder.mkdir(parents=True, exist_ok=True)
            write_whole(self._path(request), to_json(report))

    def _path(self, request: EvalRequest) -> Path:
        key = hashlib.sha256(f"{to_json(request)}{self._device}{MEASURED}".encode()).hexdigest()
        return self._folder / f"{key[:32]}.json"
