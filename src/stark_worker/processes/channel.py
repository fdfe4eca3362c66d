"""Messages between processes: small JSON objects, one per packet, some with open files beside them.

A sequenced-packet socket keeps the borders of messages, so nothing a candidate writes can run into the next one.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence
from typing import Any

LIMIT = 64 * 1024
FILES = 16


class ChannelClosed(Exception):
    """The other side is gone."""


class MessageMalformed(Exception):
    """What arrived is not one JSON object of the permitted size."""


class Channel:
    """One end of the conversation."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two connected ends."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(here), cls(there)

    @classmethod
    def of(cls, descriptor: int) -> Channel:
        """The end that an open file is."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def finish(self) -> None:
        """Say nothing more, which the other side notices; it may still answer."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the other side is gone already
            return

    def send(self, *, files: Sequence[int] = (), **message: Any) -> None:
        """Say something to the other side, and open these files for it."""
        try:
            # Never waits: who does not listen is as good as gone.
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(files), socket.MSG_DONTWAIT)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message; ``TimeoutError`` when none comes in time."""
        self._socket.settimeout(timeout_s)
        try:
            return _decode(self._socket.recv(LIMIT + 1))
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive_with_files(self) -> tuple[dict[str, Any], list[int]]:
        """The next message and the files that came with it."""
        self._socket.settimeout(None)
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, LIMIT + 1, FILES)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return _decode(packet), files

    async def next(self) -> dict[str, Any]:
        """The next message, while other things go on."""
        self._socket.setblocking(False)
        try:
            packet = await asyncio.get_running_loop().sock_recv(self._socket, LIMIT + 1)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return _decode(packet)


def _decode(packet: bytes) -> dict[str, Any]:
    if not packet:
        raise ChannelClosed("end of conversation")
    if len(packet) > LIMIT:
        raise MessageMalformed(f"longer than {LIMIT} bytes")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise MessageMalformed(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageMalformed("not an object")
    return message
