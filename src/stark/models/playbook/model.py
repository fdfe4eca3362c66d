"""The chat model: reads a prompt, picks moves, writes the reply. No network, no neural network, no cost."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

from stark.core.chat import Finish, Message, Reply, ReplyForm, Usage
from stark.core.errors import ModelRefused
from stark.models.playbook.anchors import mark
from stark.models.playbook.codegen.candidate import Language, write_candidate
from stark.models.playbook.codegen.cpp import CPP
from stark.models.playbook.codegen.triton import TRITON
from stark.models.playbook.moves import MOVES, Move, Moves, applicable
from stark.models.playbook.planner import choose_plan, follow, repair, stack
from stark.models.playbook.prompt import Prompt, read_prompt
from stark.models.playbook.trace.program import Program, read_task
from stark.models.playbook.trace.values import Unknown

LANGUAGES: dict[str, Language] = {"cpu": CPP, "triton": TRITON}
_REAL_MODEL = "Name a real model, for example --model anthropic:claude-sonnet-4-6, or --model NAME --base-url ADDRESS."


class PlaybookModel:
    """Answers from a library of moves. ``name`` is ``playbook`` or ``playbook:SEED``; ``answered`` calls came before.

    An answer depends on the prompt, the seed and the number of the call alone: a resumed run goes on as it would have.
    """

    def __init__(self, name: str, answered: int = 0) -> None:
        self.name = name
        self._calls = answered

    @property
    def takes_temperature(self) -> bool:
        return True

    def cost_usd(self, usage: Usage) -> float | None:
        return 0.0

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        rng = self._rng(messages)
        self._calls += 1
        prompt = read_prompt(messages)
        if prompt is None:
            text = "The playbook is no LLM: it answers the prompts of STARK's agents, and this is none of them."
            return Reply(text=text, finish=Finish.REFUSED, cost_usd=0.0, model=self.name)
        return Reply(text=_answer(prompt, form, rng), cost_usd=0.0, model=self.name)

    def _rng(self, messages: Sequence[Message]) -> random.Random:
        said = "\0".join(f"{message.role}\0{message.content}" for message in messages)
        key = hashlib.sha256(f"{self.name}\0{self._calls}\0{said}".encode(errors="surrogatepass"))
        return random.Random(key.digest())


def _answer(prompt: Prompt, form: ReplyForm, rng: random.Random) -> str:
    try:
        language = _language(prompt)
        program = read_task(prompt.task)
        known = applicable(program, prompt.target)
        if form.name == "plan":
            return _plan(prompt, form, known, program, language, rng)
        return _kernel(prompt, form.name, known, program, language, rng)
    except Unknown as unknown:
        raise ModelRefused(
            f"The playbook has no moves for this task: it does not know {unknown}.", _REAL_MODEL
        ) from None
    except SyntaxError as error:
        raise ModelRefused(f"The playbook cannot read this task's source: {error}.", _REAL_MODEL) from error


def _language(prompt: Prompt) -> Language:
    if prompt.target not in LANGUAGES:
        raise Unknown(f"how to write kernels in {prompt.target or 'this language'} (it writes for cpu and triton)")
    if prompt.target == "cpu" and prompt.precision != "float32":
        raise Unknown(f"{prompt.precision} on the CPU")
    return LANGUAGES[prompt.target]


def _plan(
    prompt: Prompt, form: ReplyForm, known: list[Move], program: Program, language: Language, rng: random.Random
) -> str:
    advice = choose_plan(prompt, known, rng)
    if "scaffold" not in form.fields or prompt.markers is None:
        return advice
    # what a move changes differs from task to task: only the source that the coder will write tells
    made = write_candidate(program, follow(replace(prompt, advice=advice), known, rng), language)
    scaffold = mark(prompt.latest or prompt.task, made, advice, prompt.markers)
    return f"{advice}\n\n{_fenced(scaffold)}"


def _kernel(
    prompt: Prompt, role: str, known: list[Move], program: Program, language: Language, rng: random.Random
) -> str:
    if role == "debug":
        moves = repair(prompt, known)
    elif role == "solo":
        moves = stack(prompt, known, rng)
    else:
        moves = follow(prompt, known, rng)
    return f"{_explanation(role, moves)}\n\n{_fenced(write_candidate(program, moves, language))}"


def _explanation(role: str, moves: Moves) -> str:
    listed = ", ".join(name for name in MOVES if name in moves)
    if role == "debug":
        return f"The likely cause was replaced by what is safe. The source now has these moves: {listed}."
    return f"The source has these moves of the playbook: {listed}."


def _fenced(source: str) -> str:
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}python\n{source.rstrip()}\n{fence}\n"
