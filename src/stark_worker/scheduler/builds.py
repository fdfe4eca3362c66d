"""Builds candidates outside the lanes, several at a time. No torch.

This is the trusted side: it starts the processes (``candidate.build_process``) and alone writes to the shared cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stark_worker.compiler import cache
from stark_worker.processes.channel import ChannelClosed
from stark_worker.processes.environment import usable_cores
from stark_worker.processes.handles import ForkServer, ProcessHandle
from stark_worker.processes.workdir import LIBRARY_FOLDER, PCH_FILE, PCH_HEADER, SOURCE_FILE
from stark_worker.protocol.codec import ProtocolError, from_data
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Isolation
from stark_worker.protocol.logs import cut, describe_timeout
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

REQUESTS_BEFORE_PRECOMPILING = 2
_KEY = re.compile(r"[0-9a-f]{32}")


def needs_building(source: str) -> bool:
    """True if a source may build extensions. One that hides this is built when it is loaded."""
    return "cpp_extension" in source or "load_inline" in source


class Builds:
    """Reads candidates and compiles their extensions."""

    def __init__(self, fork_server: ForkServer, folder: Path, shared: Path, more: Mapping[str, str]) -> None:
        self._fork_server, self._folder, self._shared = fork_server, folder, shared
        self._more = {**more, "CUDA_VISIBLE_DEVICES": ""}  # a build must not disturb the timing
        self._free_cores = asyncio.Semaphore(usable_cores())
        self._header_requests: Counter[str] = Counter()  # by the headers' key

    async def build(self, request: EvalRequest) -> EvalReport | None:
        """Fill the cache with the candidate's extensions; return a report if that fails."""
        if not needs_building(request.candidate_source):
            return None
        async with self._free_cores:
            return await self._run_reader(request)

    async def _run_reader(self, request: EvalRequest) -> EvalReport | None:
        """Let a confined process read the source, and compile its extensions. None leaves other faults to the lane."""
        folder = Path(tempfile.mkdtemp(prefix="reader-", dir=self._folder))
        folder.chmod(0o755)  # compilers may be another user and read it
        (folder / SOURCE_FILE).write_text(request.candidate_source, encoding="utf-8")
        isolation: Isolation | None = None
        try:
            async with (
                asyncio.timeout(request.limits.build_s),
                ProcessHandle(self._fork_server, "reader", folder, self._more) as reader,
            ):
                reader.channel.send(mode=request.build, cache=str(self._shared))
                isolation = from_data(Isolation, (await reader.expect("locked")).get("isolation"))
                while (message := await reader.expect("asked", "failed", "unclear", "read"))["did"] == "asked":
                    reader.channel.send(**await self._compile(folder, request.build))
        except TimeoutError:
            return EvalReport(
                Outcome.TIMEOUT, log=describe_timeout("loaded", request.limits), isolation=isolation, built=False
            )
        except (ChannelClosed, ProtocolError):
            return None  # the same happens when the candidate is loaded, and is reported there
        if message["did"] != "failed":
            return None
        return EvalReport(Outcome.COMPILE_ERROR, log=cut(str(message.get("log"))), isolation=isolation, built=False)

    async def _compile(self, home: Path, mode: str) -> dict[str, Any]:
        """Compile the extension that the reader wrote down; return the library or the error."""
        folder = cache.new_build_dir(self._shared)
        async with ProcessHandle(self._fork_server, "compiler", folder, self._more) as compiler:
            try:
                key, headers = await self._request_keys(compiler, home, mode)
                if library := cache.find(self._shared, key):
                    return {"library": str(library)}
                ready = await self._find_or_make_headers(headers, home, mode) if headers else None
                compiler.channel.send(do="build", ready=ready and str(ready))
                answer = await compiler.expect("built", "failed")
            except ChannelClosed:
                return {"failed": "The compiler ended without an answer, as happens when memory runs out."}
            if answer["did"] == "failed":
                await compiler.end()
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)  # it may fill the disk
                cache.check_disk_space(self._shared)
                return {"failed": str(answer.get("log"))}
            await compiler.end()  # before the library is used
            library = await asyncio.to_thread(cache.publish, folder / LIBRARY_FOLDER, self._shared, key)
            return {"library": str(library)} if library else {"failed": "The compiler left no library."}

    async def _request_keys(self, compiler: ProcessHandle, home: Path, mode: str) -> tuple[str, str | None]:
        """Return the key of an extension, and that of its headers if these can be precompiled."""
        compiler.channel.send(home=str(home), mode=mode, cache=str(self._shared))
        named = await compiler.expect("named")
        key, headers = (named.get(name) for name in ("key", "headers"))
        if not all(isinstance(each, str) and _KEY.fullmatch(each) for each in (key, headers or key)):
            raise ChannelClosed("not a key")
        return str(key), headers and str(headers)

    async def _find_or_make_headers(self, headers: str, home: Path, mode: str) -> Path | None:
        """Return the precompiled headers of that key, if any.

        They are made at the second request: making them takes as long as reading them twice.
        """
        self._header_requests[headers] += 1
        ready = cache.find(self._shared, headers, PCH_HEADER)
        if ready or self._header_requests[headers] != REQUESTS_BEFORE_PRECOMPILING:
            return ready
        folder = cache.new_build_dir(self._shared)
        async with ProcessHandle(self._fork_server, "compiler", folder, self._more) as compiler:
            try:
                _, named = await self._request_keys(compiler, home, mode)
                compiler.channel.send(do="headers")
                await compiler.expect("built")
            except ChannelClosed:
                return None
            await compiler.end()
            if named == headers:  # the request was not rewritten in the meantime
                with contextlib.suppress(OSError):  # on a full disk the build goes on without
                    made = (folder / LIBRARY_FOLDER, self._shared, headers, PCH_FILE, PCH_HEADER)
                    await asyncio.to_thread(cache.publish, *made)
            return cache.find(self._shared, headers, PCH_HEADER)
