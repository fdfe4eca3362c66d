"""Serves over stdio or, on request, over HTTP behind a token."""

from __future__ import annotations

import hmac
import os
import secrets
import sys
from pathlib import Path

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from stark.core.errors import UsageError
from stark.mcp.rules import ServerRules
from stark.mcp.sdk.server import Tools, build_server

TOKEN_VARIABLE = "STARK_MCP_TOKEN"
MIN_TOKEN_CHARACTERS = 16
GRACE_S = 3  # for answers in flight when the server ends


class TokenRequired:
    """Lets only requests with the token through."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._is_allowed(scope):
            refusal = JSONResponse({"error": "a token is required"}, 401, {"WWW-Authenticate": "Bearer"})
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


def serve_stdio(rules: ServerRules, folder: Path) -> None:
    """Serve one client over standard input and output, until it closes them."""

    async def serve() -> None:
        async with Tools(rules, folder) as tools:
            await build_server(tools).run_stdio_async()

    anyio.run(serve)


def serve_http(rules: ServerRules, folder: Path, host: str, port: int) -> None:
    """Serve any number of clients over HTTP. Their roots count only inside ``folder``."""
    import uvicorn

    token, is_new = _read_token()

    async def serve() -> None:
        async with Tools(rules, folder, within=folder, token=token) as tools:
            app = build_server(tools).streamable_http_app(host=host)
            config = uvicorn.Config(
                TokenRequired(app, token),
                host=host,
                port=port,
                log_level="warning",
                timeout_graceful_shutdown=GRACE_S,
            )
            _announce(host, port, token if is_new else None)
            await uvicorn.Server(config).serve()

    anyio.run(serve)


def _read_token() -> tuple[str, bool]:
    """Return the token of the environment, or a new one; a token among the options would be seen by all users."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given is None:
        return secrets.token_urlsafe(32), True
    if len(given) < MIN_TOKEN_CHARACTERS or not given.isascii() or any(letter.isspace() for letter in given):
        raise UsageError(
            f"The token in {TOKEN_VARIABLE} is shorter than {MIN_TOKEN_CHARACTERS} characters or holds other signs.",
            f"Unset {TOKEN_VARIABLE}, and a good one is made.",
        )
    return given, False


def _announce(host: str, port: int, new_token: str | None) -> None:
    shown = f"[{host}]" if ":" in host else host
    lines = [f"Address: http://{shown}:{port}/mcp", f"Send the header: Authorization: Bearer {new_token or '...'}"]
    lines += [] if new_token else [f"The token is the one in {TOKEN_VARIABLE}."]
    sys.stderr.write("\n".join([*lines, ""]))
    sys.stderr.flush()
