"""Parses a prompt: its sections, its code blocks and its earlier attempts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stark.core.chat import Message

_FENCE = re.compile(r"(`{3,})(\w*)\s*")
_HEADING = re.compile(r"#{2,3} (.+)")
_MARKERS = re.compile(r"Put `(<<<[^`]+>>>)` on a line before and `(<<<[^`]+>>>)` on a line after")
_WRITTEN_IN = re.compile(r"Kernels are written in (.+)\.")
_PRECISION = re.compile(r"[Ii]nputs and weights are (\w+)")
_RESULT = re.compile(r"^Result: (.+)$", re.MULTILINE)
_TIME = re.compile(r"(?:correct, )?([\d.e+-]+) ms")
_ROW = re.compile(r"^#\d+ \| on #\d+ \| ([^|]+?)(?: \| [^|]*)?(?: \| (?:repair: )?(playbook: [^|]+))$", re.MULTILINE)
_BASE = re.compile(r"Base: #\d+, (.+)")
_TARGETS = {"C++ with OpenMP": "cpu", "Triton": "triton", "CUDA C++": "cuda"}


@dataclass
class _Section:
    """A heading, the prose under it and the code blocks."""

    title: str
    lines: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)

    @property
    def prose(self) -> str:
        return "\n".join(self.lines)


@dataclass(frozen=True)
class EarlierAttempt:
    """An earlier attempt as the prompt shows it."""

    source: str
    advice: str
    result: str

    @property
    def failed(self) -> bool:
        return self.result.startswith("failed")

    @property
    def ms(self) -> float | None:
        """Runtime of a correct attempt."""
        found = _TIME.match(self.result)
        return float(found[1]) if found else None


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt. ``latest`` is the source to change, empty at the root; ``earlier`` includes it.

    ``is_informed`` is true for the method ``informed``, which asks for an idea and, with ``names_regions``, for lines.
    """

    task: str
    target: str
    precision: str
    latest: str
    earlier: tuple[EarlierAttempt, ...]
    advice: str
    markers: tuple[str, str] | None
    is_informed: bool = False
    names_regions: bool = False

    @property
    def latest_result(self) -> str:
        return next((each.result for each in self.earlier if each.source == self.latest), "")


def parse_prompt(messages: Sequence[Message]) -> Prompt | None:
    """Parse the user message; None if it holds no task."""
    asked = next((message.content for message in messages if message.role == "user"), "")
    sections = _split_sections(asked)
    named = {section.title: section for section in reversed(sections)}
    if "Task" not in named or not named["Task"].blocks:
        return None
    if "Rules" in named:
        return _parse_informed(asked, sections, named)
    latest = named["Latest attempt"].blocks[0] if named.get("Latest attempt", _Section("")).blocks else ""
    advice = next((each.prose.strip() for each in sections if each.title.startswith("Advice")), "")
    place = named.get("Where it runs", _Section("")).prose
    written_in, precision, markers = _WRITTEN_IN.search(place), _PRECISION.search(place), _MARKERS.search(asked)
    return Prompt(
        task=named["Task"].blocks[0],
        target=_TARGETS.get(written_in[1], written_in[1]) if written_in else "",
        precision=precision[1] if precision else "",
        latest=latest,
        earlier=tuple(_parse_attempt(each, latest) for each in sections if each.title.startswith("Attempt ")),
        advice=advice,
        markers=(markers[1], markers[2]) if markers else None,
    )


def _parse_informed(asked: str, sections: Sequence[_Section], named: dict[str, _Section]) -> Prompt:
    """Parse a prompt of the method ``informed``. Its rows hold the moves of every attempt."""
    rules = named["Rules"].prose
    base = next((section for section in sections if _BASE.fullmatch(section.title)), _Section(""))
    latest = next((block for block in reversed(base.blocks) if "class ModelNew" in block), "")
    written_in, precision = _WRITTEN_IN.search(rules), _PRECISION.search(rules)
    rows = _ROW.findall(named.get("Attempts", _Section("")).prose)
    attempts = [EarlierAttempt(f"# {moves}", "", result) for result, moves in rows]
    if latest and (result := _BASE.fullmatch(base.title)):
        attempts.append(EarlierAttempt(latest, "", result[1]))
    return Prompt(
        task=named["Task"].blocks[0],
        target=_TARGETS.get(written_in[1], written_in[1]) if written_in else "",
        precision=precision[1] if precision else "",
        latest=latest,
        earlier=tuple(attempts),
        advice=next((each.prose.strip() for each in sections if each.title.startswith("Advice")), ""),
        markers=None,
        is_informed=True,
        names_regions="\nRegions: " in asked,
    )


def _split_sections(text: str) -> list[_Section]:
    found = [_Section("")]
    fence = ""
    for line in text.split("\n"):
        opened = _FENCE.fullmatch(line)
        if fence:
            if line.rstrip() == fence:
                fence = ""
            else:
                found[-1].blocks[-1] += f"{line}\n"
        elif opened:
            fence = opened[1]
            found[-1].blocks.append("")
        elif heading := _HEADING.fullmatch(line):
            found.append(_Section(heading[1]))
        else:
            found[-1].lines.append(line)
    return found


def _parse_attempt(section: _Section, latest: str) -> EarlierAttempt:
    sources = [block for block in section.blocks if "class ModelNew" in block]
    source = latest if section.title.endswith(", the latest") else "".join(sources[:1])
    advice = section.prose.partition("Advice it was made from:")[2].partition("\nSource:")[0]
    result = _RESULT.search(section.prose)
    return EarlierAttempt(source, advice.strip(), result[1] if result else "")
