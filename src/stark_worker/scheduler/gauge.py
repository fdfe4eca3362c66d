"""Measures a device in a process of its own: its facts, and its peaks, which are kept for later workers. No torch."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stark_worker.processes.channel import ChannelClosed
from stark_worker.processes.handles import ForkServer, ProcessHandle
from stark_worker.protocol.bound import Peaks
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import MachineryFault, make_fault
from stark_worker.protocol.folder import write_atomically
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Target

MEASURING_S = 120.0
PEAKS_VERSION = 1  # raise it if peaks are measured in another way

log = logging.getLogger(__name__)


class Gauge:
    """Measures the devices of one worker. The caller holds the device."""

    def __init__(self, server: ForkServer, target: Target, folder: Path, cache: Path) -> None:
        self._server, self._target, self._folder = server, target, folder
        self._kept = cache.parent / "peaks"
        self._peaks: dict[str, Peaks | None] = {}  # by device

    async def facts(self, environment: Mapping[str, str]) -> DeviceFacts:
        """Return the facts of the device that this environment shows, with its bandwidth."""
        answer = await self._ask("device", environment)
        return from_json(DeviceFacts, answer["facts"])

    async def peaks(self, environment: Mapping[str, str]) -> Peaks | None:
        """Return the peaks of that device, measured once; None if they cannot be measured, which is logged."""
        device = str(sorted(environment.items()))
        if device not in self._peaks:
            try:
                self._peaks[device] = await self._find_peaks(environment)
            except MachineryFault as fault:
                log.warning("The speed of light of tasks is not known: %s", fault)
                self._peaks[device] = None
        return self._peaks[device]

    async def _find_peaks(self, environment: Mapping[str, str]) -> Peaks:
        """Return kept peaks or new ones. Those that other processes disturbed are not kept."""
        facts = replace(await self.facts(environment), bandwidth_gb_s=None)  # measured each time, and never the same
        path = self._kept / f"{hashlib.sha256(f'{to_json(facts)}{PEAKS_VERSION}'.encode()).hexdigest()[:32]}.json"
        with contextlib.suppress(OSError, ProtocolError):  # missing, or written by another version
            return from_json(Peaks, path.read_bytes())
        answer = await self._ask("peaks", environment)
        peaks = from_json(Peaks, answer["peaks"])
        if not answer["disturbed"]:
            with contextlib.suppress(OSError):  # if they cannot be kept, they are measured again
                self._kept.mkdir(parents=True, exist_ok=True)
                write_atomically(path, to_json(peaks))
        return peaks

    async def _ask(self, role: str, environment: Mapping[str, str]) -> dict[str, Any]:
        folder = Path(tempfile.mkdtemp(prefix=f"{role}-", dir=self._folder))
        async with ProcessHandle(self._server, role, folder, environment) as handle:
            try:
                async with asyncio.timeout(MEASURING_S):
                    handle.channel.send(target=self._target)
                    answer = await handle.expect("measured", "failed")
            except (ChannelClosed, TimeoutError) as error:
                raise MachineryFault(f"The device could not be measured. {handle.last_output()}") from error
        if answer["did"] == "failed":
            raise make_fault(answer.get("fault"), answer.get("text"))
        return answer
