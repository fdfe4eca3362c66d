"""Finds a cluster's address and refuses one where none answers. Ray itself would try for minutes."""

from __future__ import annotations

import os
import socket

from ray._private.services import canonicalize_bootstrap_address

ANSWER_S = 5.0
# The first bytes of a client and of a server in HTTP/2, which Ray speaks: a fixed text, and the header of a frame.
OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
HEADER_BYTES, TYPE_AT, SETTINGS = 9, 3, 4


def find_cluster(address: str) -> str:
    """Return the host and port of a cluster that answers. Raise ``OSError`` or ``ValueError`` if none does."""
    try:
        found = canonicalize_bootstrap_address(address)
    except ConnectionError as error:
        raise ConnectionError("no cluster runs on this machine.") from error
    if found is None:
        raise ValueError("this names no running cluster.")
    host, _, port = found.rpartition(":")
    if not port.isdigit():
        raise ValueError(f"{port!r} is not the number of a port.")
    with socket.create_connection((host.strip("[]"), int(port)), ANSWER_S) as connection:
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true") and not _speaks_http2(connection):
            raise ConnectionError(f"what listens at {found} is not Ray.")
    return str(found)


def _speaks_http2(connection: socket.socket) -> bool:
    try:
        connection.sendall(OPENING)
        header = connection.recv(HEADER_BYTES, socket.MSG_WAITALL)
    except OSError:  # it hung up, or said nothing
        return False
    return len(header) == HEADER_BYTES and header[TYPE_AT] == SETTINGS
