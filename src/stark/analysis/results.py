"""Reads the runs of a store for analysis: one record per run, without prompts or sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from stark.analysis.metrics import RunMetrics, compute_metrics
from stark.core.bound import SpeedOfLight, judged_speed_of_light
from stark.core.errors import StoreError
from stark.core.interfaces import StoreReader
from stark.core.records import Ending, EndReason, Final, Kind, RoleUsage, RunRecord
from stark.core.tree import ROOT_ID, Judgement, Role
from stark.store.open import open_store
from stark_worker.protocol.baselines import EAGER
from stark_worker.protocol.bound import Bound
from stark_worker.protocol.report import DeviceFacts, Phases, sum_phases
from stark_worker.protocol.request import Precision, Score

NOT_COUNTED = frozenset({EndReason.FAULT, EndReason.STOPPED, EndReason.BROKEN_TASK, EndReason.DEGENERATE_TASK})

Timed = Mapping[tuple[str, str], Sequence[Judgement]]  # baselines by task and score


@dataclass(frozen=True)
class RunResult:
    """One run. ``metrics`` is None if the reference was never measured; ``baselines`` are milliseconds by name.

    ``method`` and ``score`` are the labels of tables; ``base_method`` and ``rules`` are the plain facts behind them.
    ``final`` is the confirmation of the winner; ``failed_baselines`` holds the reason why a baseline has no time.
    """

    run_id: str
    kind: str
    task: str
    level: int | None
    number: int | None
    method: str
    base_method: str
    seed: int
    score: str
    rules: Score
    budget: int
    metrics: RunMetrics | None
    ending: Ending | None
    degenerate: str
    usage: Mapping[Role, RoleUsage]
    evaluation_s: float
    wall_s: float
    judgements: tuple[Judgement, ...] = field(repr=False)
    baselines: Mapping[str, float] = field(default_factory=dict)
    device: str = ""
    models: tuple[str, ...] = ()  # that answered, each once
    final: Final | None = field(default=None, repr=False)
    failed_baselines: Mapping[str, str] = field(default_factory=dict)
    phases_s: Phases = field(default_factory=Phases)
    is_benchmarked: bool = False  # made by a benchmark, which stores an ending for each of its runs
    bound: Bound | None = field(default=None, repr=False)  # of the task, on the device of the run

    @property
    def complete(self) -> bool:
        """True if the run counts: it used up one of its limits.

        A benchmark's run without an ending was killed. A search with fewer attempts than its budget is being extended.
        """
        if self.metrics is None or (self.ending is None and self.is_benchmarked):
            return False
        reason = self.ending.reason if self.ending else EndReason.DONE
        if reason == EndReason.DONE and self.kind == Kind.SEARCH:
            return self.metrics.attempts >= self.budget
        return reason not in NOT_COUNTED

    @property
    def is_missing(self) -> bool:
        """True if another tool made no kernel for the task."""
        return self.kind == Kind.JUDGED and self.metrics is not None and not self.metrics.attempts

    @property
    def allowed_attempts(self) -> int:
        """The budget of attempts, or the attempts made if another limit or another tool decided."""
        made = self.metrics.attempts if self.metrics is not None else 0
        ended_early = self.kind == Kind.SEARCH and self.ending is not None and self.ending.reason != EndReason.DONE
        return made if self.kind == Kind.JUDGED or ended_early else max(made, self.budget)

    @property
    def light(self) -> SpeedOfLight | None:
        """The bound of the task that counts, given the search; None if none is stored."""
        return judged_speed_of_light(self.bound, self.judgements)

    def speedup(self, baseline: str = EAGER) -> float | None:
        """Speed of the winner over a baseline; None for a failed task.

        Winner and baseline were each timed in turns with eager, so their ratios to eager are combined.
        """
        if self.metrics is None or self.metrics.speedup is None:
            return None
        return self.metrics.speedup * (self.baselines[baseline] / self.baselines[EAGER])


def read_results(folder: Path) -> list[RunResult]:
    """Read every run of a store. Baselines are added to the runs on the same task by the same score."""
    with closing(open_store(folder, write=False)) as store:
        records = store.runs()
        timed = {
            _baseline_key(record): _read_baselines(store, record) for record in records if record.kind == Kind.BASELINES
        }
        found = {
            record.id: _read_result(store, record, timed, store.judgements(record.id), store.final(record.id))
            for record in records
            if record.kind not in (Kind.BASELINES, Kind.RESCORED)
        }
        searches = {_search_key(record): found[record.id] for record in records if record.kind == Kind.SEARCH}
        winners = [
            _read_rescored(store, record, timed, searches.get(_search_key(record)))
            for record in records
            if record.kind == Kind.RESCORED
        ]
    results = [*found.values(), *winners]
    if not results:
        raise StoreError(f"The store in {folder} holds no run yet.", "Continue with stark bench.")
    # Not in the order in which they began: the same runs give the same report.
    return sorted(results, key=lambda run: (run.level or 0, run.number or 0, run.run_id))


def _read_rescored(store: StoreReader, record: RunRecord, timed: Timed, search: RunResult | None) -> RunResult:
    """A winner by the score that did not drive its search.

    The confirmation of the search covers both scores, so it decides here too. A winner that failed it by the driving
    score counts by neither. Of several winners (after an extension), the last one counts.
    """
    root, winners = _split_root(store.judgements(record.id))
    final = search.final if search else None
    if final and final.holds:
        final = replace(final, score=Score(record.settings["evaluation"]["score"]))
    result = _read_result(store, record, timed, [*root, *winners[-1:]], final)
    if search is None:
        return result
    return replace(result, budget=search.allowed_attempts, evaluation_s=0.0 if final else result.evaluation_s)


def _search_key(record: RunRecord) -> tuple[str, str, int, Score]:
    """Key shared by a search and its rescored winner: task, method, seed and the score that drove it."""
    score = Score(record.settings["evaluation"]["score"])
    if record.kind == Kind.RESCORED:
        (score,) = set(Score) - {score}
    return record.task.name, record.method, int(record.settings["seed"]), score


def _read_result(
    store: StoreReader, record: RunRecord, timed: Timed, judgements: Sequence[Judgement], final: Final | None
) -> RunResult:
    root = next((each for each in judgements if each.id == ROOT_ID), None)
    measured = compute_metrics(judgements, final) if root is not None and root.runtime_ms is not None else None
    ending = store.ending(record.id)
    refused = ending.message if ending is not None and ending.reason == EndReason.DEGENERATE_TASK else ""
    usage, baselines = store.usage(record.id), timed.get(_baseline_key(record), [])
    reference = store.node(record.id, ROOT_ID) if measured else None
    return RunResult(
        run_id=record.id,
        kind=record.kind,
        task=record.task.name,
        level=record.task.level,
        number=record.task.number,
        method=record.method,
        base_method=record.labels.get("system") or str(record.settings["method"]),
        seed=int(record.settings["seed"]),
        score=_format_score(record),
        rules=Score(record.settings["evaluation"]["score"]),
        budget=int(record.settings["budget"]["attempts"]),
        metrics=measured,
        ending=ending,
        degenerate=(root.degenerate if root is not None else "") or refused,
        usage=usage,
        evaluation_s=_evaluation_s(judgements, final),
        phases_s=_sum_phases(judgements, final),
        wall_s=store.seconds(record.id),
        judgements=tuple(judgements),
        baselines={**_scale_baselines(baselines, measured.root_ms), EAGER: measured.root_ms} if measured else {},
        device=_format_device(record.device),
        models=tuple(store.models(record.id)),  # not from the settings: a resumed run may use another one
        final=final,
        failed_baselines={each.label: each.outcome.replace("_", " ") for each in baselines if each.runtime_ms is None},
        is_benchmarked="kind" in record.labels,
        bound=reference.report.bound if reference else None,
    )


def _evaluation_s(judgements: Sequence[Judgement], final: Final | None) -> float:
    """Seconds spent judging a run's candidates and its confirmation, without the reference, which many runs share."""
    finals_s = final.verified.duration_s + final.kernelbench.duration_s if final else 0.0
    return sum(each.duration_s for each in judgements if each.id != ROOT_ID) + finals_s


def _sum_phases(judgements: Sequence[Judgement], final: Final | None) -> Phases:
    """The phases of what ``_evaluation_s`` counts, as far as they were stored."""
    finals = [final.verified.phases_s, final.kernelbench.phases_s] if final else []
    return sum_phases([*(each.phases_s for each in judgements if each.id != ROOT_ID), *finals])


def _read_baselines(store: StoreReader, record: RunRecord) -> list[Judgement]:
    return _split_root(store.judgements(record.id))[1]


def _split_root(judgements: Sequence[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """The root, if it has landed, and the others in landing order."""
    return [each for each in judgements if each.id == ROOT_ID], [each for each in judgements if each.id != ROOT_ID]


def _scale_baselines(baselines: Sequence[Judgement], root_ms: float) -> dict[str, float]:
    """Baseline times scaled to the run's own reference, by their ratio to eager in the same turns.

    Baselines of earlier versions were timed alone and are not scaled.
    """
    timed = [(each.label, each.runtime_ms, each.opponent_ms) for each in baselines if each.runtime_ms is not None]
    return {label: own_ms / opponent_ms * root_ms if opponent_ms else own_ms for label, own_ms, opponent_ms in timed}


def _format_device(facts: DeviceFacts) -> str:
    """The device and its tools: another torch gives other times."""
    tools = ", ".join(f"{name} {version}" for name, version in facts.tools.items())
    return f"{facts.name} ({tools})" if tools else facts.name


def _baseline_key(record: RunRecord) -> tuple[str, str]:
    """Key shared by a run and its baselines."""
    return record.task.name, _format_score(record)


def _format_score(record: RunRecord) -> str:
    """The score's label: the rules, and every setting that differs from their default.

    Runs of earlier versions lack some settings; these had today's defaults.
    """
    evaluation = record.settings["evaluation"]
    version = evaluation["kernelbench_version"]
    score = f"kernelbench {version}" if evaluation["score"] == "kernelbench" else str(evaluation["score"])
    precision = evaluation.get("precision", Precision.FP32)
    words = (score, "TF32" if evaluation.get("tf32") else "", "" if precision == Precision.FP32 else precision)
    tolerances = (f"{name} {evaluation[name]:g}" for name in ("atol", "rtol") if evaluation.get(name) is not None)
    return ", ".join([" ".join(filter(None, words)), *tolerances])
