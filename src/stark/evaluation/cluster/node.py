"""Runs on the nodes of a cluster: the ordinary worker, in a Ray actor. Only this part of the host travels there.

Ray copies these classes by value, and nodes have no ``stark``. So this module imports the standard library only. The
worker arrives as the archive that the actor unpacks, and its modules are imported after that.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Any

Answer = dict[str, str]  # "report", or "fault" and "message"
Entries = dict[str, dict[str, bytes]]  # files of the compile cache by entry

CLOCK_SLACK_S = 1.0  # file systems have coarser clocks
EXAMINE_S = 300.0
MAX_MESSAGE_CHARACTERS = 1_000

# A process with threads, as every actor is, cannot be confined, so another one tries the sandbox. Its build kind holds
# all that decides a build apart from the candidate. The architecture is the same for all, because builders see no GPU.
_EXAMINE = """
import hashlib, json, os, platform, sys
sys.path.insert(0, sys.argv[1])
os.environ.update(CUDA_VISIBLE_DEVICES="", TORCH_CUDA_ARCH_LIST="9.0")
from stark_worker.doctor.escapes import probe_confinement
from stark_worker.sandbox.confine import confine
def try_confinement(folder, memory_bytes, processes):
    return confine(folder, memory_bytes=memory_bytes, processes=processes, gpu=False)
confinement = probe_confinement(try_confinement)[0]
import torch
from stark_worker.compiler import toolchain
parts = [torch.__version__, sys.version, platform.machine(), *toolchain.fingerprint_tools(sys.argv[2] == "cuda")]
build_kind = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
print(json.dumps({"level": confinement.level, "isolation": str(confinement), "build_kind": build_kind}))
"""


class NodeWorker:
    """The worker's package on this node, in a folder that only this user can write to."""

    def __init__(self, archive: bytes, target: str, allow_weak_sandbox: bool) -> None:
        self._target, self._allow_weak_sandbox = target, allow_weak_sandbox
        self._folder = tempfile.TemporaryDirectory(prefix="stark-node-")
        home = Path(self._folder.name)
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            packed.extractall(home)
        for path in (home, *home.rglob("*")):
            path.chmod(0o755)  # a candidate may run as any user
        sys.path.insert(0, str(home))

    async def place(self) -> dict[str, Any]:
        """Return this node's name, the level of its sandbox, and the kind of its builds."""
        command = [sys.executable, "-I", "-B", "-W", "ignore", "-c", _EXAMINE, self._folder.name, self._target]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=EXAMINE_S, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(lines[-1] if lines else "the examination of the node ended without a reason")
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return {"host": socket.gethostname(), "process": os.getpid(), "package": self._folder.name, **found}


class LaneNode(NodeWorker):
    """Measures on the device that Ray gave this actor. Ray's variable CUDA_VISIBLE_DEVICES names the GPU."""

    async def start(self) -> dict[str, Any]:
        """Start the worker and return the facts of its device and place."""
        from stark_worker.compiler.cache import default_cache_dir
        from stark_worker.protocol.codec import to_json
        from stark_worker.protocol.request import Target
        from stark_worker.scheduler.worker import Worker

        place = await self.place()
        self._worker = await Worker(Target(self._target), default_cache_dir(), self._allow_weak_sandbox).__aenter__()
        return {**place, "device": to_json(await self._worker.device())}

    async def judge(self, request: str, entries: Entries | None = None) -> Answer:
        """Judge a request given as JSON. ``entries`` are builds of it, made on a node of the same build kind."""
        from stark_worker.protocol.codec import ProtocolError, from_json, to_json
        from stark_worker.protocol.errors import MachineryFault, TaskFault
        from stark_worker.protocol.request import EvalRequest

        try:
            await asyncio.to_thread(_add_to_cache, entries or {})
            return {"report": to_json(await self._worker.judge(from_json(EvalRequest, request)))}
        except (TaskFault, MachineryFault) as fault:
            return {"fault": fault.kind, "message": str(fault)[:MAX_MESSAGE_CHARACTERS]}
        except (ProtocolError, OSError) as fault:
            return {"fault": MachineryFault.kind, "message": str(fault)[:MAX_MESSAGE_CHARACTERS]}


class BuilderNode(NodeWorker):
    """Builds for the lanes. It needs no GPU."""

    async def start(self, architecture: str) -> dict[str, Any]:
        """Start the builder for GPUs of this architecture, such as sm_90; return the facts of its place."""
        from stark_worker.compiler import cache
        from stark_worker.processes.handles import ForkServer
        from stark_worker.processes.process_tree import hide_memory
        from stark_worker.sandbox.levels import ALLOW_WEAK
        from stark_worker.scheduler.builds import Builds

        place = await self.place()
        hide_memory()
        self._cache = cache.default_cache_dir()
        cache.ensure(self._cache)
        folder = Path(self._folder.name, "builds")
        folder.mkdir(mode=0o755)
        number = architecture.removeprefix("sm_")
        more = {"TORCH_CUDA_ARCH_LIST": f"{number[:-1]}.{number[-1]}"} if number.isdigit() else {}
        self._builders = ForkServer(folder, {ALLOW_WEAK: "yes"} if self._allow_weak_sandbox else {})
        self._builds = Builds(self._builders, folder, self._cache, more)
        return place

    async def build(self, request: str) -> tuple[str | None, Entries]:
        """Build a request given as JSON.

        Return the report on a build that failed, if one did, and all entries of the cache that were used meanwhile:
        those of this build, and some of others.
        """
        from stark_worker.protocol.codec import from_json, to_json
        from stark_worker.protocol.errors import Outcome
        from stark_worker.protocol.request import EvalRequest

        began = time.time() - CLOCK_SLACK_S
        failed = await self._builds.build(from_json(EvalRequest, request))
        if failed is not None:  # a deadline may be missed because this node is slow
            return (to_json(failed) if failed.outcome is Outcome.COMPILE_ERROR else None), {}
        return None, await asyncio.to_thread(_read_cache, self._cache, began)


def _read_cache(cache: Path, since: float) -> Entries:
    """Return the libraries used since that time."""
    from stark_worker.compiler.cache import LIBRARY

    recent = [entry for entry in cache.glob("[0-9a-f]*") if entry.stat().st_mtime >= since and any(entry.glob(LIBRARY))]
    return {entry.name: {file.name: file.read_bytes() for file in entry.iterdir()} for entry in recent}


def _add_to_cache(entries: Entries) -> None:
    """Add entries that are missing."""
    from stark_worker.compiler import cache

    shared = cache.default_cache_dir()
    for key, files in entries.items():
        if cache.find(shared, key):
            continue
        with tempfile.TemporaryDirectory(prefix="stark-entry-") as folder:
            for name, content in files.items():
                Path(folder, name).write_bytes(content)
            cache.publish(Path(folder), shared, key)
