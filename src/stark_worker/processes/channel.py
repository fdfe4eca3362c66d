"""Messages between processes: small JSON objects, one per packet, some with open files.

A sequenced-packet socket keeps message boundaries, so nothing a candidate writes can run into the next message.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

MAX_MESSAGE_BYTES = 64 * 1024
MAX_FILES = 32


class ChannelClosed(Exception):
    """The other process is gone."""


class MessageMalformed(Exception):
    """A packet is not one JSON object of the permitted size."""


class Channel:
    """One end of a connection between two processes."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Return two connected ends."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(here), cls(there)

    @classmethod
    def from_descriptor(cls, descriptor: int) -> Channel:
        """Return the end that an open file descriptor stands for."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def stop_sending(self) -> None:
        """Close this direction only: the other process sees the end, and may still answer."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:  # the other process is gone already
            return

    def send(self, *, files: Sequence[int] = (), **message: Any) -> None:
        """Send a message, and pass these open files with it."""
        try:
            # Never waits: a process that does not read counts as gone.
            socket.send_fds(self._socket, [json.dumps(message).encode()], list(files), socket.MSG_DONTWAIT)
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message. Raise TimeoutError if none comes in time."""
        self._socket.settimeout(timeout_s)
        try:
            return decode_message(self._socket.recv(MAX_MESSAGE_BYTES + 1))
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def spin(self, at_most_s: float) -> None:
        """Spin until a message is there, or for so long: waking up takes as long as a short kernel."""
        until = time.perf_counter() + at_most_s
        while time.perf_counter() < until and not select.select([self._socket], [], [], 0)[0]:
            pass

    def receive_with_files(self) -> tuple[dict[str, Any], list[int]]:
        """Return the next message and the files that came with it."""
        self._socket.settimeout(None)
        try:
            packet, files, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES + 1, MAX_FILES)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return decode_message(packet), files

    async def next_message(self) -> dict[str, Any]:
        """Return the next message, without blocking the event loop."""
        self._socket.setblocking(False)
        try:
            packet = await asyncio.get_running_loop().sock_recv(self._socket, MAX_MESSAGE_BYTES + 1)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        return decode_message(packet)


def decode_message(packet: bytes) -> dict[str, Any]:
    """Return the message in a packet. An empty packet means that the other process closed its end."""
    if not packet:
        raise ChannelClosed("end of conversation")
    if len(packet) > MAX_MESSAGE_BYTES:
        raise MessageMalformed(f"longer than {MAX_MESSAGE_BYTES} bytes")
    try:
        message = json.loads(packet)
    except (ValueError, RecursionError) as error:
        raise MessageMalformed(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise MessageMalformed("not an object")
    return message
