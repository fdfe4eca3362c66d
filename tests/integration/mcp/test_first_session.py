"""The recorded first try: an example task is made faster with nothing but the tools. Its calls are made again.

Times differ from machine to machine, so only the verdicts have to be the same.
"""

from __future__ import annotations

import asyncio
import json
import shutil

from mcp import Client

from paths import ROOT, TESTS
from stark.mcp.rules import ServerRules
from stark.mcp.sdk.server import Tools, build_server

RECORDED = json.loads((TESTS / "data" / "mcp" / "first-session.json").read_text())
EXACT = ("outcome", "is_correct")


def test_the_session_ended_with_a_kernel_that_is_surely_faster():
    judged = [call["answer"] for call in RECORDED if call["tool"] == "judge"]
    assert any(answer["is_surely_faster"] for answer in judged)
    assert [call["tool"] for call in RECORDED[:3]] == ["bound", "baseline", "profile"]


def test_the_calls_of_the_first_session_have_the_same_verdicts_again(tmp_path):
    shutil.copy(ROOT / "examples" / "tasks" / "softmax_rows.py", tmp_path)
    rules = ServerRules.load(None, [], {"evaluation": {"allow_weak_sandbox": True}})

    async def main():
        async with Tools(rules, tmp_path) as tools, Client(build_server(tools)) as client:
            return [await client.call_tool(call["tool"], call["arguments"]) for call in RECORDED]

    for call, answer in zip(RECORDED, asyncio.run(main()), strict=True):
        assert not answer.is_error, answer.content[0].text
        found = answer.structured_content
        assert found.keys() == call["answer"].keys()
        assert {name: found[name] for name in EXACT if name in found} == {
            name: call["answer"][name] for name in EXACT if name in found
        }
