"""Results in the layout of KernelBench's ``eval_results.json``, for tools that read it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stark.results import RunResult
from stark.tree import ROOT_ID, Judgement, Role
from stark.view.exports import write_text
from stark_worker.protocol import Outcome

MISSING_MS = -1.0  # what that layout says where there is no runtime


def write_eval_results(folder: Path, results: Sequence[RunResult]) -> list[Path]:
    """One folder per level, method, seed and score, each with an ``eval_results.json``; sample 0 is the winner.

    KernelBench's own analysis looks at sample 0 alone, and at one level at a time.
    """
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for run in results:
        if run.complete and run.level is not None and run.number is not None:
            name = f"level_{run.level}-{run.method}-seed_{run.seed}-{run.score}".replace(" ", "_").replace("/", "_")
            found.setdefault(name, {})[run.number] = _samples(run)
    written = []
    for name, problems in sorted(found.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        written.append(folder / name / "eval_results.json")
        ordered = {str(number): problems[number] for number in sorted(problems)}
        write_text(written[-1], json.dumps(ordered, indent=4) + "\n")
    return written


def _samples(run: RunResult) -> list[dict[str, Any]]:
    """The winner first, as its final judged it, then the others as they landed."""
    made = [each for each in run.judgements if each.id != ROOT_ID]
    best = min(made, key=lambda each: (each.runtime_ms is None, each.runtime_ms or 0.0), default=None)
    if run.final is not None:
        # the winner of a search by the other score is the only node there, under a number of its own
        best = next((each for each in made if each.id == run.final.node_id), best)
    if best is None:  # nobody has made any, which that layout has no word for
        return [_sample(0, Judgement(ROOT_ID, Role.OTHER, Outcome.UNUSABLE_REPLY), run)]
    ordered = [best, *(each for each in made if each is not best)]
    return [
        _sample(number, _last_word(each, run) if each is best else each, run) for number, each in enumerate(ordered)
    ]


def _last_word(winner: Judgement, run: RunResult) -> Judgement:
    if run.final is None:
        return winner
    report = run.final.report
    runtime_ms = report.timing.median_ms if report.timing else None
    return replace(winner, outcome=report.outcome, runtime_ms=runtime_ms, built=report.built)


def _sample(number: int, each: Judgement, run: RunResult) -> dict[str, Any]:
    return {
        "sample_id": number,
        "compiled": each.compiled,
        "correctness": each.outcome is Outcome.OK,
        "metadata": {"hardware": run.device, "outcome": each.outcome, "node": each.id, "score": run.score},
        "runtime": each.runtime_ms or MISSING_MS,
        "runtime_stats": {} if each.runtime_ms is None else {"median": each.runtime_ms},
    }
