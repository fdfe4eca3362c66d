"""STARK's core loop in one file. docs/tutorial.md explains it.

    .venv/bin/python examples/tutorial.py examples/tasks/rms_norm.py --attempts 4 --keep kernel.py

Chat models, the form of their answers and the evaluator come from the project. Everything else is written out here.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from stark.agents.replies import CODE_FORM, DEBUG_FORM, PLAN_FORM, Answer, read_kernel, read_plan
from stark.core.chat import Message
from stark.core.errors import StarkError
from stark.core.interfaces import ChatModel, Evaluator
from stark.core.settings import EvaluationSettings, RoleSettings
from stark.core.tree import Role
from stark.evaluation.local import LocalEvaluator
from stark.models.open import open_model
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import EvalReport
from stark_worker.protocol.request import EvalRequest

# -- the tree -------------------------------------------------------------------------------------------------------


@dataclass
class Node:
    """One attempt: its advice, its source and the evaluator's report."""

    id: int
    parent: Node | None
    source: str | None  # None if the reply held no source
    report: EvalReport
    advice: str = ""
    scaffold: str = ""
    children: list[Node] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.report.outcome is not Outcome.OK

    @property
    def score(self) -> float:
        """The runtime in milliseconds; infinite for a candidate that failed."""
        return self.report.timing.median_ms if self.report.timing else math.inf


def best_of(nodes: list[Node]) -> Node | None:
    """Return the fastest correct node. The root does not count: it is there to be beaten."""
    correct = [node for node in nodes[1:] if not node.failed]
    return min(correct, key=lambda node: node.score, default=None)


# -- where to grow: adapted epsilon-greedy --------------------------------------------------------------------------

EPSILON, N_ROOT, N_CHILD = 0.3, 5, 3


def eligible(node: Node) -> bool:
    """False for a root with enough children, and for a node whose many children all failed."""
    throttled = node.parent is None and len(node.children) >= N_ROOT
    dead = len(node.children) > N_CHILD and all(child.failed for child in node.children)
    return node.source is not None and not throttled and not dead


def select(nodes: list[Node], rng: random.Random) -> Node:
    """Return mostly the fastest eligible node, sometimes any eligible leaf, failed or not."""
    choices = [node for node in nodes if eligible(node)] or [nodes[0]]
    leaves = [node for node in choices if not node.children]
    if rng.random() < EPSILON and leaves:
        return rng.choice(leaves)
    lowest = min(node.score for node in choices)
    return rng.choice([node for node in choices if node.score == lowest])


# -- what an agent sees: a window per role --------------------------------------------------------------------------

LEADERS, CAP = 2, 5


def window(role: Role, node: Node, nodes: list[Node], rng: random.Random) -> list[Node]:
    """Return the attempts that a role sees: the selected node and others to learn from."""
    siblings = [each for each in node.parent.children if each is not node] if node.parent else []
    if role is Role.PLAN:
        correct = [each for each in nodes[1:] if not each.failed]
        others = [*node.children, *sorted(correct, key=lambda each: each.score)[:LEADERS]]
    elif role is Role.CODE:
        others = [*node.children, *(child for sibling in siblings for child in sibling.children)]
    else:
        others = siblings
    shown = {each.id: each for each in others if each.source is not None and each is not node}
    drawn = list(shown.values()) if len(shown) <= CAP else rng.sample(list(shown.values()), CAP)
    return drawn if node.parent is None else [node, *drawn]


# -- grounded instruction: anchors ----------------------------------------------------------------------------------

BEGIN, END = "<<<IMPROVE BEGIN>>>", "<<<IMPROVE END>>>"


def objection(scaffold: str, parent_source: str) -> str:
    """Return the rule that a scaffold breaks; empty if it is the parent's source with regions marked."""
    marks = re.findall(f"{BEGIN}|{END}", scaffold)
    if not marks or marks != [BEGIN, END] * (len(marks) // 2):
        return f"Mark at least one region, each between `{BEGIN}` and `{END}`, and do not nest them."
    if code_lines(scaffold) != code_lines(parent_source):
        return "Add comments to the source and change nothing else."
    return ""


def code_lines(source: str) -> list[str]:
    """Return the lines that are not comments in Python or C++."""
    lines = [line.strip() for line in source.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "//", "/*"))]


def without_markers(source: str) -> str:
    return re.sub(f"{BEGIN}|{END}", "", source)


# -- prompts --------------------------------------------------------------------------------------------------------

PARTS = {
    Role.PLAN: "You are the planner. Advise ONE change that promises the largest gain now and was not tried yet. "
    f"Return the advice and the complete source. Put `{BEGIN}` on a line before and `{END}` on a line after "
    "each stretch of code that is to change, as comments, and change nothing else.",
    Role.CODE: "You are the coder. Follow the advice in the marked regions and return the complete file that defines "
    "`ModelNew`, with the same mapping as `Model` and no marker left.",
    Role.DEBUG: "You are the debugger. The latest attempt fails. Explain why, and return the complete file with the "
    "smallest change that makes `ModelNew` map inputs as `Model` does and keeps its optimisation.",
}
PLACE = "Kernels are written in C++ with OpenMP.\nInputs and weights are float32."


def write_prompt(role: Role, task: str, node: Node, shown: list[Node], advice: str, scaffold: str) -> list[Message]:
    """Return the task, the latest attempt, the window, the advice, and the instruction of the role."""
    sections = [("## Task", fenced(task)), ("## Where it runs", PLACE)]
    if node.parent is not None:
        sections.append(("## Latest attempt", fenced(node.source or "")))
    for each in shown:
        sections.append((f"### Attempt {each.id}{', the latest' if each is node else ''}", describe(each)))
    if advice:
        sections.append(("## Advice", advice))
    if scaffold:
        sections.append(("## Scaffold", fenced(scaffold)))
    sections.append(("## Your part", PARTS[role]))
    text = "\n\n".join(f"{title}\n\n{body}" for title, body in sections)
    return [Message("system", "You make PyTorch models faster with kernels of your own."), Message("user", text)]


def describe(node: Node) -> str:
    """Return advice, source, log and result of an attempt."""
    result = f"failed ({node.report.outcome.replace('_', ' ')})" if node.failed else f"correct, {node.score:.4g} ms"
    log = f"Log:\n\n{fenced(node.report.log[:4000])}\n\n" if node.report.log else ""
    advice = f"Advice it was made from:\n\n{node.advice}\n\n" if node.advice else ""
    return f"{advice}Source:\n\n{fenced(node.source or '')}\n\n{log}Result: {result}"


def fenced(text: str) -> str:
    return f"```python\n{text.rstrip()}\n```"


# -- one attempt ----------------------------------------------------------------------------------------------------


@dataclass
class Search:
    """A task, a model per role, an evaluator, and every attempt so far."""

    task: str
    models: dict[Role, ChatModel]
    evaluator: Evaluator
    rng: random.Random
    nodes: list[Node] = field(default_factory=list)

    async def attempt(self) -> Node:
        """Select a node, repair or improve it, judge the result, keep it as a child."""
        parent = select(self.nodes, self.rng)
        if parent.failed:
            advice, scaffold = parent.advice, parent.scaffold
            answer = await self.write(Role.DEBUG, parent, advice, scaffold)
        else:
            advice, scaffold = await self.plan(parent)
            answer = await self.write(Role.CODE, parent, advice, scaffold)
        source = None if answer.source is None else without_markers(answer.source)
        node = Node(len(self.nodes), parent, source, await self.judge(source, answer.detail), advice, scaffold)
        parent.children.append(node)
        self.nodes.append(node)
        return node

    async def plan(self, parent: Node) -> tuple[str, str]:
        """Return advice and scaffold. A scaffold that breaks the anchor rules goes back once, then is dropped."""
        messages = self.prompt(Role.PLAN, parent)
        for _ in range(2):
            reply = await self.models[Role.PLAN].reply(messages, PLAN_FORM)
            answer = read_plan(reply, PLAN_FORM)
            wrong = objection(answer.source or "", parent.source or "")
            if not wrong:
                return answer.text, answer.source or ""
            answered = reply.arguments or reply.text or "(no answer)"
            messages = [*messages, Message("assistant", answered), Message("user", wrong)]
        return answer.text, ""

    async def write(self, role: Role, parent: Node, advice: str, scaffold: str) -> Answer:
        """Return the answer of the coder or the debugger."""
        form = CODE_FORM if role is Role.CODE else DEBUG_FORM
        return read_kernel(await self.models[role].reply(self.prompt(role, parent, advice, scaffold), form))

    def prompt(self, role: Role, parent: Node, advice: str = "", scaffold: str = "") -> list[Message]:
        shown = window(role, parent, self.nodes, self.rng)
        return write_prompt(role, self.task, parent, shown, advice, scaffold)

    async def judge(self, source: str | None, fault: str = "", entry: str = "ModelNew") -> EvalReport:
        """Compile, check and time. An identical source keeps its earlier report."""
        if source is None:
            return EvalReport(Outcome.UNUSABLE_REPLY, log=fault)
        for earlier in self.nodes[1:]:
            if earlier.source == source:
                return earlier.report
        return await self.evaluator.evaluate(EvalRequest(self.task, source, entry=entry))


async def grow(search: Search, attempts: int) -> list[Node]:
    """Run the whole search. The root is the task itself, judged like any other node."""
    search.nodes.append(Node(0, None, search.task, await search.judge(search.task, entry="Model")))
    for _ in range(attempts):
        node = await search.attempt()
        assert node.parent is not None
        result = node.report.outcome.replace("_", " ") if node.failed else f"{node.score:.3f} ms"
        print(f"#{node.id} from #{node.parent.id}: {result}  {node.advice.partition(':')[0]}", flush=True)
    return search.nodes


# -- the command ----------------------------------------------------------------------------------------------------

TEMPERATURES = {Role.PLAN: 0.8, Role.CODE: 0.1, Role.DEBUG: 0.1}


async def main(options: argparse.Namespace) -> None:
    models = {
        role: open_model(role, RoleSettings(model=options.model, temperature=temperature))
        for role, temperature in TEMPERATURES.items()
    }
    async with LocalEvaluator(EvaluationSettings(allow_weak_sandbox=options.allow_weak_sandbox)) as evaluator:
        search = Search(options.task.read_text(), models, evaluator, random.Random(options.seed))
        nodes = await grow(search, options.attempts)
    best = best_of(nodes)
    if best is None or best.source is None:
        sys.exit("No correct kernel was found.")
    options.keep.write_text(best.source)
    print(f"PyTorch {nodes[0].score:.3f} ms, #{best.id} {best.score:.3f} ms. The kernel is in {options.keep}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("task", type=Path)
    parser.add_argument("--model", default="playbook")
    parser.add_argument("--attempts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path("kernel.py"))
    parser.add_argument("--allow-weak-sandbox", action="store_true")
    try:
        asyncio.run(main(parser.parse_args()))
    except (StarkError, OSError) as error:
        sys.exit(f"error: {error}")
