"""Docs are true: what they list is what there is."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from paths import ROOT
from stark.agents.prompts import VARIABLES
from stark.cli.main import app
from stark.core.errors import UsageError
from stark.models.playbook.moves import MOVES
from stark.run.methods import workflow_edges
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Level


def test_the_page_on_prompts_lists_every_variable_with_its_meaning():
    page = (ROOT / "docs" / "prompts.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)) == VARIABLES


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        "benchmarks/README.md",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ],
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_page_on_trust_names_every_exploit_that_gets_through():
    page = (ROOT / "docs" / "trust.md").read_text()
    for path in (ROOT / "tests" / "adversarial" / "exploits").glob("*.py"):
        facts = path.read_text().split('"""')[1]
        if "\nknown: " in facts and "\nexpect: contained" not in facts:
            assert f"`{path.stem}`" in page, path.stem


def test_the_readme_names_only_commands_that_exist():
    named = set(re.findall(r"\bstark (\w+) ", (ROOT / "README.md").read_text()))
    known = {command.callback.__name__ for command in app.registered_commands if command.callback}
    assert named <= known


def test_the_drawing_of_the_readme_has_every_step_of_an_attempt():
    drawing = (ROOT / "README.md").read_text().partition("```mermaid")[2].partition("```")[0]
    steps = {name for edge in workflow_edges("stark") for name in edge[:2] if not name.startswith("__")}
    assert steps <= set(re.findall(r"\w+(?=\[\")", drawing))


def test_how_busy_a_lane_is_said_to_be_is_what_was_measured():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    shares = json.loads((ROOT / "benchmarks" / "results" / "lanes.json").read_text())["busy_share_by_runs_at_once"]
    runs, said = re.search(r"\((\d+) keep one GPU busy for ([\d.]+) % of the time", page).groups()
    assert said == f"{100 * shares[runs]:.2f}"


def test_the_environment_has_the_headers_that_torchs_own_include_at_the_compilers_version():
    """ATen/cuda/CUDAContext.h includes those of cuBLAS, cuSPARSE and cuSOLVER."""
    pins = dict(re.findall(r"- ([\w-]+)=([\d.]+)", (ROOT / "environment.yml").read_text()))
    assert pins["cuda-libraries-dev"] == pins["cuda-cudart-dev"] == pins["cuda-nvcc"]


def test_the_image_has_what_the_commands_of_the_page_on_reproducing_need():
    page, image = (ROOT / "docs" / "reproduce.md").read_text(), (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) ", image, re.MULTILINE))
    named = set(re.findall(r"(?:python |--grid )(\w+/[\w.-]+)", page))
    assert {"benchmarks/studies/baselines.py", "configs/table-1.toml"} <= named
    for file in named:
        assert (ROOT / file).exists(), file
        assert file.partition("/")[0] in copied, file
        assert "pretend" not in (ROOT / file).read_text(), f"{file} would need tests/ too"


def commands_on(page: str) -> list[list[str]]:
    lines = re.findall(r"^    \.venv/bin/stark (optimize .*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("words", [*commands_on("README.md"), *commands_on("docs/providers.md")], ids=" ".join)
def test_every_provider_can_be_used_as_it_is_described(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "none-is-called")
    command, _, *options = words
    done = CliRunner().invoke(app, [command, "examples/tasks/rms_norm.py", *options, "--dry-run"])
    if isinstance(done.exception, UsageError):  # a package that is not installed here, which the page says how to get
        extra = re.search(r"'stark-kernels(\[\w+\])'", str(done.exception))
        assert extra, done.exception
        assert f"pip install --editable '.{extra[1]}'" in (ROOT / "docs" / "providers.md").read_text()
    else:
        assert "Nothing was started." in done.output
        assert done.exit_code == 0, done.output


def test_the_page_on_results_names_every_outcome_level_and_exit_code():
    page = (ROOT / "docs" / "results.md").read_text()
    for outcome in Outcome:
        assert outcome.replace("_", " ") in page, outcome
    for level in Level:
        assert f"| `{level}` |" in page, level
    for code in re.findall(r"(\d+) \w", app.info.epilog):
        assert re.search(rf"\b{code} ", page.partition("## Exit codes")[2]), code


def test_the_page_on_the_playbook_lists_every_move():
    page = (ROOT / "docs" / "playbook.md").read_text()
    listed = dict(re.findall(r"^\| ([\w-]+) \| (both|cpu|triton) \|", page, re.MULTILINE))
    known = {move.name: move.targets[0] if len(move.targets) == 1 else "both" for move in MOVES.values()}
    assert listed == {name: target for name, target in known.items() if MOVES[name].gain}


def test_the_folders_of_the_architecture_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for name in re.findall(r"^  (\w+(?:\.py|/)) ", page, re.MULTILINE):
        assert any((ROOT / "src" / package / name).exists() for package in ("stark", "stark_worker")), name
