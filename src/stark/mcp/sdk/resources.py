"""The resources of the server: the rules of judging, a run's tree, a node's source and prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import InputRequiredResult, ListRootsRequest, ListRootsResult
from mcp_types.version import is_version_at_least

from stark.core.errors import StarkError
from stark.mcp import runs
from stark.mcp.guides import RULES
from stark.mcp.quoting import Redactor
from stark.mcp.results import format_error

ANSWER_BY_RETRY = "2026-07-28"  # from this version on, a client answers by asking again
ROOTS_KEY = "roots"

FindFolder = Callable[[ListRootsResult | None, str], Path]
Answer = str | InputRequiredResult


async def list_roots(ctx: Context) -> ListRootsResult | InputRequiredResult | None:
    """Return the roots of the client, or the question for them; None if it has none to name.

    The SDK asks for a tool's roots by itself, but not for those of a resource.
    """
    capabilities = ctx.client_capabilities
    if capabilities is None or capabilities.roots is None:
        return None
    if is_version_at_least(ctx.protocol_version or "", ANSWER_BY_RETRY):
        answer = (ctx.input_responses or {}).get(ROOTS_KEY)
        if answer is None:
            return InputRequiredResult(input_requests={ROOTS_KEY: ListRootsRequest()})
        if not isinstance(answer, ListRootsResult):
            raise ResourceError("The client answered the question for its roots with something else.")
        return answer
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    listed: ListRootsResult = await ctx.session.send_request(ListRootsRequest(), ListRootsResult, metadata=metadata)
    return listed


def add_resources(server: MCPServer, find_folder: FindFolder, redactor: Redactor) -> None:
    """Add all resources to the server."""

    async def answer(ctx: Context, run: str, read: Callable[[Path], str]) -> Answer:
        listed = await list_roots(ctx)
        if isinstance(listed, InputRequiredResult):
            return listed
        try:
            return redactor.clean(read(find_folder(listed, run)))
        except StarkError as error:
            raise ResourceError(redactor.clean(format_error(error))) from error

    @server.resource("stark://rules", mime_type="text/markdown")
    def rules() -> str:
        """The rules by which a kernel is judged, and the meaning of each outcome."""
        return RULES

    @server.resource("stark://runs/{run}/tree")
    async def tree(run: str, ctx: Context) -> Answer:
        """The search tree of a run, one line for each candidate."""
        return await answer(ctx, run, runs.format_tree)

    @server.resource("stark://runs/{run}/nodes/{node}/source")
    async def source(run: str, node: int, ctx: Context) -> Answer:
        """The source of one candidate."""
        return await answer(ctx, run, lambda folder: runs.format_source(folder, node))

    @server.resource("stark://runs/{run}/nodes/{node}/prompts")
    async def prompts(run: str, node: int, ctx: Context) -> Answer:
        """The prompts that one candidate was made from, and the replies."""
        return await answer(ctx, run, lambda folder: runs.format_prompts(folder, node))
