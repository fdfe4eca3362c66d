"""The protocol as the official inspector sees it, on its command line. It comes from npm, so it need not be there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from stark_process import environment

INSPECTOR = shutil.which("mcp-inspector")
pytestmark = pytest.mark.skipif(
    INSPECTOR is None, reason="install it with: npm install --global @modelcontextprotocol/inspector"
)


def inspect(folder, method: str, *more: str) -> dict[str, object]:
    served = [sys.executable, "-m", "stark.cli", "mcp", "--root", str(folder)]
    words = [INSPECTOR, "--cli", *served, "--method", method, *more]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_tools_have_schemas_that_the_inspector_accepts(tmp_path):
    tools = inspect(tmp_path, "tools/list")["tools"]
    assert {"judge", "optimize", "doctor"} <= {tool["name"] for tool in tools}
    assert all(tool["inputSchema"]["type"] == tool["outputSchema"]["type"] == "object" for tool in tools)


def test_resources_are_read_and_templates_listed(tmp_path):
    contents = inspect(tmp_path, "resources/read", "--uri", "stark://rules")["contents"]
    assert "How a kernel is judged" in contents[0]["text"]
    assert len(inspect(tmp_path, "resources/templates/list")["resourceTemplates"]) == 3


def test_a_refusal_is_an_answer_and_no_broken_protocol(tmp_path):
    call = ("--tool-name", "judge", "--tool-arg", "task=/etc/passwd", "--tool-arg", "source=x")
    refused = inspect(tmp_path, "tools/call", *call)
    assert refused["isError"]
    assert "outside of the roots" in refused["content"][0]["text"]
