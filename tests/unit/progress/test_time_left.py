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
    """A benchmark on one lane. Durations vary by a quarter around their means, and a run's attempts fly in parallel."""

    def __init__(self, plans, means, parallel, seed=0):
        self.board, self.means, self.random = Board(parallel), means, random.Random(seed)
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
        own, lane = (each * self.random.uniform(0.75, 1.25) for each in (mean.own, mean.lane))
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


def share_of_wrong_guesses(simulation, after_s=120.0):
    """The share of guesses from the second minute on that are off by over 30 % of the time left, or over one final."""
    asked = [(guess, simulation.total - at) for at, guess in simulation.guesses if at >= after_s]
    assert len(asked) > 20
    wrong = [guess for guess, left in asked if guess is None or abs(guess - left) > max(0.3 * left, ONE_FINAL_S)]
    return len(wrong) / len(asked)


ONE_FINAL_S = 75.0  # nothing can tell how long the last one takes
PLAYBOOK = {**ASSUMED[Target.CPU], Work.ATTEMPT: Seconds(0.5, 14.0)}  # a little faster than assumed
SLOW = {work: Seconds(each.own, 1.4 * each.lane) for work, each in PLAYBOOK.items()}
LLM = {**ASSUMED[Target.CUDA], Work.ATTEMPT: Seconds(45.0, 4.0), Work.FINAL: Seconds(40.0, 14.0)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("plans", "means", "parallel"),
    [
        (searches(3, 4) + baselines(2), PLAYBOOK, 16),  # about seven minutes, all on one lane
        (searches(3, 6) + baselines(3), SLOW, 4),
        (searches(3, 8, jobs=4), SLOW, 2),
        (searches(12, 8, 2, Target.CUDA), LLM, 8),  # the models are the slow part
    ],
    ids=["lane", "slow lane", "few runs", "models"],
)
def test_from_the_second_minute_on_it_is_right_within_30_percent(plans, means, parallel, seed):
    simulation = Simulation(plans, means, parallel, seed)
    assert 240 < simulation.total < 1200
    assert share_of_wrong_guesses(simulation) <= 0.03


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
