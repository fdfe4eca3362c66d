"""Reading replies: the structured answer first, fenced blocks otherwise. Whatever a model writes, nothing is raised."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from stark.core.chat import Finish, Reply, ReplyFault, ReplyForm

LARGEST_REPLY = 1 << 20  # characters of text and arguments together

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

# No regular expression here can look at a character more than a few times, so a hostile reply costs no more than any.
_FENCE = re.compile("[ \u200b\ufeff]{0,3}(`{3,}|~{3,})([^\n]*)")
_MODEL_NEW = re.compile(r"^[ \t]*class[ \t]+ModelNew\b", re.MULTILINE)
_MARKER = re.compile(r"<<<[ \t]*IMPROVE", re.IGNORECASE)
_THINKING, _THOUGHT = "<think>", "</think>"  # some servers leave what a model thinks in its text, or only the last tag
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
    """A reply that has been read. ``text`` is the advice or the explanation, ``detail`` one sentence on the fault."""

    text: str = ""
    source: str | None = None
    fault: ReplyFault | None = None
    detail: str = ""


class _Piece(NamedTuple):
    """A line of prose, or a closed block with its fences; ``block`` is what it holds."""

    written: str
    block: str | None = None


@dataclass(frozen=True)
class _Page:
    """A text taken apart: prose and closed blocks in their order, and the block that is never closed."""

    pieces: list[_Piece]
    open_block: str | None = None

    @property
    def blocks(self) -> list[str]:
        return [piece.block for piece in self.pieces if piece.block is not None]

    @property
    def prose(self) -> str:
        """What stands around the blocks."""
        return _clean("\n".join(piece.written for piece in self.pieces if piece.block is None)).strip()

    def around(self, block: str) -> str:
        """All but one block, however often it is there: advice may quote others."""
        return _clean("\n".join(piece.written for piece in self.pieces if piece.block != block)).strip()


def read_plan(reply: Reply, form: ReplyForm) -> Answer:
    """The advice, and where the form asks for one, the scaffold. Advice that is whole stays where a scaffold is not."""
    reply = _without_thoughts(reply)
    if fault := _fault_at_first_sight(reply):
        cut_off = _take_apart(reply.text) if fault.fault is ReplyFault.TRUNCATED else None
        return replace(fault, text=cut_off.prose) if cut_off and cut_off.open_block is not None else fault
    anchored = "scaffold" in form.fields
    if (arguments := _handed_in(reply, "advice")) is not None:
        fields = _fields(arguments)
        if isinstance(fields, Answer):
            return fields
        advice, source = fields.get("advice", ""), fields.get("scaffold", "")
        answer = _in_field(source, advice, _pick_scaffold) if anchored else Answer(advice)
    else:
        page = _take_apart(reply.text)
        answer = _pick_scaffold(page) if anchored else Answer(_clean(reply.text).strip())
    if not answer.text and answer.source is None and answer.fault in (None, ReplyFault.NO_CODE):
        return Answer(fault=ReplyFault.EMPTY, detail="The reply holds no advice.")
    return answer


def read_kernel(reply: Reply) -> Answer:
    """The explanation and the source that defines ModelNew."""
    reply = _without_thoughts(reply)
    if fault := _fault_at_first_sight(reply):
        return fault
    if (arguments := _handed_in(reply, "source")) is not None:
        fields = _fields(arguments)
        if isinstance(fields, Answer):
            return fields
        answer = _in_field(fields.get("source", ""), fields.get("explanation", ""), _pick_kernel)
        if answer.fault is not ReplyFault.NO_CODE or not reply.text.strip():
            return answer
    page = _take_apart(reply.text)
    whole = _normalised(reply.text)
    if not page.blocks and page.open_block is None and _is_kernel(whole):
        return _checked("", whole)
    return _pick_kernel(page)


def _fault_at_first_sight(reply: Reply) -> Answer | None:
    if reply.finish in (Finish.REFUSED, Finish.PROMPT_TOO_LONG):
        return _faulty(*_BY_FINISH[reply.finish])
    if len(reply.text) + len(reply.arguments or "") > LARGEST_REPLY:
        return _faulty(ReplyFault.TOO_LARGE, f"The reply is longer than {LARGEST_REPLY} characters.")
    if reply.finish is Finish.TRUNCATED:
        return _faulty(*_BY_FINISH[reply.finish])
    if not reply.text.strip() and not (reply.arguments or "").strip():
        return _faulty(ReplyFault.EMPTY, "The reply is empty.")
    return None


def _without_thoughts(reply: Reply) -> Reply:
    """What follows the thoughts; nothing where they never end. A tag inside of code is none."""
    thoughts, tag, rest = reply.text.rpartition(_THOUGHT)
    if not tag:
        return replace(reply, text="") if reply.text.lstrip().startswith(_THINKING) else reply
    in_code = all(_take_apart(part).open_block is not None for part in (thoughts, rest))
    return replace(reply, text=rest) if rest.strip() and not in_code else reply


# -- the structured answer ------------------------------------------------------------------------------------------


def _handed_in(reply: Reply, field: str) -> str | None:
    """The structured answer: the call of the tool, or one that is written out by a model that was offered none."""
    if reply.arguments is not None:
        return reply.arguments
    text = _normalised(reply.text).strip().removeprefix("<tool_call>").removesuffix("</tool_call>")
    blocks = _take_apart(text).blocks
    written = (blocks[0] if len(blocks) == 1 else text).strip()
    if not written.startswith("{"):
        return None
    try:
        data = json.loads(written, strict=False)
        data = _decoded(data.get("arguments", data.get("parameters", data)))
    except (ValueError, RecursionError):
        return None
    return json.dumps(data) if isinstance(data, dict) and field in data else None


def _fields(arguments: str) -> dict[str, str] | Answer:
    """The texts of the structured answer, or what is wrong with it."""
    try:
        data = json.loads(arguments, strict=False)  # line breaks inside strings are common and harmless
        answers = [_decoded(item) for item in data] if isinstance(data, list) else [_decoded(data)]
    except (ValueError, RecursionError):
        return _faulty(ReplyFault.MALFORMED, "The arguments of the answer are not valid JSON.")
    if not answers or not all(isinstance(answer, dict) for answer in answers):
        return _faulty(ReplyFault.MALFORMED, "The arguments of the answer are not a JSON object.")
    first = answers[0]
    if any(answer != first for answer in answers):
        return _faulty(ReplyFault.TWO_ANSWERS, "The reply hands in several different answers; give one.")
    texts = {name: value for name, value in first.items() if value is not None}
    if wrong := [name for name, value in texts.items() if not isinstance(value, str)]:
        return _faulty(ReplyFault.MALFORMED, f"The field {_clean(wrong[0])[:40]!r} of the answer is not a text.")
    return texts


def _decoded(item: Any) -> Any:
    """An answer, which some models and every list of several calls wrap into a string of JSON."""
    return json.loads(item, strict=False) if isinstance(item, str) else item


def _in_field(source: str, text: str, pick: Callable[[_Page, str | None], Answer]) -> Answer:
    """What a field holds: the source itself, or the source in a fence, perhaps after some words."""
    source = _normalised(source)
    page = _take_apart(source)
    fenced = _FENCE.match(source.lstrip("\n")) or (page.blocks and _parsed(source) is None)
    return pick(page if fenced else _Page([_Piece(source, source)]), _clean(text).strip())


# -- fenced blocks --------------------------------------------------------------------------------------------------


def _take_apart(text: str) -> _Page:
    """Follow the fences line by line: a block is closed by a bare fence of its own kind, at least as long."""
    pieces: list[_Piece] = []
    inside: list[str] = []
    fence = opening = ""
    for line in _normalised(text).split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match and not ("`" in match[1] and "`" in match[2]):
                fence, opening, inside = match[1], line, []
            else:
                pieces.append(_Piece(line))
        elif match and match[1].startswith(fence) and not match[2].strip():
            pieces.append(_Piece("\n".join([opening, *inside, line]), "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    return _Page(pieces, "\n".join(inside) if fence else None)


def _pick_kernel(page: _Page, explanation: str | None = None) -> Answer:
    text = page.prose if explanation is None else explanation
    found = list(dict.fromkeys(block for block in page.blocks if _MODEL_NEW.search(block)))
    if len(found) > 1:
        return Answer(text, None, ReplyFault.TWO_ANSWERS, "The reply holds several different ModelNew; give one.")
    if page.open_block is not None and (not found or _MODEL_NEW.search(page.open_block)):
        return Answer(text, None, ReplyFault.TRUNCATED, _CUT_OFF)
    if not found:
        return Answer(text, None, ReplyFault.NO_CODE, "The reply holds no code block that defines class ModelNew.")
    return _checked(text, found[0])


def _pick_scaffold(page: _Page, advice: str | None = None) -> Answer:
    text = page.prose if advice is None else advice
    distinct = list(dict.fromkeys(block for block in page.blocks if block.strip()))
    found = [block for block in distinct if _MARKER.search(block)] or distinct
    if len(found) > 1:
        return Answer(text, None, ReplyFault.TWO_ANSWERS, "The reply holds several different scaffolds; give one.")
    if page.open_block is not None and (not found or _MARKER.search(page.open_block)):
        return Answer(text, None, ReplyFault.TRUNCATED, _CUT_OFF)
    if not found:
        return Answer(text, None, ReplyFault.NO_CODE, "The reply holds no code block with the marked source.")
    return _checked(page.around(found[0]) if advice is None else advice, found[0])


def _checked(text: str, source: str) -> Answer:
    if _UNPRINTABLE.search(source):
        return Answer(text, None, ReplyFault.MALFORMED, "The source holds characters that no source file can hold.")
    return Answer(text, source.strip("\n") + "\n")


def _is_kernel(text: str) -> bool:
    """Whether a text without fences is, as a whole, Python that defines ModelNew."""
    tree = _parsed(text) if _MODEL_NEW.search(text) else None
    return tree is not None and any(isinstance(node, ast.ClassDef) and node.name == "ModelNew" for node in tree.body)


def _parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():  # an odd escape in a string is the author's business
            warnings.simplefilter("ignore")
            return ast.parse(text.replace("\0", ""))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# -- characters -----------------------------------------------------------------------------------------------------


def _normalised(text: str) -> str:
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _clean(text: str) -> str:
    """Prose that can be stored and sent anywhere."""
    return _UNPRINTABLE.sub("\ufffd", _normalised(text))


def _faulty(fault: ReplyFault, detail: str) -> Answer:
    return Answer(fault=fault, detail=detail)
