"""Starts the server of the page on an address that is safe."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from stark.core.errors import UsageError
from stark.web.app import make_app
from stark.web.catalog import find_stores
from stark.web.guard import Access

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
MIN_TOKEN = 16
MAX_CONNECTIONS = 256


def serve(
    folder: Path,
    host: str,
    port: int | None,
    token: str | None,
    names: Sequence[str],
    on_ready: Callable[[str], None],
) -> None:
    """Serve the page of a folder until Ctrl-C. ``on_ready`` receives the address to open."""
    check_token(host, token)
    if next(find_stores(folder), None) is None:
        raise UsageError(f"There is no run in {folder} or below it.", "Name a run folder, or a folder of runs.")
    with listen(host, port) as listener:
        number = listener.getsockname()[1]
        app = make_app(folder, Access(allowed_hosts(host, number, names), token))
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=1,
        )
        shown = f"http://{_in_address(names[0] if names else host)}:{number}/"
        on_ready(f"{shown}?token={token}" if token else shown)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:  # the usual end
            return


def check_token(host: str, token: str | None) -> None:
    """Refuse an address that others can reach if there is no token, or a weak one."""
    make = "Set one: export STARK_VIEW_TOKEN=$(openssl rand -hex 16)"
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isalnum()):
        raise UsageError(f"The token is not made of {MIN_TOKEN} or more letters and digits.", make)
    if token is None and not is_loopback(host):
        raise UsageError(f"The address {host} can be reached from other machines, and there is no token.", make)


def is_loopback(host: str) -> bool:
    """True for an address that only this machine reaches. A name other than localhost may lead anywhere."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(host: str, port: int, names: Sequence[str]) -> frozenset[str]:
    """Return every Host header that means this server."""
    known = {*LOOPBACK_NAMES, _in_address(host), *names}
    if host in ("0.0.0.0", "::"):
        known.add(socket.gethostname())
    plain = known if port == 80 else ()  # browsers leave this port out
    return frozenset(name.lower() for name in (*(f"{name}:{port}" for name in known), *plain))


def listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket; without a port, on the first free one from 8400 on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for number in (port,) if port is not None else (*range(8400, 8420), 0):
        try:
            return socket.create_server((host, number), family=family, backlog=128)
        except OSError as error:
            refused = error
    raise UsageError(f"The page cannot listen on {host}: {refused.strerror}.", "Choose another --port or --host.")


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
