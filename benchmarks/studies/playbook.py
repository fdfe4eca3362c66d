"""Measures the playbook's kernels for the example tasks against eager and torch.compile, in turns.

    python benchmarks/studies/playbook.py [--attempts 12] [--tasks NAME ...] [--minutes 30] [--save]
    python benchmarks/studies/playbook.py --target triton --write DIR   # writes kernels that another machine judges:
    python -m stark_worker serve DIR --target triton                    # ... there; needs torch and nothing else
    python benchmarks/studies/playbook.py --target triton --collect DIR --save

Every run is kept under --folder: called again, it goes on with what is missing. Each row carries the commit it was
measured at, shown where that is not the present one. Times are ratios within one task, from three evaluations in a row
by the path that any candidate takes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src")]

import record

from stark.core.settings import EvaluationSettings, Settings
from stark.core.task import Task, load_task
from stark.evaluation.open import open_evaluator
from stark.evaluation.requests import make_request
from stark.models.playbook.codegen.candidate import write_candidate
from stark.models.playbook.model import LANGUAGES
from stark.models.playbook.moves import drop_unmet, find_applicable
from stark.models.playbook.trace.program import read_task
from stark.run import api
from stark.run.result import Result
from stark.run.settings_loader import load_settings
from stark_worker.protocol.baselines import COMPILE_S, COMPILED, EAGER, baseline_source
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.folder import FOLDERS, write_atomically
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Entry

TASKS = sorted((ROOT / "examples" / "tasks").glob("*.py"))
OURS = "ours"
COMMIT_FILE = "commit"  # next to the requests: the commit that wrote them
UNKNOWN = "unknown"


def search(task: Path, folder: Path, attempts: int, method: str = "stark", seed: int = 0) -> Result:
    """One run with the playbook, begun or gone on with."""
    sets = [f"budget.attempts={attempts}", f"method={method}", f"seed={seed}", f"roles.model=playbook:{seed}"]
    if (folder / "stark.db").exists():
        return asyncio.run(api.resume_run(folder, api.change_on_resume([f"budget.attempts={attempts}"])))
    return asyncio.run(api.start(api.prepare(task, load_settings(sets=sets), folder)))


async def compare(task: Task, ours: str, settings: EvaluationSettings) -> dict[str, EvalReport]:
    """The three candidates, one after the other."""
    patient = settings.model_copy(update={"run_s": COMPILE_S})
    async with open_evaluator(patient) as evaluator:
        found = {}
        for name, (source, entry) in candidates(task, ours).items():
            found[name] = await evaluator.evaluate(make_request(task, source, patient, entry))
        return found


def candidates(task: Task, ours: str | None) -> dict[str, tuple[str, str]]:
    """Sources and the classes in them, by name."""
    baselines = {name: baseline_source(task.source, name) for name in (EAGER, COMPILED)}
    return baselines if ours is None else {**baselines, OURS: (ours, Entry.CANDIDATE)}


def measure(path: Path, folder: Path, attempts: int) -> dict[str, Any]:
    """The row of one task; read back where it is there, from whichever commit that was."""
    kept = folder / "row.json"
    if kept.exists():
        return {"commit": UNKNOWN, **json.loads(kept.read_text())}
    result = search(path, folder, attempts)
    reports = asyncio.run(compare(load_task(path), result.source or "", Settings().evaluation))
    node = result.best.id if result.best else None
    made = row(path.stem, reports, commit=record.commit(), attempts=result.attempts, node=node)
    kept.write_text(json.dumps(made))
    return made


def row(task: str, reports: dict[str, EvalReport], **facts: Any) -> dict[str, Any]:
    times = {name: report.timing.median_ms if report.timing else None for name, report in reports.items()}
    samples = {name: report.timing.samples_ms if report.timing else () for name, report in reports.items()}
    return {"task": task, **facts, "correct": times.get(OURS) is not None, "median_ms": times, "samples_ms": samples}


def speed(made: dict[str, Any], baseline: str) -> float | None:
    """Return the speed-up of ours over a baseline."""
    times = made["median_ms"]
    return times[baseline] / times[OURS] if times.get(OURS) and times.get(baseline) else None


def show(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Print the table; returns the geometric means and over how many tasks each goes."""
    print(f"{'task':<20} {'eager ms':>9} {'compile ms':>10} {'ours ms':>9} {'vs eager':>9} {'vs compile':>10}")
    now = record.commit()
    for each in rows:
        times = [each["median_ms"].get(name) for name in (EAGER, COMPILED, OURS)]
        figures = [*times, speed(each, EAGER), speed(each, COMPILED)]
        texts = ["-" if figure is None else f"{figure:.2f}" for figure in figures]
        widths = zip(texts, (9, 10, 9, 9, 10), strict=True)
        earlier = "" if each["commit"] == now else f"  at commit {each['commit']}"
        print(f"{each['task']:<20} " + " ".join(f"{text:>{width}}" for text, width in widths) + earlier)
    means, counts = {}, {}
    for name in (EAGER, COMPILED):
        known = [figure for each in rows if (figure := speed(each, name)) is not None]
        means[name], counts[name] = statistics.geometric_mean(known) if known else 0.0, len(known)
        print(f"geometric mean vs {name}: {means[name]:.2f}x over {counts[name]} of {len(rows)} tasks")
    return {"geometric_mean": means, "geometric_mean_tasks": counts}


# -- kernels that are judged elsewhere --------------------------------------------------------------------------------


def ladder(source: str, target: str) -> list[frozenset[str]]:
    """Candidates without a search: the moves one after the other, in the order a planner would take them."""
    program = read_task(source)
    known = sorted(find_applicable(program, target), key=lambda move: -move.gain)
    names = [move.name for move in known if move.gain and not move.risky]
    return list(dict.fromkeys(drop_unmet(frozenset(names[:count])) for count in range(1, len(names) + 1)))


def write(folder: Path, target: str, paths: list[Path]) -> None:
    """Requests for a worker that serves the folder."""
    settings = load_settings(sets=[f"evaluation.target={target}", f"evaluation.run_s={COMPILE_S}"]).evaluation
    for part in FOLDERS:
        (folder / part).mkdir(parents=True, exist_ok=True)
    for path in paths:
        task = load_task(path)
        sources = candidates(task, None)
        for moves in ladder(task.source, target):
            sources["+".join(sorted(moves))] = (
                write_candidate(read_task(task.source), moves, LANGUAGES[target]), Entry.CANDIDATE,
            )  # fmt: skip
        for name, (source, entry) in sources.items():
            request = to_json(make_request(task, source, settings, entry))
            write_atomically(folder / "requests" / f"{path.stem}--{name.replace(' ', '_')}.json", request)
    write_atomically(folder / COMMIT_FILE, record.commit())


def answers_in(place: Path) -> dict[str, Any]:
    """Device, commit and the worker's answers by name, from the folder or from the file that scripts/gpu made of it."""
    if place.is_file():
        return {"commit": UNKNOWN, **json.loads(place.read_text())}
    answers = {path.name: json.loads(path.read_text()) for path in sorted((place / "answers").glob("*.json"))}
    said = place / COMMIT_FILE
    commit = said.read_text() if said.exists() else UNKNOWN
    return {"device": json.loads((place / "device.json").read_text()), "commit": commit, "answers": answers}


def collect(answers: dict[str, Any], paths: list[Path], commit: str) -> list[dict[str, Any]]:
    """One row per task from the worker's answers: the fastest of ours."""
    rows = []
    for path in paths:
        reports = {}
        for file, content in sorted(answers.items()):
            task, _, name = file.removesuffix(".json").partition("--")
            if task == path.stem and "report" in content:
                reports[name.replace("_", " ")] = from_json(EvalReport, json.dumps(content["report"]))
        ours = {name: each for name, each in reports.items() if name not in (EAGER, COMPILED) and each.timing}
        if ours:
            best = min(ours, key=lambda name: ours[name].timing.median_ms)
            reports[OURS] = ours[best]
            wanted = {name: reports[name] for name in (EAGER, COMPILED, OURS) if name in reports}
            wrong = [name for name, each in reports.items() if each.timing is None]
            rows.append(row(path.stem, wanted, commit=commit, attempts=len(reports), moves=best, failed=wrong))
    return rows


async def local_device() -> dict[str, Any]:
    async with open_evaluator(Settings().evaluation) as evaluator:
        return dict(json.loads(to_json(await evaluator.device())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=12)
    parser.add_argument("--tasks", nargs="+", default=[path.stem for path in TASKS])
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no further task after this long")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "benchmark-playbook")
    parser.add_argument("--target", choices=sorted(LANGUAGES), default="cpu")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write requests for a worker; judge nothing")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="read a worker's answers, or those of scripts/gpu")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/playbook-TARGET.json")
    given = parser.parse_args()
    paths = [path for path in TASKS if path.stem in given.tasks]
    if given.write:
        write(given.write, given.target, paths)
        print(f"Now there: python -m stark_worker serve {given.write} --target {given.target}")
        return
    end = time.monotonic() + 60 * given.minutes
    if given.collect:
        found = answers_in(given.collect)
        rows, device = collect(found["answers"], paths, found["commit"]), found["device"]
    else:
        rows = [measure(p, given.folder / p.stem, given.attempts) for p in paths if time.monotonic() < end]
        device = asyncio.run(local_device())
    means = show(rows)
    if given.save:
        found = {"device": device, **means, "rows": rows}
        record.write(record.result_file("playbook", given.target), record.facts() | found)


if __name__ == "__main__":
    main()
