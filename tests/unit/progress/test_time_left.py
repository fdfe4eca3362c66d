"""The time left, simulated: benchmarks whose real course is known, asked for the time left at every minute."""

from __future__ import annotations

import heapq
import random
from itertools import count

import pytest

from stark.core.records import Event, EventKind, Kind
from stark.core.steps import Step, Work
from stark.core.tree import Attempt, Node, Role
from stark.progress.board import Board, RunPlan
from stark.progress.time_left import ASSUMED, Pace, RunLeft, Seconds, estimate_seconds
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport, Timing
from stark_worker.protocol.request import Target


class Simulation:
    """A benchmark on one lane. ``draw`` varies durations around their means, and a run's attempts fly in parallel."""

    def __init__(self, plans, means, parallel, draw, seed=0):
        self.board, self.means, self.draw, self.random = Board(parallel), means, draw, random.Random(seed)
        self.queue, self.order = [], count()
        self.lane_free_at, self.now, self.guesses = 0.0, 0.0, []
        self.waiting = list(plans)
        for plan in plans:
            self.board.add(plan)
        for _ in range(parallel):
            self.begin_run()
        while self.queue:
            at, _, act = heapq.heappop(self.queue)
            self.tick(at)
            act()
        self.total = self.now

    def tick(self, at):
        while self.now + 5 < at:  # a view looks every five seconds
            self.now += 5
            self.guesses.append((self.now, self.board.seconds_left(self.now)))
        self.now = at

    def after(self, seconds, act):
        heapq.heappush(self.queue, (self.now + seconds, next(self.order), act))

    def send(self, plan, kind, number, **facts):
        self.board.apply(Event(kind, number, run=plan.run, **facts), self.now)

    def begin_run(self):
        if self.waiting:
            plan = self.waiting.pop(0)
            self.do(plan, Work.REFERENCE, 0, lambda: self.begun(plan))

    def begun(self, plan):
        if plan.kind is Kind.BASELINES:
            return self.judge_given(plan, 1)
        numbers = iter(range(1, plan.attempts + 1))
        flying = [0]

        def fly():
            flying[0] -= 1
            launch()

        def launch():
            while flying[0] < plan.jobs and (number := next(numbers, None)):
                flying[0] += 1
                self.do(plan, Work.ATTEMPT, number, fly)
            if not flying[0]:
                self.do(plan, Work.FINAL, 1, lambda: self.end(plan))

        launch()

    def judge_given(self, plan, place):
        if place > len(plan.given):
            return self.end(plan)
        self.do(plan, plan.given[place - 1], place, lambda: self.judge_given(plan, place + 1))

    def end(self, plan):
        self.send(plan, EventKind.ENDED, None)
        self.begin_run()

    def do(self, plan, work, number, then):
        mean = self.means[work]
        own, lane = mean.own * self.draw(self.random, work, False), mean.lane * self.draw(self.random, work, True)
        step = Step.PLANNING if work is Work.ATTEMPT else Step.EVALUATING
        self.send(plan, EventKind.BEGUN, number, work=work, step=step)

        def wait():
            self.send(plan, EventKind.EVALUATING, number, work=work, step=Step.WAITING)
            begins = max(self.now, self.lane_free_at)
            self.lane_free_at = begins + lane
            self.after(begins - self.now, judge)

        def judge():
            self.send(plan, EventKind.EVALUATING, number, work=work, step=Step.JUDGING)
            self.after(lane, land)

        def land():
            if work is Work.FINAL:
                self.send(plan, EventKind.CONFIRMED, number)
            else:
                report = EvalReport(Outcome.OK, Timing((1.0,)))
                role = {Work.REFERENCE: Role.REFERENCE, Work.ATTEMPT: Role.CODE}.get(work, Role.GIVEN)
                node = Node(number, 0 if number else None, Attempt(role, "x", report))
                self.send(plan, EventKind.LANDED, number, node=node)
            then()

        self.after(own, wait)


def searches(number, attempts, jobs=1, target=Target.CPU):
    return [
        RunPlan(f"run {place}", f"task {place}", "stark", "verified", target=target, attempts=attempts, jobs=jobs)
        for place in range(number)
    ]


def baselines(number, target=Target.CPU):
    given = (Work.COMPILE, Work.AUTOTUNE)
    return [
        RunPlan(f"baselines {place}", f"task {place}", "", "verified", kind=Kind.BASELINES, target=target, given=given)
        for place in range(number)
    ]


def vary_evenly(rng, work, in_lane):
    """Within a quarter of the mean."""
    return rng.uniform(0.75, 1.25)


def vary_skewed(rng, work, in_lane):
    """A few pieces take much longer. A bench of the playbook on two busy cores: 0.4 for attempts, 0.2 for the rest."""
    return rng.lognormvariate(0.0, 0.4 if work is Work.ATTEMPT else 0.2)


def fail_early(rng, work, in_lane):
    """A third of the attempts do not compile, so they leave the lane soon. Their model calls take as long as others."""
    return rng.choice((0.3, 1.35, 1.35)) if work is Work.ATTEMPT and in_lane else rng.uniform(0.75, 1.25)


def means_of(machine=1.0, attempt=1.0, final=1.0):
    """The means on a machine that is so many times as slow as assumed, with attempts and finals that differ more."""
    factors = {Work.ATTEMPT: attempt, Work.FINAL: final}
    means = {work: each.scaled(0.0, machine * factors.get(work, 1.0)) for work, each in ASSUMED[Target.CPU].items()}
    return {**means, Work.ATTEMPT: means[Work.ATTEMPT] + Seconds(own=0.5)}  # the playbook answers at once


GRIDS = [(searches(3, 4) + baselines(2), 16), (searches(4, 3) + baselines(2), 16), (searches(3, 8, jobs=4), 2)]
LLM = {**ASSUMED[Target.CUDA], Work.ATTEMPT: Seconds(45.0, 4.0), Work.FINAL: Seconds(40.0, 14.0)}
SHOWN_S = 30.0  # views show minutes


def share_of_wrong_guesses(grids, means, draw, seeds=range(3)):
    """The share of guesses from the second minute on that are off by over 30 % of the time left, or half a minute."""
    asked = []
    for plans, parallel in grids:
        for seed in seeds:
            simulation = Simulation(plans, means, parallel, draw, seed)
            assert 300 < simulation.total < 1800
            asked += [(guess, simulation.total - at) for at, guess in simulation.guesses if at >= 120]
    wrong = [guess for guess, left in asked if guess is None or abs(guess - left) > max(0.3 * left, SHOWN_S)]
    return len(wrong) / len(asked)


@pytest.mark.parametrize("draw", [vary_evenly, fail_early])
@pytest.mark.parametrize("means", [means_of(machine=0.7), means_of(machine=2.0), means_of(attempt=0.6)])
def test_from_the_second_minute_on_it_is_right_within_30_percent(means, draw):
    assert share_of_wrong_guesses(GRIDS, means, draw) <= 0.1


@pytest.mark.parametrize(
    ("means", "draw"),
    [
        (means_of(), vary_skewed),
        (means_of(machine=2.0), vary_skewed),
        (means_of(attempt=1.5), fail_early),
        (means_of(final=0.7), vary_evenly),  # the last third of all work is not seen until late
        (means_of(final=1.4), vary_evenly),
    ],
)
def test_it_is_mostly_right_if_durations_are_wild_or_finals_differ_from_what_is_assumed(means, draw):
    assert share_of_wrong_guesses(GRIDS, means, draw) <= 0.25


@pytest.mark.parametrize("draw", [vary_evenly, vary_skewed, fail_early])
def test_it_is_right_where_the_models_are_the_slow_part(draw):
    assert share_of_wrong_guesses([(searches(12, 8, 2, Target.CUDA), 8)], LLM, draw, range(6)) <= 0.12


def test_nothing_is_guessed_before_anything_is_done():
    assert estimate_seconds(Pace(ASSUMED[Target.CPU]), [RunLeft({Work.ATTEMPT: 3})], 1, 1, 5.0) is None


def test_the_longest_run_is_a_floor_however_many_run_in_parallel():
    pace = Pace(ASSUMED[Target.CUDA])
    pace.add(Work.ATTEMPT, Seconds(50.0, 1.0))
    left = [RunLeft({Work.ATTEMPT: 10}), RunLeft({Work.ATTEMPT: 1})]
    assert (estimate_seconds(pace, left, 16, 8, 51.0) or 0) >= 10 * 50


def test_attempts_in_parallel_take_less_time():
    pace = Pace(ASSUMED[Target.CUDA])
    pace.add(Work.ATTEMPT, Seconds(50.0, 1.0))
    one, four = (estimate_seconds(pace, [RunLeft({Work.ATTEMPT: 8}, jobs=jobs)], 1, 1, 0.0) for jobs in (1, 4))
    assert (one or 0) > 1.9 * (four or 0)
