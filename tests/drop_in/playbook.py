"""The playbook's kernels of all example tasks, with every move that keeps the precision."""

from __future__ import annotations

from pathlib import Path

from drop_in.cases import Case
from paths import ROOT
from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.codegen.cpp import CPP
from stark.models.playbook.moves import find_applicable
from stark.models.playbook.trace.program import read_task

TASKS = sorted((ROOT / "examples" / "tasks").glob("*.py"))


def playbook_case(task: Path) -> Case:
    source = task.read_text(encoding="utf-8")
    program = read_task(source)
    moves = frozenset(move.name for move in find_applicable(program, "cpu") if move.name != "short")
    return Case(task.stem, source, write_candidate(program, moves, CPP), any_batch=False)
