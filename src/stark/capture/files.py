"""Task files and modules by name: the worker's ``capture`` reads them, in a process of its own."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stark.core.errors import TaskError
from stark.core.task import Task, check_contract, read_source
from stark.core.task import load_task as load_plain_task

COMMAND = (sys.executable, "-m", "stark_worker", "capture")


def load_task(path: Path, hint: str = "") -> Task:
    """Read a task file. What it takes from packages beside it, or Model from any package, is put into it by source."""
    source = read_source(path)
    if not _takes_from_packages(source, path):
        return load_plain_task(path, hint)
    flat = str(_ask_worker(["--file", "--", str(path)])["source"])
    check_contract(flat, path)
    return Task(name=path.stem, source=flat, hint=hint)


def _takes_from_packages(source: str, path: Path) -> bool:
    """True if a file imports a module that lies beside it, or takes a part of the task from a package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            parts = {alias.asname or alias.name for alias in node.names}
            if node.level or "Model" in parts or _is_beside(node.module or "", path):
                return True
        elif isinstance(node, ast.Import) and any(_is_beside(alias.name, path) for alias in node.names):
            return True
    return False


def _is_beside(module: str, path: Path) -> bool:
    root = path.resolve().parent
    while (root / "__init__.py").exists():
        root = root.parent
    name = module.partition(".")[0]
    return (root / f"{name}.py").is_file() or (root / name).is_dir()


@dataclass(frozen=True)
class CapturedTask:
    """A task that was made of a module, and the type of its weights."""

    task: Task
    precision: str


def capture_by_name(name: str, inputs: Sequence[str], block: str | None = None) -> CapturedTask:
    """Capture the module that ``package.module:factory`` makes, or a block inside it."""
    return captured_of(_ask_worker(words_of(name, inputs, block)))


def rank_by_name(name: str, inputs: Sequence[str], best: int) -> dict[str, Any]:
    """Return the blocks of a model by what a faster one would bring, and the tasks of the best few."""
    return _ask_worker(["--rank", "--best", str(best), *words_of(name, inputs)])


def words_of(name: str, inputs: Sequence[str], block: str | None = None) -> list[str]:
    """Return the command line of the worker. Nothing that is given can be read as another option."""
    given = [f"--inputs={each}" for each in inputs]
    return [*given, *([f"--block={block}"] if block else []), "--", name]


def captured_of(answer: dict[str, Any]) -> CapturedTask:
    """Return the task in the worker's answer."""
    return CapturedTask(Task(answer["name"], answer["source"]), answer["precision"])


def _ask_worker(words: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    return read_answer(words[-1], done.returncode, done.stdout, done.stderr)


def read_answer(name: str, code: int, out: str, err: str) -> dict[str, Any]:
    """Return the worker's answer; raise a TaskError that repeats its last words if it has none."""
    if code == 0:
        return dict(json.loads(out))
    last = (err.strip().splitlines() or ["the process ended without a word"])[-1].removeprefix("capture: ")
    if "No module named 'torch'" in err:
        raise TaskError("Capturing needs torch here.", "Install it with pip install 'stark-kernels[local]'.")
    raise TaskError(f"{name} cannot be captured: {last}", "Change that place, or write a self-contained task file.")
