"""The playbook as a chat model: parses a prompt, picks moves, writes the reply. No network, no LLM, no cost."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

from stark.core.chat import Finish, Message, Reply, ReplyForm, Usage
from stark.core.errors import ModelRefused, UsageError
from stark.models.playbook.anchors import find_changed, mark_regions
from stark.models.playbook.codegen.candidate import Language, write_candidate
from stark.models.playbook.codegen.cpp import CPP, CPP_BF16
from stark.models.playbook.codegen.triton import TRITON
from stark.models.playbook.moves import MOVES, Move, Moves, find_applicable, format_moves
from stark.models.playbook.planner import FUSE_ONLY, choose_plan, choose_repair, choose_stack, follow_advice
from stark.models.playbook.prompt import Prompt, parse_prompt
from stark.models.playbook.trace.program import Program, read_task
from stark.models.playbook.trace.values import Unsupported

LANGUAGES: dict[str, Language] = {"cpu": CPP, "triton": TRITON}
CPU_LANGUAGES = {"float32": CPP, "bfloat16": CPP_BF16}
_REAL_MODEL = "Name a real model, for example --model anthropic:claude-sonnet-4-6, or --model NAME --base-url ADDRESS."


class PlaybookModel:
    """Answers from a library of moves. ``name`` is ``playbook`` or ``playbook:SEED``.

    A reply depends only on the prompt, the seed and the number of the call, so a resumed run continues unchanged.
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
        prompt = parse_prompt(messages)
        if prompt is None:
            text = "The playbook is no LLM: it answers the prompts of STARK's agents, and this is none of them."
            return Reply(text=text, finish=Finish.REFUSED, cost_usd=0.0, model=self.name)
        return Reply(text=_write_answer(prompt, form, rng), cost_usd=0.0, model=self.name)

    def _rng(self, messages: Sequence[Message]) -> random.Random:
        text = "\0".join(f"{message.role}\0{message.content}" for message in messages)
        key = hashlib.sha256(f"{self.name}\0{self._calls}\0{text}".encode(errors="surrogatepass"))
        return random.Random(key.digest())


def _write_answer(prompt: Prompt, form: ReplyForm, rng: random.Random) -> str:
    try:
        language = _find_language(prompt.target, prompt.precision)
        program = read_task(prompt.task)
        known = find_applicable(program, prompt.target)
        if form.name == "plan":
            return _write_plan(prompt, form, known, program, language, rng)
        return _write_kernel(prompt, form.name, known, program, language, rng)
    except Unsupported as unknown:
        raise ModelRefused(
            f"The playbook has no moves for this task: it does not know {unknown}.", _REAL_MODEL
        ) from None
    except SyntaxError as error:
        raise ModelRefused(f"The playbook cannot read this task's source: {error}.", _REAL_MODEL) from error


def check_task(source: str, target: str, precision: str) -> None:
    """Refuse a task for which the playbook has no moves, before a run begins."""
    try:
        language, program = _find_language(target, precision), read_task(source)
        write_candidate(program, FUSE_ONLY, language)
    except Unsupported as unknown:
        raise UsageError(f"The playbook has no moves for this task: it does not know {unknown}.", _REAL_MODEL) from None
    except SyntaxError as error:
        raise UsageError(f"The playbook cannot read this task's source: {error}.", _REAL_MODEL) from error


def _find_language(target: str, precision: str) -> Language:
    if target not in LANGUAGES:
        raise Unsupported(f"how to write kernels in {target or 'this language'} (it writes for cpu and triton)")
    if target == "cpu" and precision not in CPU_LANGUAGES:
        raise Unsupported(f"{precision} on the CPU")
    return CPU_LANGUAGES[precision] if target == "cpu" else LANGUAGES[target]


def _write_plan(
    prompt: Prompt, form: ReplyForm, known: list[Move], program: Program, language: Language, rng: random.Random
) -> str:
    advice = choose_plan(prompt, known, rng)
    if prompt.is_informed:
        return _write_informed_plan(prompt, advice, known, program, language, rng)
    if "scaffold" not in form.fields or prompt.markers is None:
        return advice
    # The effect of a move depends on the task, so the scaffold comes from the source the coder will write.
    made = write_candidate(program, follow_advice(replace(prompt, advice=advice), known, rng), language)
    scaffold = mark_regions(prompt.latest or prompt.task, made, advice, prompt.markers)
    return f"{advice}\n\n{_fence_block(scaffold)}"


def _write_informed_plan(
    prompt: Prompt, advice: str, known: list[Move], program: Program, language: Language, rng: random.Random
) -> str:
    """Write a plan whose idea is the set of moves, which later prompts show in their rows."""
    moves = follow_advice(replace(prompt, advice=advice), known, rng)
    lines = [f"Idea: {format_moves(moves)}"]
    if prompt.names_regions:
        changed = find_changed(prompt.latest, write_candidate(program, moves, language))
        lines.append(f"Regions: {', '.join(f'{region.first + 1}-{region.last + 1}' for region in changed)}")
    return "\n".join([*lines, "", advice])


def _write_kernel(
    prompt: Prompt, role: str, known: list[Move], program: Program, language: Language, rng: random.Random
) -> str:
    if role == "debug":
        moves = choose_repair(prompt, known)
    elif role == "solo":
        moves = choose_stack(prompt, known, rng)
    else:
        moves = follow_advice(prompt, known, rng)
    explanation = format_moves(moves) if prompt.is_informed else _explain(role, moves)
    return f"{explanation}\n\n{_fence_block(write_candidate(program, moves, language))}"


def _explain(role: str, moves: Moves) -> str:
    listed = ", ".join(name for name in MOVES if name in moves)
    if role == "debug":
        return f"The likely cause was replaced by what is safe. The source now has these moves: {listed}."
    return f"The source has these moves of the playbook: {listed}."


def _fence_block(source: str) -> str:
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}python\n{source.rstrip()}\n{fence}\n"
