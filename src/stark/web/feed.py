"""News for the browsers that follow a store: one watcher for all clients, and never a queue.

A client learns only that something has changed, and then asks for what it lacks. A slow client misses news, and the
next one tells it the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from stark.core.errors import StarkError
from stark.web.catalog import Catalog

INTERVAL_S = 0.4
MAX_SHARE = 0.05  # of one core, for looking at the files
PING_S = 15.0  # finds clients that are gone


@dataclass
class _Topic:
    """A store that is followed. ``changed`` is replaced with each change."""

    version: int = 0
    clients: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    watcher: asyncio.Task[None] | None = None


class Feed:
    """Follows stores for as long as a client does."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._topics: dict[str | None, _Topic] = {}

    async def follow(self, name: str | None) -> AsyncIterator[bytes]:
        """Yield an event now and after each change of a store; None stands for all stores."""
        topic = self._topics.setdefault(name, _Topic())
        topic.clients += 1
        if topic.watcher is None:
            topic.watcher = asyncio.create_task(self._watch(name, topic))
        try:
            seen = -1
            while True:
                changed = topic.changed
                if topic.version != seen:
                    seen = topic.version
                    yield f"event: changed\ndata: {seen}\n\n".encode()
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), PING_S)
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            topic.clients -= 1
            if not topic.clients and topic.watcher:
                topic.watcher.cancel()
                self._topics.pop(name, None)

    async def _watch(self, name: str | None, topic: _Topic) -> None:
        last: object = None
        while True:
            began = time.perf_counter()
            try:
                found: object = await asyncio.to_thread(self._catalog.signature, name)
            except (StarkError, OSError):  # the folder is gone; it may come back
                found = ()
            if found != last:
                last = found
                topic.version += 1
                topic.changed.set()
                topic.changed = asyncio.Event()
            await asyncio.sleep(max(INTERVAL_S, (time.perf_counter() - began) / MAX_SHARE))
