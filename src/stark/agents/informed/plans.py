"""Reads plans: a few named lines, then the advice; or the same as the fields of a tool call."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from stark.agents.replies import Answer, find_early_fault, strip_thoughts, structured_arguments
from stark.core.chat import Reply, ReplyFault, ReplyForm

_IDEA = "The idea in one line of at most 100 characters."
_BASE = "Numbers of the attempts to build on, if not the base: one, or two to merge. Else empty."
_ADVICE = "The advice, in enough detail to implement it. Not the source."
_REGIONS = "Functions or line ranges of the base that change, with commas between them. Empty at the root."

PLAN_FORM = ReplyForm(
    name="plan",
    description="Hand in the plan.",
    fields={"idea": _IDEA, "base": _BASE, "regions": _REGIONS, "advice": _ADVICE},
)
PLAN_FORM_WITHOUT_REGIONS = ReplyForm(
    name="plan",
    description="Hand in the plan.",
    fields={name: text for name, text in PLAN_FORM.fields.items() if name != "regions"},
)

_HEADER = re.compile(r"[\s>*_#-]*(idea|base|bases|region|regions|advice)[\s*_]*:[\s*_]*(.*?)[\s*_]*", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class PlanAnswer(Answer):
    """A parsed plan; ``text`` is the advice."""

    idea: str = ""
    bases: tuple[int, ...] = ()
    regions: str = ""


def read_plan(reply: Reply) -> PlanAnswer:
    """Read a plan. A reply without named lines is all advice."""
    reply = strip_thoughts(reply)
    if fault := find_early_fault(reply):
        return PlanAnswer(fault=fault.fault, detail=fault.detail)
    fields = _read_fields(reply)
    if fields is None:
        return PlanAnswer(fault=ReplyFault.MALFORMED, detail="The arguments of the answer are not a JSON object.")
    answer = PlanAnswer(
        text=fields.get("advice", "").strip(),
        idea=" ".join(fields.get("idea", "").split()),
        bases=tuple(dict.fromkeys(int(number) for number in _NUMBER.findall(fields.get("base", ""))))[:2],
        regions=fields.get("regions", ""),
    )
    return answer if answer.text else replace(answer, fault=ReplyFault.EMPTY, detail="The reply holds no advice.")


def _read_fields(reply: Reply) -> dict[str, str] | None:
    arguments = structured_arguments(reply, "advice")
    if arguments is None:
        return _read_lines(reply.text)
    try:
        data = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return None
    data = data[0] if isinstance(data, list) and data else data
    return {name: _as_text(value) for name, value in data.items()} if isinstance(data, dict) else None


def _as_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_as_text, value))
    text = "" if value is None else str(value)
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")


def _read_lines(text: str) -> dict[str, str]:
    lines = _as_text(text).replace("\r\n", "\n").split("\n")
    fields: dict[str, str] = {}
    while lines:
        match = _HEADER.fullmatch(lines[0])
        if match is None and lines[0].strip():
            break
        del lines[0]
        if match is not None:
            name = {"bases": "base", "region": "regions"}.get(match[1].lower(), match[1].lower())
            fields[name] = match[2].strip("`") if name != "advice" else match[2]
        if match is not None and match[1].lower() == "advice":
            break
    return {**fields, "advice": "\n".join([fields.get("advice", ""), *lines]).strip()}
