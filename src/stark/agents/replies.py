"""Reads replies: the structured answer first, fenced blocks otherwise. No reply raises an error."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from stark.core.chat import Finish, Reply, ReplyFault, ReplyForm

MAX_REPLY_CHARACTERS = 1 << 20  # characters of text and arguments together

_ADVICE = "The advice: one optimisation, in enough detail to implement it."
_EXPLANATION = "What was done and why, in a few sentences."
_SOURCE = "The complete Python source that defines ModelNew, as plain text without a code fence."

PLAN_FORM = ReplyForm(
    name="plan",
    description="Hand in the plan.",
    fields={
        "advice": _ADVICE,
        "scaffold": "The complete source with the regions to change marked, as plain text without a code fence.",
    },
)
PLAN_FORM_WITHOUT_ANCHORS = ReplyForm(name="plan", description="Hand in the plan.", fields={"advice": _ADVICE})
_KERNEL_FIELDS = {"explanation": _EXPLANATION, "source": _SOURCE}
CODE_FORM = ReplyForm(name="code", description="Hand in the kernel.", fields=_KERNEL_FIELDS)
DEBUG_FORM = ReplyForm(name="debug", description="Hand in the repaired kernel.", fields=_KERNEL_FIELDS)
SOLO_FORM = ReplyForm(name="solo", description="Hand in the kernel.", fields=_KERNEL_FIELDS)

# Every pattern reads a character only a few times, so a hostile reply costs no more than others.
_FENCE = re.compile("[ \u200b\ufeff]{0,3}(`{3,}|~{3,})([^\n]*)")
_CLASS_LINE = re.compile(r"^[ \t]*class[ \t]+ModelNew\b", re.MULTILINE)
_MARKER = re.compile(r"<<<[ \t]*IMPROVE", re.IGNORECASE)
_THOUGHTS_BEGIN, _THOUGHTS_END = "<think>", "</think>"  # some servers leave thoughts, or only the last tag, in the text
_UNPRINTABLE = re.compile("[\0\ud800-\udfff]")

_BY_FINISH = {
    Finish.REFUSED: (ReplyFault.REFUSED, "The model refused to answer."),
    Finish.PROMPT_TOO_LONG: (
        ReplyFault.PROMPT_TOO_LONG,
        "The prompt, or it with the longest reply (roles.*.max_output_tokens), is longer than the model can read.",
    ),
    Finish.TRUNCATED: (ReplyFault.TRUNCATED, "The reply was cut off at the most tokens it may have; be briefer."),
}
_CUT_OFF = "The reply ends inside a code block that is never closed."


@dataclass(frozen=True)
class Answer:
    """A parsed reply. ``text`` is the advice or the explanation, ``detail`` one sentence on the fault."""

    text: str = ""
    source: str | None = None
    fault: ReplyFault | None = None
    detail: str = ""


class _Part(NamedTuple):
    """A line of prose, or a closed block with its fences; ``block`` is its content."""

    written: str
    block: str | None = None


@dataclass(frozen=True)
class _Document:
    """A text as prose and closed blocks in order, and the block that is never closed."""

    pieces: list[_Part]
    open_block: str | None = None

    @property
    def blocks(self) -> list[str]:
        return [piece.block for piece in self.pieces if piece.block is not None]

    @property
    def prose(self) -> str:
        """The text around the blocks."""
        return _clean_prose("\n".join(piece.written for piece in self.pieces if piece.block is None)).strip()

    def around(self, block: str) -> str:
        """The text without one block; advice may quote others."""
        return _clean_prose("\n".join(piece.written for piece in self.pieces if piece.block != block)).strip()


def read_plan(reply: Reply, form: ReplyForm) -> Answer:
    """Read the advice and, if the form asks for it, the scaffold. Keep complete advice without a scaffold."""
    reply = strip_thoughts(reply)
    if fault := find_early_fault(reply):
        cut_off = _split_blocks(reply.text) if fault.fault is ReplyFault.TRUNCATED else None
        return replace(fault, text=cut_off.prose) if cut_off and cut_off.open_block is not None else fault
    anchored = "scaffold" in form.fields
    if (arguments := structured_arguments(reply, "advice")) is not None:
        fields = _parse_fields(arguments)
        if isinstance(fields, Answer):
            return fields
        advice, source = fields.get("advice", ""), fields.get("scaffold", "")
        answer = _read_field(source, advice, _pick_scaffold) if anchored else Answer(advice)
    else:
        page = _split_blocks(reply.text)
        answer = _pick_scaffold(page) if anchored else Answer(_clean_prose(reply.text).strip())
    if not answer.text and answer.source is None and answer.fault in (None, ReplyFault.NO_CODE):
        return Answer(fault=ReplyFault.EMPTY, detail="The reply holds no advice.")
    return answer


def read_kernel(reply: Reply) -> Answer:
    """Read the explanation and the source that defines ModelNew."""
    reply = strip_thoughts(reply)
    if fault := find_early_fault(reply):
        return fault
    if (arguments := structured_arguments(reply, "source")) is not None:
        fields = _parse_fields(arguments)
        if isinstance(fields, Answer):
            return fields
        answer = _read_field(fields.get("source", ""), fields.get("explanation", ""), _pick_kernel)
        if answer.fault is not ReplyFault.NO_CODE or not reply.text.strip():
            return answer
    page = _split_blocks(reply.text)
    whole = _normalise_newlines(reply.text)
    if not page.blocks and page.open_block is None and _is_kernel(whole):
        return _check_source("", whole)
    return _pick_kernel(page)


def find_early_fault(reply: Reply) -> Answer | None:
    if reply.finish in (Finish.REFUSED, Finish.PROMPT_TOO_LONG):
        return _make_fault(*_BY_FINISH[reply.finish])
    if len(reply.text) + len(reply.arguments or "") > MAX_REPLY_CHARACTERS:
        return _make_fault(ReplyFault.TOO_LARGE, f"The reply is longer than {MAX_REPLY_CHARACTERS} characters.")
    if reply.finish is Finish.TRUNCATED:
        return _make_fault(*_BY_FINISH[reply.finish])
    if not reply.text.strip() and not (reply.arguments or "").strip():
        return _make_fault(ReplyFault.EMPTY, "The reply is empty.")
    return None


def strip_thoughts(reply: Reply) -> Reply:
    """Return what follows the thoughts; nothing if they never end. Ignore tags inside code."""
    thoughts, tag, rest = reply.text.rpartition(_THOUGHTS_END)
    if not tag:
        return replace(reply, text="") if reply.text.lstrip().startswith(_THOUGHTS_BEGIN) else reply
    in_code = all(_split_blocks(part).open_block is not None for part in (thoughts, rest))
    return replace(reply, text=rest) if rest.strip() and not in_code else reply


# -- the structured answer ------------------------------------------------------------------------------------------


def structured_arguments(reply: Reply, field: str) -> str | None:
    """The arguments of the tool call, or of a call that the model wrote out as text."""
    if reply.arguments is not None:
        return reply.arguments
    text = _normalise_newlines(reply.text).strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
    blocks = _split_blocks(text).blocks
    written = (blocks[0] if len(blocks) == 1 else text).strip()
    if not written.startswith("{"):
        return None
    try:
        data = json.loads(written, strict=False)
        data = _decode(data.get("arguments", data.get("parameters", data)))
    except (ValueError, RecursionError):
        return None
    return json.dumps(data) if isinstance(data, dict) and field in data else None


def _parse_fields(arguments: str) -> dict[str, str] | Answer:
    """The texts of the structured answer, or its fault."""
    try:
        data = json.loads(arguments, strict=False)  # line breaks inside strings are common and harmless
        answers = [_decode(item) for item in data] if isinstance(data, list) else [_decode(data)]
    except (ValueError, RecursionError):
        return _make_fault(ReplyFault.MALFORMED, "The arguments of the answer are not valid JSON.")
    if not answers or not all(isinstance(answer, dict) for answer in answers):
        return _make_fault(ReplyFault.MALFORMED, "The arguments of the answer are not a JSON object.")
    first = answers[0]
    if any(answer != first for answer in answers):
        return _make_fault(ReplyFault.TWO_ANSWERS, "The reply hands in several different answers; give one.")
    texts = {name: value for name, value in first.items() if value is not None}
    if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
        name = _clean_prose(wrong[0])[:40]
        return _make_fault(ReplyFault.MALFORMED, f"The field {name!r} of the answer is not a text.")
    return texts


def _decode(item: Any) -> Any:
    """Decode an answer that is wrapped in a JSON string, as in every list of several calls."""
    return json.loads(item, strict=False) if isinstance(item, str) else item


def _read_field(source: str, text: str, pick: Callable[[_Document, str | None], Answer]) -> Answer:
    """Read a field with the source, or with the source in a fence after some words."""
    source = _normalise_newlines(source)
    page = _split_blocks(source)
    fenced = _FENCE.match(source.lstrip("\n")) or (page.blocks and _parse_python(source) is None)
    return pick(page if fenced else _Document([_Part(source, source)]), _clean_prose(text).strip())


# -- fenced blocks --------------------------------------------------------------------------------------------------


def _split_blocks(text: str) -> _Document:
    """Split a text at its fences. A bare fence of the same kind, at least as long, closes a block."""
    pieces: list[_Part] = []
    inside: list[str] = []
    fence = opening = ""
    for line in _normalise_newlines(text).split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match and not ("`" in match[1] and "`" in match[2]):
                fence, opening, inside = match[1], line, []
            else:
                pieces.append(_Part(line))
        elif match and match[1].startswith(fence) and not match[2].strip():
            pieces.append(_Part("\n".join([opening, *inside, line]), "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    return _Document(pieces, "\n".join(inside) if fence else None)


def _pick_kernel(page: _Document, explanation: str | None = None) -> Answer:
    text = page.prose if explanation is None else explanation
    found = list(dict.fromkeys(block for block in page.blocks if _CLASS_LINE.search(block)))
    if len(found) > 1:
        return Answer(text, None, ReplyFault.TWO_ANSWERS, "The reply holds several different ModelNew; give one.")
    if page.open_block is not None and (not found or _CLASS_LINE.search(page.open_block)):
        return Answer(text, None, ReplyFault.TRUNCATED, _CUT_OFF)
    if not found:
        return Answer(text, None, ReplyFault.NO_CODE, "The reply holds no code block that defines class ModelNew.")
    return _check_source(text, found[0])


def _pick_scaffold(page: _Document, advice: str | None = None) -> Answer:
    text = page.prose if advice is None else advice
    distinct = list(dict.fromkeys(block for block in page.blocks if block.strip()))
    found = [block for block in distinct if _MARKER.search(block)] or distinct
    if len(found) > 1:
        return Answer(text, None, ReplyFault.TWO_ANSWERS, "The reply holds several different scaffolds; give one.")
    if page.open_block is not None and (not found or _MARKER.search(page.open_block)):
        return Answer(text, None, ReplyFault.TRUNCATED, _CUT_OFF)
    if not found:
        return Answer(text, None, ReplyFault.NO_CODE, "The reply holds no code block with the marked source.")
    return _check_source(page.around(found[0]) if advice is None else advice, found[0])


def _check_source(text: str, source: str) -> Answer:
    if _UNPRINTABLE.search(source):
        return Answer(text, None, ReplyFault.MALFORMED, "The source holds characters that no source file can hold.")
    return Answer(text, source.strip("\n") + "\n")


def _is_kernel(text: str) -> bool:
    """True if a text without fences is Python that defines ModelNew."""
    tree = _parse_python(text) if _CLASS_LINE.search(text) else None
    return tree is not None and any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body)


def _parse_python(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():  # an odd escape in a string is harmless
            warnings.simplefilter("ignore")
            return ast.parse(text.replace("\0", ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# -- characters -----------------------------------------------------------------------------------------------------


def _normalise_newlines(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _clean_prose(text: str) -> str:
    """Replace characters that cannot be stored or sent."""
    return _UNPRINTABLE.sub("\ufffd", _normalise_newlines(text))


def _make_fault(fault: ReplyFault, detail: str) -> Answer:
    return Answer(fault=fault, detail=detail)
