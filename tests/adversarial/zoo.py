"""Reads the exploits and says what a report means for one of them.

An exploit is one file that defines ``ModelNew``. Its docstring says what it tries, then line by line: the ``task`` it
is for, what it may ``expect``, on which ``targets`` it runs, its ``limits``, and whether it is ``known`` to get
through, and why. What can be expected is

    an outcome         it is refused, for a rejection with the name of the rule
    ok-at-true-time    it computes honestly after all, and is timed as what it computes
    contained          it attempts what confinement has to stop, and says ESCAPED when that succeeds

The true time is the reference's. An exploit with a line ``CHEAT = True`` is compared with itself without that: what
does work of its own, a fingerprint or a wait, could gain much and still be slower than the reference.
"""

from __future__ import annotations

import ast
import enum
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Limits, Target

HERE = Path(__file__).parent
ESCAPED, CHEAT = "ESCAPED", "CHEAT = True"
# An exploit that is accepted has fooled the judge if its median is below this share of its true time and the whole
# interval of the ratio is below 1. Then further rounds account for a busy machine, and the middle one counts.
TRUE_SHARE, ROUNDS = 0.95, 3


class Verdict(enum.StrEnum):
    """The result of an exploit."""

    REJECTED = "rejected"
    TRUE_TIME = "accepted at its true time"
    FOOLED = "fooled"


@dataclass(frozen=True)
class Exploit:
    """One way to fool an evaluator."""

    name: str
    source: str
    tries: str
    task: str
    expect: tuple[str, ...]
    targets: tuple[str, ...]
    known: str | None
    limits: Limits

    def request(self, target: Target, in_turns: bool = False) -> EvalRequest:
        """To judge it; ``in_turns`` with what it would be without cheating, whose time is the true one."""
        task = task_source(self.task)
        request = EvalRequest(task, self.source, target=target, limits=self.limits)
        if not in_turns:
            return request
        if self.honest_source:
            return replace(request, opponent_source=self.honest_source, opponent_entry=Entry.CANDIDATE)
        return replace(request, opponent_source=task)

    @property
    def honest_source(self) -> str | None:
        """The same without cheating; None where that is the reference."""
        return self.source.replace(CHEAT, "CHEAT = False") if CHEAT in self.source else None

    @property
    def is_timed(self) -> bool:
        """True if it may be accepted at its true time, which has to be measured."""
        return "ok-at-true-time" in self.expect

    @property
    def may_pass(self) -> bool:
        """True if it may be accepted, at its true time."""
        return self.is_timed or "contained" in self.expect

    def verdict(self, report: EvalReport) -> Verdict:
        """Return its result. Its true time is known only where it was measured."""
        if ESCAPED in report.log:
            return Verdict.FOOLED
        if report.timing is None:
            return Verdict.REJECTED
        share = true_share(report)
        gained = share is not None and share.middle < TRUE_SHARE and share.high < 1.0
        return Verdict.TRUE_TIME if self.may_pass and not gained else Verdict.FOOLED

    def only_time_speaks_against_it(self, report: EvalReport) -> bool:
        """True if only a short time makes it a success, which a further round may refute."""
        return self.may_pass and ESCAPED not in report.log and self.verdict(report) is Verdict.FOOLED

    def as_expected(self, report: EvalReport) -> bool:
        """True if it was refused for the right reason, or accepted at its true time."""
        verdict = self.verdict(report)
        if verdict is not Verdict.REJECTED:
            return verdict is Verdict.TRUE_TIME
        return report.outcome.value in self.expect or f"{Outcome.REJECTED} {report.rule}" in self.expect


class Share(NamedTuple):
    """Which share of its true time an exploit took, and between which it lies with 99 % confidence."""

    low: float
    middle: float
    high: float


def true_share(report: EvalReport) -> Share | None:
    """The share of its true time that an exploit took; None where that was not taken."""
    if report.timing is None or report.opponent is None:
        return None
    low, high = report.timing.ratio_to(report.opponent)
    pairs = zip(report.timing.samples_ms, report.opponent.samples_ms, strict=True)
    return Share(low, statistics.median(mine / true for mine, true in pairs), high)


def exploits(target: Target) -> list[Exploit]:
    """Those that can be tried on this target, by name."""
    found = [read(path) for path in sorted((HERE / "exploits").glob("*.py"))]
    return [exploit for exploit in found if target.value in exploit.targets]


def read(path: Path) -> Exploit:
    source = path.read_text(encoding="utf-8")
    tries, _, facts = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    said = dict(line.split(": ", 1) for line in facts.splitlines())
    limits = {name: float(value) for name, value in (pair.split("=") for pair in said.get("limits", "").split())}
    return Exploit(
        name=path.stem,
        source=source,
        tries=tries,
        task=said["task"],
        expect=tuple(said["expect"].split(" or ")),
        targets=tuple(said["targets"].split()),
        known=said.get("known"),
        limits=Limits(**({"build_s": 60.0, "run_s": 30.0} | limits)),
    )


def task_source(name: str) -> str:
    return (HERE / "tasks" / f"{name}.py").read_text(encoding="utf-8")
