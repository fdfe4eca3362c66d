"""Writes results in the layout of KernelBench's ``eval_results.json``, for tools that read it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stark.analysis.results import RunResult
from stark.core.records import Kind
from stark.core.tree import ROOT_ID, Judgement, Role
from stark.report.exports import make_folder, write_text
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Timing
from stark_worker.protocol.request import Score

MISSING_MS = -1.0  # KernelBench's value for no runtime
FIRST_NODE = 1  # sample 0 of another tool

Timings = Mapping[tuple[str, int], Timing]  # by run and node


def runs_scored_by_mean(results: Sequence[RunResult]) -> list[str]:
    """The runs whose samples are needed, because KernelBench's rules report the mean runtime."""
    return [run.run_id for run in results if run.rules is Score.KERNELBENCH]


def write_eval_results(folder: Path, results: Sequence[RunResult], timings: Timings | None = None) -> list[Path]:
    """Write one folder per level, method, seed and score, each with an ``eval_results.json``.

    KernelBench's own analysis reads only sample 0, one level at a time. The runtime is the mean of ``timings``, or the
    median for runs without them.
    """
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for run in results:
        if run.complete and run.level is not None and run.number is not None:
            name = f"level_{run.level}-{run.method}-seed_{run.seed}-{run.score}".replace(" ", "_").replace("/", "_")
            found.setdefault(name, {})[run.number] = _samples(run, timings or {})
    written = []
    for name, problems in sorted(found.items()):
        make_folder(folder / name)
        written.append(folder / name / "eval_results.json")
        ordered = {str(number): problems[number] for number in sorted(problems)}
        write_text(written[-1], json.dumps(ordered, indent=4) + "\n")
    return written


def _samples(run: RunResult, timings: Timings) -> list[dict[str, Any]]:
    """The confirmed winner of a search as its only sample; kernels of another tool under their own numbers.

    The other attempts of a search are no samples, because attempts build on each other.
    """
    made = sorted((each for each in run.judgements if each.id != ROOT_ID), key=lambda each: each.id)
    if run.kind == Kind.JUDGED and made:
        return [_sample(each.id - FIRST_NODE, each, run, timings.get((run.run_id, each.id))) for each in made]
    best = min(made, key=lambda each: (each.runtime_ms is None, each.runtime_ms or 0.0), default=None)
    if run.final is not None:
        # A rescored winner is the only node of its run.
        best = next((each for each in made if each.id == run.final.node_id), best)
    if best is None:  # no kernel was made; the layout has no value for that
        return [_sample(0, Judgement(ROOT_ID, Role.OTHER, Outcome.UNUSABLE_REPLY), run, None)]
    return [_winner(best, run, timings)]


def _winner(winner: Judgement, run: RunResult, timings: Timings) -> dict[str, Any]:
    if run.final is None:
        return _sample(0, winner, run, timings.get((run.run_id, winner.id)))
    report = run.final.report
    runtime_ms = report.timing.median_ms if report.timing else None
    judged = replace(winner, outcome=report.outcome, runtime_ms=runtime_ms, built=report.built)
    return _sample(0, judged, run, report.timing if runs_scored_by_mean([run]) else None)


def _sample(number: int, each: Judgement, run: RunResult, timing: Timing | None) -> dict[str, Any]:
    return {
        "sample_id": number,
        "compiled": each.compiled,
        "correctness": each.outcome is Outcome.OK,
        "metadata": {
            "hardware": run.device,
            "outcome": each.outcome,
            "node": each.id,
            "score": run.score,
            "best_of": _best_of(run),
        },
        "runtime": timing.mean_ms if timing else each.runtime_ms or MISSING_MS,
        "runtime_stats": ({} if each.runtime_ms is None else {"median": each.runtime_ms}) | _spread(timing),
    }


def _best_of(run: RunResult) -> int:
    """Number of kernels a sample was chosen from. A rescored winner has the budget of its search."""
    if run.kind == Kind.JUDGED:
        return 1
    return run.budget if run.kind == Kind.RESCORED else len(run.judgements) - 1


def _spread(timing: Timing | None) -> dict[str, float]:
    """The statistics of the samples."""
    if timing is None:
        return {}
    samples = timing.samples_ms
    figures = {"mean": timing.mean_ms, "std": statistics.pstdev(samples), "min": min(samples), "max": max(samples)}
    return {**figures, "num_trials": len(samples)}
