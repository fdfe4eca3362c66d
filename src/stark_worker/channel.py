"""Messages between the referee and the candidate's process: small JSON objects, one per packet.

A sequenced-packet socket keeps the borders of messages, so nothing a candidate writes can run into the next one.
"""

from __future__ import annotations

import json
import socket
from typing import Any

LIMIT = 64 * 1024


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

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, **message: Any) -> None:
        """Say something to the other side."""
        try:
            self._socket.send(json.dumps(message).encode())
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """The next message; ``TimeoutError`` when none comes in time."""
        self._socket.settimeout(timeout_s)
        try:
            packet = self._socket.recv(LIMIT + 1)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not packet:
            raise ChannelClosed("end of conversation")
        return _decode(packet)


def _decode(packet: bytes) -> dict[str, Any]:
    if len(packet) > LIMIT:
        raise MessageMalformed(f"longer than {LIMIT} bytes")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise MessageMalformed(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageMalformed("not an object")
    return message
