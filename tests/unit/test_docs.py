"""Docs are true: what they list is what there is."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stark
from conformance.policy import PolicyConformance
from fakes import TASK
from paths import ROOT
from stark.agents.template_files import VARIABLES
from stark.cli.main import load_app
from stark.core.errors import UsageError
from stark.core.settings import SearchSettings
from stark.core.tree import Tree
from stark.models.playbook.moves import MOVES
from stark.run import api as stark_api
from stark.run.methods import workflow_edges
from stark.run.settings_loader import load_settings
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.isolation import Level

APP = load_app()


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
    known = {command.callback.__name__ for command in APP.registered_commands if command.callback}
    assert named <= known


def test_the_drawing_of_the_architecture_has_every_step_of_an_attempt():
    drawing = (ROOT / "docs" / "architecture.md").read_text().partition("```mermaid")[2].partition("```")[0]
    steps = {name for edge in workflow_edges("stark") for name in edge[:2] if not name.startswith("__")}
    assert steps <= set(re.findall(r"\w+(?=\[\")", drawing))


def test_how_busy_a_lane_is_said_to_be_is_what_was_measured():
    page = (ROOT / "docs" / "reproduce.md").read_text()
    shares = json.loads((ROOT / "benchmarks" / "results" / "lanes.json").read_text())["busy_share_by_runs_at_once"]
    runs, said = re.search(r"(\d+) runs keep one GPU busy for ([\d.]+) % of the time", page).groups()
    assert said == f"{100 * shares[runs]:.2f}"


def test_the_environment_has_the_headers_that_torchs_own_include_at_the_compilers_version():
    """ATen/cuda/CUDAContext.h includes those of cuBLAS, cuSPARSE and cuSOLVER."""
    pins = dict(re.findall(r"- ([\w-]+)=([\d.]+)", (ROOT / "environment.yml").read_text()))
    assert pins["cuda-libraries-dev"] == pins["cuda-cudart-dev"] == pins["cuda-nvcc"]


def test_the_image_has_what_the_commands_of_the_page_on_reproducing_need():
    page, image = (ROOT / "docs" / "reproduce.md").read_text(), (ROOT / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (\w+) ", image, re.MULTILINE))
    named = set(re.findall(r"(?:python |--grid )(\w+/[\w./-]+)", page))
    assert {"benchmarks/studies/baselines.py", "configs/table-1.toml"} <= named
    for file in named:
        assert (ROOT / file).exists(), file
        assert file.partition("/")[0] in copied, file
        assert "fakes" not in (ROOT / file).read_text(), f"{file} would need tests/ too"


def commands_on(page: str) -> list[list[str]]:
    lines = re.findall(r"^    \.venv/bin/stark (optimize .*)$", (ROOT / page).read_text(), re.MULTILINE)
    return [shlex.split(line, comments=True) for line in lines]


@pytest.mark.parametrize("words", [*commands_on("README.md"), *commands_on("docs/providers.md")], ids=" ".join)
def test_every_provider_can_be_used_as_it_is_described(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "none-is-called")
    command, _, *options = words
    done = CliRunner().invoke(APP, [command, "examples/tasks/rms_norm.py", *options, "--dry-run"])
    if isinstance(done.exception, UsageError):  # a package that is not installed here, which the page says how to get
        extra = re.search(r"'stark-kernels(\[\w+\])'", str(done.exception))
        assert extra, done.exception
        assert f"pip install --editable '.{extra[1]}'" in (ROOT / "docs" / "providers.md").read_text()
    else:
        assert "Nothing was started." in done.output
        assert done.exit_code == 0, done.output


def test_the_page_on_results_names_every_outcome():
    page = (ROOT / "docs" / "results.md").read_text()
    for outcome in Outcome:
        assert outcome.replace("_", " ") in page, outcome


def test_the_page_on_trust_names_every_level():
    page = (ROOT / "docs" / "trust.md").read_text()
    for level in Level:
        assert f"| `{level}` |" in page, level


def test_the_reference_names_every_exit_code():
    page = (ROOT / "docs" / "reference.md").read_text().partition("## Exit codes")[2]
    for code in re.findall(r"(\d+) \w", APP.info.epilog):
        assert f"| {code} |" in page, code


def test_the_page_on_the_playbook_lists_every_move():
    page = (ROOT / "docs" / "playbook.md").read_text()
    listed = dict(re.findall(r"^\| ([\w-]+) \| (both|cpu|triton) \|", page, re.MULTILINE))
    known = {move.name: move.targets[0] if len(move.targets) == 1 else "both" for move in MOVES.values()}
    assert listed == {name: target for name, target in known.items() if MOVES[name].gain}


HAND_WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "reference.md"),
]


def test_the_hand_written_pages_stay_short():
    graph = re.compile("<!-- scripts/house: begin.*scripts/house: end -->", re.DOTALL)
    texts = [graph.sub("", path.read_text()) for path in HAND_WRITTEN]
    assert sum(bool(re.search(r"\w", word)) for text in texts for word in text.split()) <= 10_000


BANNED = r"\b(whoever|somebody|nobody|anybody|told|tells|anew|alike|beside it|any more)\b"


@pytest.mark.parametrize("path", [*HAND_WRITTEN, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"], ids=str)
def test_pages_are_in_plain_words(path):
    assert not re.findall(BANNED, path.read_text(), re.IGNORECASE)


def test_files_that_pages_name_exist():
    for path in HAND_WRITTEN:
        for named in re.findall(
            r"`((?:src|tests|benchmarks|scripts|configs|examples|docs)/[\w./-]+)`", path.read_text()
        ):
            assert (ROOT / named).exists(), f"{path.name}: {named}"


def test_links_within_pages_lead_to_a_heading():
    def slugs(page):
        headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

    for path in HAND_WRITTEN:
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", path.read_text()):
            page = path.parent / target if target else path
            assert heading in slugs(page), f"{path.name}: {target}#{heading}"


# -- code on pages --------------------------------------------------------------------------------------------------

FAKES = {"evaluation": {"evaluator": "fakes:HashEvaluator"}, "roles": {"model": "fakes:PretendModel"}}


def code_on(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def top_three(tmp_path, monkeypatch):
    """The policy of the page, saved under the name that the page gives it."""
    source, _ = code_on("write-a-policy.md")
    (tmp_path / "my_policy.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("my_policy").TopThree
    del sys.modules["my_policy"]


class TestPolicyOfThePage(PolicyConformance):
    @pytest.fixture
    def policy(self, top_three):
        return top_three(SearchSettings())


def test_the_page_on_policies_names_only_what_a_tree_has():
    table = (ROOT / "docs" / "write-a-policy.md").read_text().partition("| the tree offers |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)(?:\(\w*\))?`", table)
    assert "ranked" in named
    for name in named:
        assert name == "None" or hasattr(Tree, name), name


def test_the_policy_of_the_page_has_at_most_20_lines():
    source, _ = code_on("write-a-policy.md")
    assert len(source.splitlines()) <= 20


@pytest.mark.usefixtures("top_three")
def test_the_suite_of_the_page_is_the_one_for_policies():
    _, suite = code_on("write-a-policy.md")
    names = {"__name__": "test_my_policy"}
    exec(suite, names)
    assert issubclass(names["TestTopThree"], PolicyConformance)


def test_the_policy_of_the_page_grows_a_run(top_three, tmp_path, monkeypatch):
    chosen = []
    select = top_three.select
    monkeypatch.setattr(top_three, "select", lambda *given: chosen.append(select(*given)) or chosen[-1])
    (tmp_path / "task.py").write_text(TASK)
    page = (ROOT / "docs" / "write-a-policy.md").read_text()
    setting = re.search(r"--set (search.policy=\S+)", page)[1]
    run = tmp_path / "run"
    sets = ["method=stark", setting]
    result = stark.optimize(tmp_path / "task.py", run=run, sets=sets, budget={"attempts": 12}, **FAKES)
    assert result.attempts == len(chosen) == 12
    assert {node.failed for node in chosen} == {False, True}


def test_the_code_of_the_page_on_python_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("my_task.py").write_text(TASK)
    monkeypatch.setattr(
        stark_api, "load_settings", lambda file, sets, options: load_settings(file, sets, {**FAKES, **options})
    )
    names = {}
    for block in code_on("python-api.md"):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "class ModelNew" in printed
    assert re.search(r"^4 \w+$", printed, re.MULTILINE)
    assert re.search(r"^4 \d \w+ ", printed, re.MULTILINE)
