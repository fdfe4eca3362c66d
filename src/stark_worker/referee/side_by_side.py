"""A candidate and the rival it is compared with, where there is one: timed in turns, and what counts of either's times.

A rival is trusted no more than a candidate, but what it does is no fault of the candidate's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from stark_worker import by_itself
from stark_worker.by_itself import Seen
from stark_worker.company import Company, told
from stark_worker.intervals import median_interval
from stark_worker.protocol import BUSY, EvalRequest, Timing
from stark_worker.reference import Reference
from stark_worker.sampling import measure, no_fault_of_the_candidate
from stark_worker.timing import AGREEMENT, Sample
from stark_worker.trial import Trial


def rival_of(request: EvalRequest) -> EvalRequest:
    """What is asked about the rival: the same, of another source."""
    assert request.rival_source is not None
    return replace(request, candidate_source=request.rival_source, entry=request.rival_entry)


def prepare(trial: Trial, rivals: Sequence[Trial]) -> None:
    """Who is compared with is prepared before there is anybody to disturb it, and looks around once there is."""
    with no_fault_of_the_candidate():
        for rival in rivals:
            rival.prepare()
    trial.prepare()
    with no_fault_of_the_candidate():
        for rival in rivals:
            rival.begin_anew()
            trial.agree_with(rival)


def look_at(trials: Sequence[Trial], reference: Reference) -> list[Seen]:
    """Calls in a row, and beside a rival also by themselves; a rival's on a GPU not before it is alone."""
    company = _company(trials)
    in_a_row = measure(trials, reference)
    singles: list[list[Sample]] = [[] for _ in trials]
    if len(trials) > 1 and trials[0].burst > 1:
        called = trials if trials[0].on_host else trials[:1]
        singles[: len(called)] = by_itself.call(called, reference)
    if company and (busy := told(company.cores())):
        trials[0].checks[BUSY] = busy
    confirmed = list(map(Trial.confirms, trials, in_a_row))
    if _alike(trials):  # otherwise one's clock would be compared with another's
        confirmed = [all(confirmed)] * len(confirmed)
    return list(map(Seen, trials, in_a_row, singles, confirmed))


def timings(seen: Sequence[Seen]) -> list[Timing]:
    """What each took, as it was seen beside the other."""
    alike = _alike([each.trial for each in seen])
    found: list[Timing] = []
    for each in seen:
        with no_fault_of_the_candidate() if found else contextlib.nullcontext():
            found.append(each.trial.timing(each.in_a_row, each.confirmed, alike))
    return found


def look_at_alone(rival: Seen, mine: Seen, reference: Reference) -> Seen:
    """The rival once more, now that the candidate is gone; by itself where that was seen, too."""
    rival.trial.begin_anew()
    (in_a_row,) = measure([rival.trial], reference)
    singles = by_itself.call([rival.trial], reference)[0] if mine.by_itself else []
    return rival._replace(in_a_row=in_a_row, by_itself=singles)


def timed_alone(rival: Seen, beside: Timing) -> tuple[Timing, str]:
    """A rival's times with nobody to hold it up, as it was seen then, and what is to be said of it.

    On a GPU work can go on while the process that launched it is stopped.
    """
    alone = rival.trial.timing(rival.in_a_row, rival.confirmed)
    if beside.median_ms <= (1.0 + AGREEMENT) * median_interval(alone.samples_ms)[1]:
        return beside, "took no longer beside the candidate than without it"
    times = beside.median_ms / alone.median_ms
    text = f"took {times:.2f} times as long beside the candidate as without it, and its times are those without it"
    return replace(beside, samples_ms=tuple(ms / times for ms in beside.samples_ms)), text


def _company(trials: Sequence[Trial]) -> Company | None:
    """Who computes beside those who are timed on the host, where they can be told from others."""
    candidates = [trial.candidate for trial in trials if trial.on_host and trial.candidate.visible]
    if len(candidates) < len(trials):
        return None
    return Company(lambda: time.process_time() + sum(candidate.computed_s() for candidate in candidates))


def _alike(trials: Sequence[Trial]) -> bool:
    """Whether their bursts are of one length."""
    return len({trial.burst for trial in trials}) == 1
