"""A server for agents as a process, and a client of it in one line."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ListRootsResult, Root

from stark_process import environment

TOKEN = "a-token-of-the-tests-0123456789"
KEY = "sk-a-key-that-nobody-may-see-0123"


def command(*more: str) -> list[str]:
    return [sys.executable, "-m", "stark.cli", "mcp", "--allow-weak-sandbox", *more]


def variables() -> dict[str, str]:
    return environment(STARK_MCP_TOKEN=TOKEN, OPENAI_API_KEY=KEY)


class Session:
    """One client of the server, in a loop of its own."""

    def __init__(self, address: str | StdioServerParameters, mode: str = "auto", roots: list[Path] | None = None):
        self._address, self._mode, self.roots = address, mode, roots

    async def __aenter__(self):
        transport, self._http = self._address, None
        if isinstance(transport, str):
            self._http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}, timeout=600)
            transport = streamable_http_client(transport, http_client=self._http)

        async def list_roots(context) -> ListRootsResult:
            return ListRootsResult(roots=[Root(uri=root.as_uri()) for root in self.roots])

        callback = list_roots if self.roots is not None else None
        self._client = Client(transport, mode=self._mode, list_roots_callback=callback)
        self.client = await self._client.__aenter__()
        return self

    async def __aexit__(self, *error):
        await self._client.__aexit__(*error)
        if self._http is not None:
            await self._http.aclose()

    async def call(self, tool: str, **given):
        """Return the typed answer of a tool."""
        found = await self.client.call_tool(tool, given)
        assert not found.is_error, found.content[0].text
        assert json.loads(found.content[0].text) == found.structured_content
        return found.structured_content

    async def refused(self, tool: str, **given) -> str:
        found = await self.client.call_tool(tool, given)
        assert found.is_error
        return found.content[0].text


def run(work, *given, **more):
    async def main():
        async with Session(*given, **more) as session:
            return await work(session)

    return asyncio.run(main())
