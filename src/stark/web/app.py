"""The routes of the page. Each one reads; none takes a path of the file system."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from stark.core.errors import StarkError, UsageError
from stark.page.assets import read_asset, served_page
from stark.web.catalog import Catalog
from stark.web.feed import Feed
from stark.web.guard import Access, Guard

PIECE = 64 * 1024  # a stalled client holds one piece; the rest is shared with all others


def make_app(folder: Path, access: Access) -> ASGIApp:
    """Return the application that serves the stores of a folder."""
    catalog = Catalog(folder)
    feed = Feed(catalog)

    async def page(_: Request) -> Response:
        return HTMLResponse(served_page())

    async def asset(request: Request) -> Response:
        found = await run_in_threadpool(read_asset, request.path_params["name"])
        return Response(found[0], media_type=found[1]) if found else await missing(request)

    async def index(_: Request) -> Response:
        return await _answer(lambda: json.dumps(catalog.index(), allow_nan=False).encode())

    async def run(request: Request) -> Response:
        store, name = _text(request, "store"), _text(request, "run")
        return await _answer(lambda: catalog.shelf(store).document(name, _number(request, "known")))

    async def node(request: Request) -> Response:
        store, name = _text(request, "store"), _text(request, "run")
        return await _answer(lambda: catalog.shelf(store).node(name, _number(request, "node")))

    async def events(request: Request) -> Response:
        return StreamingResponse(feed.follow(request.query_params.get("store")), media_type="text/event-stream")

    async def missing(_: Request, *__: object) -> Response:
        return PlainTextResponse("There is no such page. Go back to /.\n", 404)

    routes = [
        Route("/", page),
        Route("/static/{name:path}", asset),
        Route("/api/index", index),
        Route("/api/run", run),
        Route("/api/node", node),
        Route("/api/events", events),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={404: missing}), access)


async def _answer(read: Callable[[], bytes]) -> Response:
    """Read in a thread and send in pieces; an error of the store is an answer too."""
    try:
        content = await run_in_threadpool(read)
    except StarkError as error:
        return JSONResponse({"error": error.message, "hint": error.next_step}, 404)
    headers = {"content-length": str(len(content))}
    return StreamingResponse(_pieces(content), media_type="application/json", headers=headers)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


def _text(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def _number(request: Request, name: str) -> int:
    text = _text(request, name) or "0"
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"The parameter {name} is not a number.", "Give a node's number.")
    return int(text)
