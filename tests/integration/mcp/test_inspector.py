"""The protocol as the official inspector sees it, on its command line. It comes from npm, so it need not be there.

npm install --prefix .venv/inspector node@22 @modelcontextprotocol/inspector@2.12.0
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from mcp_session import command, variables
from paths import ROOT

FOLDER = ROOT / ".venv" / "inspector" / "node_modules" / ".bin"
PATH = os.pathsep.join([str(FOLDER), os.environ["PATH"]])
INSPECTOR = shutil.which("mcp-inspector", path=PATH)
TOOL_ERROR = 5  # its exit code for an answer that is an error
pytestmark = pytest.mark.skipif(
    INSPECTOR is None,
    reason="the first lines of this file say how to get mcp-inspector",
)


def inspect(folder, method: str, *more: str, code: int = 0) -> dict[str, object]:
    given = {**variables(), "PATH": PATH}
    served = [*command("--root", str(folder)), "-e", f"PYTHONPATH={given['PYTHONPATH']}"]  # a server gets few variables
    words = [INSPECTOR, "--cli", *served, "--method", method, *more]
    done = subprocess.run(words, capture_output=True, text=True, env=given, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_tools_have_schemas_that_every_client_can_read(tmp_path):
    tools = inspect(tmp_path, "tools/list", "--strict")["tools"]
    assert {"capture", "judge", "optimize", "doctor"} <= {tool["name"] for tool in tools}
    assert all(tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object" for tool in tools)


def test_resources_are_read_and_templates_listed(tmp_path):
    contents = inspect(tmp_path, "resources/read", "--uri", "stark://rules")["contents"]
    assert "How a kernel is judged" in contents[0]["text"]
    assert len(inspect(tmp_path, "resources/templates/list")["resourceTemplates"]) == 3


def test_a_refusal_is_an_answer_and_no_broken_protocol(tmp_path):
    call = ("--tool-name", "judge", "--tool-arg", "task=/etc/passwd", "--tool-arg", "source=x")
    refused = inspect(tmp_path, "tools/call", *call, code=TOOL_ERROR)
    assert refused["isError"]
    assert "outside of the roots" in refused["content"][0]["text"]
