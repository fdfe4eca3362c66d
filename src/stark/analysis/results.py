"""What a store holds, ready to be counted: one record per run, without a prompt or a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from stark.analysis.metrics import RunMetrics, measure
from stark.core.errors import StoreError
from stark.core.interfaces import Store
from stark.core.records import (
    BROKEN_TASK,
    DEGENERATE_TASK,
    DONE,
    FAULT,
    STOPPED,
    Ending,
    Final,
    Kind,
    RoleUsage,
    RunRecord,
)
from stark.core.tree import ROOT_ID, Judgement, Role
from stark.store.open import open_store
from stark_worker.protocol.baselines import EAGER
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Precision, Score

NOT_COUNTED = frozenset({FAULT, STOPPED, BROKEN_TASK, DEGENERATE_TASK})

Timed = Mapping[tuple[str, str], Sequence[Judgement]]  # baselines by task and score


@dataclass(frozen=True)
class RunResult:
    """One run. ``baselines`` are milliseconds by name; ``metrics`` is None where the reference was never measured.
    ``final`` is the last word on its winner, where one was spoken; ``failed_baselines`` is why others have no time."""

    run_id: str
    kind: str
    task: str
    level: int | None
    number: int | None
    method: str
    seed: int
    score: str
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
    models: tuple[str, ...] = ()  # those that were asked, none twice
    final: Final | None = field(default=None, repr=False)
    failed_baselines: Mapping[str, str] = field(default_factory=dict)
    benched: bool = False  # whether a benchmark made it, which notes how each of its runs ended

    @property
    def complete(self) -> bool:
        """Whether it counts: it used its budget up, whichever limit that was. A single run of an earlier version has no
        noted ending; one of a benchmark without was killed, and one that ended with fewer attempts than it has now is
        being extended."""
        if self.metrics is None or (self.ending is None and self.benched):
            return False
        reason = self.ending.reason if self.ending else DONE
        if reason == DONE and self.kind == Kind.SEARCH:
            return self.metrics.attempts >= self.budget
        return reason not in NOT_COUNTED

    @property
    def missing(self) -> bool:
        """Whether another tool was to make a kernel for the task and made none."""
        return self.kind == Kind.JUDGED and self.metrics is not None and not self.metrics.attempts

    @property
    def allowed(self) -> int:
        """How many attempts it had: those it made, where another limit ended it or another tool has made them."""
        made = self.metrics.attempts if self.metrics is not None else 0
        ended_early = self.kind == Kind.SEARCH and self.ending is not None and self.ending.reason != DONE
        return made if self.kind == Kind.JUDGED or ended_early else max(made, self.budget)

    def speedup(self, baseline: str = EAGER) -> float | None:
        """How many times as fast as a baseline the winner is; None for a failed task. A final has eager beside the
        winner, and so has another baseline, which counts by how it compares with that."""
        if self.metrics is None or self.metrics.speedup is None:
            return None
        return self.metrics.speedup * (self.baselines[baseline] / self.baselines[EAGER])


def read_results(folder: Path) -> list[RunResult]:
    """Every run of a store but the baselines, which are handed to the runs on the same task by the same score."""
    with closing(open_store(folder, write=False)) as store:
        records = store.runs()
        timed = {_place(record): _baselines(store, record) for record in records if _kind(record) == Kind.BASELINES}
        found = {
            record.id: _result(store, record, timed, store.judgements(record.id), store.final(record.id))
            for record in records
            if _kind(record) not in (Kind.BASELINES, Kind.RESCORED)
        }
        searches = {_search(record): found[record.id] for record in records if _kind(record) == Kind.SEARCH}
        winners = [
            _rescored(store, record, timed, searches.get(_search(record)))
            for record in records
            if _kind(record) == Kind.RESCORED
        ]
    results = [*found.values(), *winners]
    if not results:
        raise StoreError(f"The store in {folder} holds no run yet.", "Let stark bench go on.")
    # not in the order in which they happened to begin: the same runs give the same report
    return sorted(results, key=lambda run: (run.level or 0, run.number or 0, run.run_id))


def _rescored(store: Store, record: RunRecord, timed: Timed, search: RunResult | None) -> RunResult:
    """A winner by the score that did not drive its search, whose attempts it had. The final of the search was judged
    by both scores, so it has the last word here too; what did not hold by the score of the search is no winner by any.
    Winners from before an extension are there as well: the last one counts."""
    root, winners = _split(store.judgements(record.id))
    final = search.final if search else None
    if final and final.holds:
        final = replace(final, score=Score(record.settings["evaluation"]["score"]))
    result = _result(store, record, timed, [*root, *winners[-1:]], final)
    if search is None:
        return result
    return replace(result, budget=search.allowed, evaluation_s=0.0 if final else result.evaluation_s)


def _search(record: RunRecord) -> tuple[str, str, int, Score]:
    """What a search and its winner by the other score have in common: task, method, seed, and what drove it."""
    score = Score(record.settings["evaluation"]["score"])
    if _kind(record) == Kind.RESCORED:
        (score,) = set(Score) - {score}
    return record.task.name, _method(record), int(record.settings["seed"]), score


def _result(
    store: Store, record: RunRecord, timed: Timed, judgements: Sequence[Judgement], final: Final | None
) -> RunResult:
    root = next((each for each in judgements if each.id == ROOT_ID), None)
    measured = measure(judgements, final) if root is not None and root.runtime_ms is not None else None
    ending = store.ending(record.id)
    refused = ending.message if ending is not None and ending.reason == DEGENERATE_TASK else ""
    usage, baselines = store.usage(record.id), timed.get(_place(record), [])
    return RunResult(
        run_id=record.id,
        kind=_kind(record),
        task=record.task.name,
        level=record.task.level,
        number=record.task.number,
        method=_method(record),
        seed=int(record.settings["seed"]),
        score=_score(record),
        budget=int(record.settings["budget"]["attempts"]),
        metrics=measured,
        ending=ending,
        degenerate=(root.degenerate if root is not None else "") or refused,
        usage=usage,
        evaluation_s=_evaluation_s(judgements, final),
        wall_s=store.seconds(record.id),
        judgements=tuple(judgements),
        baselines={**_times(baselines, measured.root_ms), EAGER: measured.root_ms} if measured else {},
        device=_device(record.device),
        models=tuple(store.models(record.id)),  # and not those it has now: a run may go on with another one
        final=final,
        failed_baselines={each.label: each.outcome.replace("_", " ") for each in baselines if each.runtime_ms is None},
        benched="kind" in record.labels,
    )


def _evaluation_s(judgements: Sequence[Judgement], final: Final | None) -> float:
    """How long a run's own candidates were judged, and its winner by both scores; not the reference, which many runs
    share."""
    finals_s = final.verified.duration_s + final.kernelbench.duration_s if final else 0.0
    return sum(each.duration_s for each in judgements if each.id != ROOT_ID) + finals_s


def _baselines(store: Store, record: RunRecord) -> list[Judgement]:
    return _split(store.judgements(record.id))[1]


def _split(judgements: Sequence[Judgement]) -> tuple[list[Judgement], list[Judgement]]:
    """The root, where it has landed, and the others in landing order."""
    return [each for each in judgements if each.id == ROOT_ID], [each for each in judgements if each.id != ROOT_ID]


def _times(baselines: Sequence[Judgement], root_ms: float) -> dict[str, float]:
    """What they would have taken when the reference of a run was timed: of two times of other days the ratio says more
    about the days. Those of earlier versions were timed alone, and count as they are."""
    timed = [(each.label, each.runtime_ms, each.rival_ms) for each in baselines if each.runtime_ms is not None]
    return {label: own_ms / rival_ms * root_ms if rival_ms else own_ms for label, own_ms, rival_ms in timed}


def _device(facts: DeviceFacts) -> str:
    """What was measured on and by: another torch makes other times."""
    tools = ", ".join(f"{name} {version}" for name, version in facts.tools.items())
    return f"{facts.name} ({tools})" if tools else facts.name


def _kind(record: RunRecord) -> str:
    return record.labels.get("kind", Kind.SEARCH)


def _place(record: RunRecord) -> tuple[str, str]:
    """What a run and its baselines have in common."""
    return record.task.name, _score(record)


def _method(record: RunRecord) -> str:
    """What a row of a table is called: the method, with the switch that changes it."""
    if system := record.labels.get("system"):
        return system
    switch = record.labels.get("switch")
    return f"{record.settings['method']} ({switch})" if switch else str(record.settings["method"])


def _score(record: RunRecord) -> str:
    """By which rules a run was judged, with whatever of them is not the rules' own: it makes other speeds and verdicts,
    so it is another score. Runs of earlier versions lack some settings, which were as they are by default."""
    evaluation = record.settings["evaluation"]
    version = evaluation["kernelbench_version"]
    score = f"kernelbench {version}" if evaluation["score"] == "kernelbench" else str(evaluation["score"])
    precision = evaluation.get("precision", Precision.FP32)
    words = (score, "TF32" if evaluation.get("tf32") else "", "" if precision == Precision.FP32 else precision)
    tolerances = (f"{name} {evaluation[name]:g}" for name in ("atol", "rtol") if evaluation.get(name) is not None)
    return ", ".join([" ".join(filter(None, words)), *tolerances])
