"""Stand-ins at the two boundaries, for tests of the engine: a chat model and an evaluator that depend on nothing but
what they are given, so that two runs of the same settings are the same run.

``answer`` writes what a well-behaved model would: a plan that marks the last line, code that changes it.
``HashEvaluator`` reads outcome and runtime off the source's hash. Both are third parties to STARK, named by path.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.errors import EvaluatorError, PromptRefused, TaskError
from stark.core.settings import EvaluationSettings, RoleSettings
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.interface import Interface
from stark_worker.protocol.report import DeviceFacts, EvalReport, Labels, Timing
from stark_worker.protocol.request import Build, EvalRequest, Score

TASK = """\
def get_inputs():
    return [1]


def get_init_inputs():
    return []


class Model:
    def forward(self, x):
        return x
"""

FAILURES = (Outcome.COMPILE_ERROR, Outcome.WRONG_RESULT, Outcome.CRASH)


def digest(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def answer(prompt: str) -> str:
    """Return what a role would write, from its prompt alone."""
    before = _section(prompt, "(?:Latest attempt|Base: .*)") or _section(prompt, "Task")
    *head, last = [line for line in before.splitlines() if "<<<IMPROVE" not in line]
    if "You are the planner" in prompt:
        advice = f"Change the last line, variant {digest(prompt) % 1000}.\n\n"
        if "\nIdea: " in prompt:
            return f"Idea: variant {digest(prompt) % 1000}\nRegions: forward\n\n{advice}"
        marked = [*head, "# <<<IMPROVE BEGIN>>>", "# change this line", last, "# <<<IMPROVE END>>>"]
        return advice + _fenced(marked) if "<<<IMPROVE BEGIN>>>" in prompt else advice
    changed = [line.replace("class Model:", "class ModelNew:") for line in head]
    return "Done.\n\n" + _fenced([*changed, f"        return x + {digest(prompt)}"])


def _section(prompt: str, title: str) -> str:
    found = re.search(rf"^## {title}\n.*?^```python\n(.*?)^```", prompt, re.MULTILINE | re.DOTALL)
    return found.group(1).rstrip() if found else ""


def _fenced(lines: Sequence[str]) -> str:
    return "```python\n" + "\n".join(lines) + "\n```\n"


class PretendModel:
    """Answers at once. Counts a token per ten characters and charges a dollar per million."""

    takes_temperature = True

    def __init__(self, settings: RoleSettings) -> None:
        self.name = settings.model or "pretend"
        self.prompts: list[str] = []

    def cost_usd(self, usage: Usage) -> float | None:
        return usage.total / 1e6

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        await asyncio.sleep(0)
        self.prompts.append(messages[1].content)
        text = answer(messages[1].content)
        usage = Usage(sum(len(message.content) for message in messages) // 10, len(text) // 10)
        return Reply(text=text, usage=usage, cost_usd=self.cost_usd(usage), model=self.name)


class HeldModel(PretendModel):
    """Answers four times, and then only when the file named by ``HELD_BY`` is gone: a test can interrupt it."""

    answers = itertools.count(1)

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        if next(self.answers) > 4:
            while Path(os.environ["HELD_BY"]).exists():
                await asyncio.sleep(0.02)
        return await super().reply(messages, form)


class InterruptedModel(PretendModel):
    """While it answers for the fifth time somebody presses Ctrl-C."""

    answers = itertools.count(1)

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        if next(self.answers) == 5:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
        return await super().reply(messages, form)


class UnpricedModel(PretendModel):
    """Nobody knows what it costs."""

    def cost_usd(self, usage: Usage) -> float | None:
        return None


class PrudishModel(PretendModel):
    """Refuses every prompt about a task that says ``# indecent``."""

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        if "# indecent" in messages[1].content:
            raise PromptRefused("I do not like this prompt.", "Write another one.")
        return await super().reply(messages, form)


INTERFACE = Interface(((16, 64),), ("float32",), '{"list": []}', '{"list": [{"tensor": 0}]}', '{"tensor": 0}', True)


class HashEvaluator:
    """One candidate in four fails; the others take 1 to 20 ms. The root takes 10 ms."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self.evaluated: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def device(self) -> DeviceFacts:
        return DeviceFacts("pretend device", "pretend", cores=1)

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        await asyncio.sleep(0)
        self.evaluated.append(request.candidate_source)
        if request.is_reference:
            return EvalReport(Outcome.OK, Timing((10.0,)))
        is_drop_in = "\nKERNEL = " in request.candidate_source
        number = 1 if is_drop_in else digest(request.candidate_source)
        if number % 4 == 0:
            return EvalReport(FAILURES[number // 4 % 3], log=f"it failed, {number % 97}")
        opponent = Timing((10.0,)) if request.opponent_source is not None else None
        labels = Labels(1.0, interface=INTERFACE) if request.with_labels else None
        return EvalReport(Outcome.OK, Timing((1.0 + number % 1900 / 100,)), opponent=opponent, labels=labels)


class AcceptingEvaluator(HashEvaluator):
    """Every candidate is right and takes 5 ms."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        return EvalReport(Outcome.OK, Timing((10.0 if request.is_reference else 5.0,)))


class InterruptedEvaluator(HashEvaluator):
    """Somebody presses Ctrl-C while it judges what the file says that ``CTRL_C`` names: ``Model``, ``ModelNew``, or
    ``final``."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        order = Path(os.environ["CTRL_C"])
        if order.exists() and order.read_text() == ("final" if request.build is Build.STOCK else request.entry):
            order.unlink()
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0.1)
        return await super().evaluate(request)


class SoberEvaluator(HashEvaluator):
    """What a search took for its winner turns out otherwise in the final: by ``verified`` it takes 8 ms beside a
    reference of 12, by ``kernelbench`` 3 ms beside 12, and on a task that says ``# brittle`` it does not load."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        report = await super().evaluate(request)
        if request.build is not Build.STOCK:
            return report
        if "# brittle" in request.task_source:
            return EvalReport(Outcome.COMPILE_ERROR, log="torch cannot build it", built=False)
        took = 8.0 if request.score is Score.VERIFIED else 3.0
        return EvalReport(Outcome.OK, Timing((took,)), opponent=Timing((12.0,)))


class EagerEvaluator(HashEvaluator):
    """Has no torch.compile."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if "_torch.compile" in request.candidate_source:
            raise TaskError("torch.compile cannot be had here.")
        return await super().evaluate(request)


class PartialEvaluator(HashEvaluator):
    """Of torch.compile's modes it can do one."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if "_torch.compile" not in request.candidate_source:
            return await super().evaluate(request)
        if 'mode="default"' in request.candidate_source:
            return EvalReport(Outcome.COMPILE_ERROR, log="torch cannot compile it")
        return EvalReport(Outcome.OK, Timing((9.0,)))


class DriftingEvaluator(HashEvaluator):
    """A kernel is four times as fast as eager and torch.compile twice, on a machine that may become slower."""

    slower = 1.0

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        eager, faster = 10.0 * self.slower, 2.0 if "_torch.compile" in request.candidate_source else 4.0
        took = eager if request.is_reference else eager / faster
        opponent = Timing((eager,)) if request.opponent_source is not None else None
        return EvalReport(Outcome.OK, Timing((took,)), opponent=opponent)


class BeatenEvaluator(HashEvaluator):
    """A kernel is a quarter faster than eager, and torch.compile twice as fast."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        took = 5.0 if "_torch.compile" in request.candidate_source else 10.0 if request.is_reference else 8.0
        opponent = Timing((10.0,)) if request.opponent_source is not None else None
        return EvalReport(Outcome.OK, Timing((took,)), opponent=opponent)


class ContradictingEvaluator(HashEvaluator):
    """In the search a candidate takes eight times as long as the reference, in the final half as long."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        took = 10.0 if request.is_reference else 5.0 if request.build is Build.STOCK else 80.0
        opponent = Timing((10.0,) * 20) if request.opponent_source is not None else None
        return EvalReport(Outcome.OK, Timing((took,) * 20), opponent=opponent)


class StrictEvaluator(HashEvaluator):
    """In the final nothing holds that took less than 10 ms in the search."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        report = await super().evaluate(request)
        if request.build is not Build.STOCK or report.timing is None or report.timing.median_ms >= 10.0:
            return report
        return EvalReport(Outcome.WRONG_RESULT, log="it is wrong after all")


class MortalEvaluator(HashEvaluator):
    """Dies of the first final, and everything with it."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if request.build is Build.STOCK:
            raise RuntimeError("the machine was switched off")
        return await super().evaluate(request)


class TroubledEvaluator(HashEvaluator):
    """Does what a task's source says: ``# degenerate``, ``# broken``, or ``# fault``, the last until the file that
    REPAIRED names is there."""

    async def evaluate(self, request: EvalRequest) -> EvalReport:
        if "# broken" in request.task_source:
            raise TaskError("The task's own code does not work. It is broken.", "Fix it.")
        if "# fault" in request.task_source and not Path(os.environ["REPAIRED"]).exists():
            raise EvaluatorError("The GPU fell off the bus.", "Put it back and go on.")
        report = await super().evaluate(request)
        if "# degenerate" in request.task_source and request.is_reference:
            return replace(report, degenerate="Zeros are accepted.")
        return report
