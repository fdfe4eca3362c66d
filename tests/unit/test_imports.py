"""Import promises, each tested in a clean process."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from paths import ROOT

BENCHMARKS = ROOT / "benchmarks"

ASK = """
import sys
{statement}
print(" ".join(sorted(name for name in {names!r}.split() if name in sys.modules)))
"""


def loaded(statement: str, names: str) -> str:
    program = ASK.format(statement=statement, names=names)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("module", ["stark", "stark.cli.main", "stark.run.api", "stark_worker.protocol.request"])
def test_the_host_never_imports_torch(module):
    assert loaded(f"import {module}", "torch") == ""


def test_the_command_line_starts_without_the_heavy_parts():
    heavy = "langgraph pydantic_ai openai anthropic jinja2 stark.run.api"
    assert loaded("from stark.cli.main import load_app; load_app()", heavy) == ""


SERVE = """
import anyio
from stark.cli.main import load_app

load_app("mcp")
from pathlib import Path
from stark.mcp.rules import ServerRules
from stark.mcp.sdk.server import Tools, build_server

async def list_tools():
    async with Tools(ServerRules.load(None, [], {}), Path()) as tools:
        return await build_server(tools).list_tools()

assert len(anyio.run(list_tools)) > 9
import stark.mcp.sdk.serving
"""


def test_the_server_for_agents_lists_its_tools_without_the_heavy_parts():
    heavy = "torch numpy langgraph pydantic_ai openai anthropic jinja2 matplotlib pyarrow"
    ours = "stark.agents stark.search stark.cli.optimize stark.cli.terminal.screen stark.run.api stark_worker.referee"
    assert loaded(SERVE, f"{heavy} {ours}") == ""


def test_only_one_folder_imports_the_sdk_for_agents():
    importing = {
        path.parent
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"^ *(from|import) (mcp|mcp_types)\b", path.read_text(), re.MULTILINE)
    }
    assert importing == {ROOT / "src" / "stark" / "mcp" / "sdk"}


def test_the_worker_imports_torch_and_the_standard_library_only():
    foreign = "stark pydantic pydantic_ai langgraph jinja2 rich typer tenacity numpy"
    assert loaded("import stark_worker.protocol", foreign) == ""


def test_tasks_are_found_with_the_standard_library_only():
    """benchmarks/studies/baselines.py runs where there is nothing but torch."""
    foreign = "torch pydantic pydantic_ai langgraph jinja2 rich typer tenacity numpy pyarrow"
    assert loaded("import stark.bench.task_sources", foreign) == ""


@pytest.mark.parametrize("folder", ["perf", "proofs", "studies"])
def test_benchmarks_find_what_they_import(folder):
    modules = ", ".join(sorted(path.stem for path in (BENCHMARKS / folder).glob("*.py")))
    subprocess.run([sys.executable, "-c", f"import {modules}"], cwd=BENCHMARKS / folder, check=True)
