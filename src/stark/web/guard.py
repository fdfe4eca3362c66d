"""Stands before every route: GET only, a known Host, a token where one is required, and strict headers.

The exact Host check stops pages of other sites that point their own name at this machine.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stark.page.assets import POLICY, format_policy

SEND_S = 30.0  # a client that takes nothing for so long is let go

HEADERS = {
    "content-security-policy": format_policy(POLICY),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """The Host headers under which the page answers, and the token that a client must know."""

    hosts: frozenset[str]
    token: str | None = None


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access
        self._session = secrets.token_urlsafe(32)  # the cookie, so that the token itself is sent once
        self._cookie = f"stark-view-{secrets.token_hex(4)}"  # cookies are shared by all ports of a machine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._refuse(scope)
            await (answer or self._app)(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _refuse(self, scope: Scope) -> Response | None:
        """Return the answer to a request that must not pass."""
        hosts = [value.decode("latin-1").lower() for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self._access.hosts:
            return PlainTextResponse("This address is not served here. Use the address that stark view printed.\n", 421)
        if scope["method"] != "GET":
            return PlainTextResponse("The page only reads: GET is the only method.\n", 405, {"allow": "GET"})
        return self._check_token(scope) if self._access.token else None

    def _check_token(self, scope: Scope) -> Response | None:
        if self._knows_session(scope):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and _is_same(given, self._access.token or ""):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("A token is needed. Open the address that stark view printed.\n", 401)

    def _knows_session(self, scope: Scope) -> bool:
        cookies = [value.decode("latin-1") for name, value in scope["headers"] if name == b"cookie"]
        return any(_is_same(cookie_parser(text).get(self._cookie, ""), self._session) for text in cookies)


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())


def _with_headers(send: Send) -> Send:
    """Add the headers to every answer, and let a client go that takes nothing."""

    async def send_guarded(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                *message.get("headers", ()),
                *((name.encode(), value.encode()) for name, value in HEADERS.items()),
            ]
        async with asyncio.timeout(SEND_S):
            await send(message)

    return send_guarded
