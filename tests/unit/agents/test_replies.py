"""Replies are read as expected: a table of good, odd and bad ones. The same table is served over the wire elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stark.agents.replies import (
    CODE_FORM,
    DEBUG_FORM,
    MAX_REPLY_CHARACTERS,
    PLAN_FORM,
    PLAN_FORM_WITHOUT_ANCHORS,
    SOLO_FORM,
    Answer,
    read_kernel,
    read_plan,
)
from stark.core.chat import Finish, Reply, ReplyFault, ReplyForm

KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
OTHER = KERNEL.replace("pass", "x = 1")
ODD_ESCAPE = KERNEL.replace("pass", "pattern = '\\d'")
SCAFFOLD = "import torch\n# <<<IMPROVE BEGIN>>> tile\nx = 1\n# <<<IMPROVE END>>>\n"
OTHER_SCAFFOLD = SCAFFOLD.replace("tile", "fuse")

FENCED = f"Tiled it.\n\n```python\n{KERNEL}```\n"
FENCED_SCAFFOLD = f"Tile the loop.\n\n```python\n{SCAFFOLD}```\n"


@dataclass(frozen=True)
class Case:
    """A reply and its expected answer. ``form`` None stands for a kernel."""

    name: str
    text: str = ""
    calls: tuple[str, ...] = ()
    finish: Finish = Finish.COMPLETE
    fault: ReplyFault | None = None
    source: str | None = None
    prose: str | None = None
    form: ReplyForm | None = None

    def reply(self) -> Reply:
        several = len(self.calls) > 1
        arguments = json.dumps(list(self.calls)) if several else next(iter(self.calls), None)
        return Reply(text=self.text, arguments=arguments, finish=self.finish)

    def read(self, reply: Reply) -> Answer:
        return read_plan(reply, self.form) if self.form else read_kernel(reply)

    def check(self, answer: Answer) -> None:
        assert (answer.fault, answer.source) == (self.fault, self.source), self.name
        assert self.prose is None or answer.text == self.prose, self.name
        assert bool(answer.detail) == (answer.fault is not None), self.name


def call(**fields: object) -> tuple[str, ...]:
    return (json.dumps(fields),)


def good(name: str, text: str = "", calls: tuple[str, ...] = (), prose: str | None = None) -> Case:
    return Case(name, text, calls, source=KERNEL, prose=prose)


def bad(name: str, fault: ReplyFault, text: str = "", calls: tuple[str, ...] = ()) -> Case:
    return Case(name, text, calls, fault=fault)


def plan_cut_off(name: str, text: str, prose: str) -> Case:
    return Case(name, text, (), Finish.TRUNCATED, ReplyFault.TRUNCATED, prose=prose, form=PLAN_FORM)


SUBMITTED = json.dumps({"name": "submit", "arguments": {"explanation": "", "source": KERNEL}})

TAGGED = KERNEL.replace("pass", "pass  # strips </think> from a text")
TAGGED_FENCED = FENCED.replace(KERNEL, TAGGED)

KERNELS = [
    good("one fenced block", FENCED, prose="Tiled it."),
    good("a fence without a language", f"```\n{KERNEL}```"),
    good("a fence that says py", f"```py\n{KERNEL}```"),
    good("a fence that says cpp", f"```cpp\n{KERNEL}```"),
    good("a fence with attributes", f"``` python title=kernel.py\n{KERNEL}```"),
    good("tildes", f"~~~python\n{KERNEL}~~~"),
    good("a longer fence", f"`````python\n{KERNEL}`````"),
    good("closed by a longer fence", f"```python\n{KERNEL}``````"),
    good("an indented fence", f"   ```python\n{KERNEL}   ```"),
    good("windows line ends", FENCED.replace("\n", "\r\n"), prose="Tiled it."),
    good("old mac line ends", FENCED.replace("\n", "\r")),
    good("a byte order mark", "\ufeff" + FENCED, prose="Tiled it."),
    good("a zero-width space before the fence", f"Done.\n\u200b```python\n{KERNEL}```"),
    good("right-to-left prose", f"\u202eשלום\n```python\n{KERNEL}```", prose="\u202eשלום"),
    good("the same block twice", f"{FENCED}Again:\n```python\n{KERNEL}```"),
    good("a snippet next to it", f"{FENCED}Use:\n```python\nx = ModelNew()\n```"),
    good("a stray fence at the end", f"{FENCED}\n```"),
    good("bare source", KERNEL, prose=""),
    Case("bare source with an odd escape", ODD_ESCAPE, source=ODD_ESCAPE),
    good("a tool call", calls=call(explanation="Tiled it.", source=KERNEL), prose="Tiled it."),
    good("prose before a tool call", "Let me think.", call(explanation="e", source=KERNEL), prose="e"),
    good("code next to the tool call", f"```python\n{OTHER}```", call(explanation="e", source=KERNEL)),
    good("a fence inside the field", calls=call(explanation="e", source=f"```python\n{KERNEL}```\n")),
    good("an extra field", calls=call(explanation="e", source=KERNEL, confidence=None)),
    good("no explanation", calls=call(source=KERNEL), prose=""),
    good("an explanation of null", calls=call(explanation=None, source=KERNEL), prose=""),
    good("line breaks inside a JSON string", calls=('{"source": "' + KERNEL + '"}',)),
    good("the same call twice", calls=call(source=KERNEL) * 2),
    good("an empty call next to fenced code", FENCED, call()),
    good(
        "thinking whose opening tag the server left out", f"```\n{OTHER}```\nNo.</think>\n{FENCED}", prose="Tiled it."
    ),
    good("thinking in its tags", f"<think>\n```\n{OTHER}```\n</think>\n{FENCED}", prose="Tiled it."),
    good("a tag after the answer", f"{FENCED}</think>\n"),
    Case("a tag in the source", TAGGED_FENCED, source=TAGGED),
    good("a call written out", call(explanation="Tiled it.", source=KERNEL)[0], prose="Tiled it."),
    good("a call written out in a fence", f"```json\n{SUBMITTED}\n```"),
    good("a call in a template's tags", f"<tool_call>\n{SUBMITTED}\n</tool_call>"),
    bad("a call of something else written out", ReplyFault.NO_CODE, '{"name": "search", "arguments": {"query": "x"}}'),
    bad("nothing", ReplyFault.EMPTY),
    bad("white space", ReplyFault.EMPTY, " \n\t\n"),
    bad("prose alone", ReplyFault.NO_CODE, "I would tile the loop."),
    bad("a refusal in prose", ReplyFault.NO_CODE, "I'm sorry, I can't help with that."),
    bad("a block without ModelNew", ReplyFault.NO_CODE, "```python\nx = 1\n```"),
    bad("a class of another name", ReplyFault.NO_CODE, "```python\nclass ModelNewer:\n    pass\n```"),
    bad("ModelNew in prose alone", ReplyFault.NO_CODE, "First write\nclass ModelNew and then the kernel."),
    bad("inline code", ReplyFault.NO_CODE, "Use ```class ModelNew: pass``` here."),
    bad("a block indented as code", ReplyFault.NO_CODE, f"    ```python\n{KERNEL}    ```"),
    bad("two versions", ReplyFault.TWO_ANSWERS, f"```python\n{KERNEL}```\nor\n```python\n{OTHER}```"),
    bad("two different calls", ReplyFault.TWO_ANSWERS, calls=call(source=KERNEL) + call(source=OTHER)),
    bad("an unclosed fence", ReplyFault.TRUNCATED, f"```python\n{KERNEL}"),
    bad("an unclosed fence inside the field", ReplyFault.TRUNCATED, calls=call(source=f"```python\n{KERNEL}")),
    bad("a better version cut off", ReplyFault.TRUNCATED, f"{FENCED}Better:\n```python\n{OTHER}"),
    bad("closed by a shorter fence", ReplyFault.TRUNCATED, f"````python\n{KERNEL}```"),
    bad("closed by the other kind of fence", ReplyFault.TRUNCATED, f"```python\n{KERNEL}~~~"),
    bad("broken JSON", ReplyFault.MALFORMED, calls=('{"source": "clas',)),
    bad("arguments of nothing", ReplyFault.MALFORMED, "see the call", calls=("",)),
    bad("arguments that are a number", ReplyFault.MALFORMED, calls=("42",)),
    bad("arguments that are an empty list", ReplyFault.MALFORMED, calls=("[]",)),
    bad("one good call and one broken", ReplyFault.MALFORMED, calls=(*call(source=KERNEL), "{")),
    bad("a source of lines", ReplyFault.MALFORMED, calls=call(source=KERNEL.split("\n"))),
    bad("deep nesting", ReplyFault.MALFORMED, calls=('{"source":' + "[" * 100_000 + "]" * 100_000 + "}",)),
    bad("a number of 10,000 digits", ReplyFault.MALFORMED, calls=('{"source": ' + "9" * 10_000 + "}",)),
    bad("a NUL byte in a block", ReplyFault.MALFORMED, FENCED.replace("pass", "pass\0")),
    bad("a NUL byte in bare source", ReplyFault.MALFORMED, KERNEL.replace("pass", "pass  # \0")),
    bad("a NUL byte in a field", ReplyFault.MALFORMED, calls=call(source=KERNEL + "\0")),
    bad("half a surrogate pair in a block", ReplyFault.MALFORMED, FENCED.replace("pass", "pass  # \ud83d")),
    bad("half a surrogate pair in a field", ReplyFault.MALFORMED, calls=call(source=KERNEL + "# \ud83d")),
    bad("an empty source", ReplyFault.NO_CODE, calls=call(explanation="e", source="")),
    bad("a source of null", ReplyFault.NO_CODE, calls=call(explanation="e", source=None)),
    bad("a source without ModelNew", ReplyFault.NO_CODE, calls=call(source="x = 1")),
    bad("8 MB of backticks", ReplyFault.TOO_LARGE, "`" * 8_000_000),
    bad("arguments of 2 MB", ReplyFault.TOO_LARGE, calls=call(source=KERNEL + "#" * 2_000_000)),
    bad("a million backticks", ReplyFault.TRUNCATED, "`" * 1_000_000),
    bad("a hundred thousand fences", ReplyFault.NO_CODE, "```\n" * 100_000),
    bad("a million spaces before a class", ReplyFault.NO_CODE, " " * 500_000 + "class" + " " * 500_000),
    bad("signs no parser follows", ReplyFault.NO_CODE, KERNEL + "x = " + "-" * 200_000 + "1"),
    bad("a chain no parser follows", ReplyFault.NO_CODE, KERNEL + "x = a" + ".b" * 200_000),
    bad("brackets no parser follows", ReplyFault.NO_CODE, KERNEL + "x = " + "(" * 200_000),
    Case("cut off in a block", f"```python\n{KERNEL[:30]}", finish=Finish.TRUNCATED, fault=ReplyFault.TRUNCATED),
    Case("all tokens spent on thinking", finish=Finish.TRUNCATED, fault=ReplyFault.TRUNCATED),
    Case("a call cut off", calls=('{"source": "cl',), finish=Finish.TRUNCATED, fault=ReplyFault.TRUNCATED),
    Case("refused", "No.", finish=Finish.REFUSED, fault=ReplyFault.REFUSED),
    Case("the prompt is too long", finish=Finish.PROMPT_TOO_LONG, fault=ReplyFault.PROMPT_TOO_LONG),
]

PLANS = [
    Case("a plan in prose", FENCED_SCAFFOLD, source=SCAFFOLD, prose="Tile the loop.", form=PLAN_FORM),
    Case(
        "a plan as a call", "", call(advice="Tile.", scaffold=SCAFFOLD), source=SCAFFOLD, prose="Tile.", form=PLAN_FORM
    ),
    Case("a fenced scaffold", "", call(advice="a", scaffold=f"~~~\n{SCAFFOLD}~~~"), source=SCAFFOLD, form=PLAN_FORM),
    Case("a snippet first", f"```\ny = 2\n```\n{FENCED_SCAFFOLD}", source=SCAFFOLD, form=PLAN_FORM),
    Case(
        "advice that quotes code",
        f"Write\n```cpp\nfor (;;)\n```\nhere.\n```python\n{SCAFFOLD}```",
        source=SCAFFOLD,
        prose="Write\n```cpp\nfor (;;)\n```\nhere.",
        form=PLAN_FORM,
    ),
    Case(
        "a marker with blanks next to a snippet",
        f"Tile.\n```\ny = 2\n```\n```\n{SCAFFOLD.replace('<<<IMPROVE BEGIN>>>', '<<< Improve begin >>>')}```",
        source=SCAFFOLD.replace("<<<IMPROVE BEGIN>>>", "<<< Improve begin >>>"),
        form=PLAN_FORM,
    ),
    plan_cut_off("no more tokens for the scaffold", "Tile.\n```\nimport", prose="Tile."),
    plan_cut_off("no more tokens for the advice", "Tile the", prose=""),
    Case(
        "a plan written out", call(advice="Tile.", scaffold=SCAFFOLD)[0], source=SCAFFOLD, prose="Tile.", form=PLAN_FORM
    ),
    Case("an unmarked scaffold", "Tile.\n```\nx = 1\n```", source="x = 1\n", prose="Tile.", form=PLAN_FORM),
    Case("a scaffold alone", f"```\n{SCAFFOLD}```", source=SCAFFOLD, prose="", form=PLAN_FORM),
    Case("advice alone", "Tile.", fault=ReplyFault.NO_CODE, prose="Tile.", form=PLAN_FORM),
    Case("advice alone in a call", "", call(advice="Tile."), fault=ReplyFault.NO_CODE, prose="Tile.", form=PLAN_FORM),
    Case(
        "two scaffolds",
        f"{FENCED_SCAFFOLD}\n```\n{OTHER_SCAFFOLD}```",
        fault=ReplyFault.TWO_ANSWERS,
        prose="Tile the loop.",
        form=PLAN_FORM,
    ),
    Case("two unmarked blocks", "a\n```\nx\n```\n```\ny\n```", fault=ReplyFault.TWO_ANSWERS, prose="a", form=PLAN_FORM),
    Case("a scaffold cut off", f"Tile.\n```\n{SCAFFOLD}", fault=ReplyFault.TRUNCATED, prose="Tile.", form=PLAN_FORM),
    Case("a scaffold with NUL", FENCED_SCAFFOLD.replace("x", "\0"), fault=ReplyFault.MALFORMED, form=PLAN_FORM),
    Case("NUL in the advice", f"Ti\0le.\n```\n{SCAFFOLD}```", source=SCAFFOLD, prose="Ti\ufffdle.", form=PLAN_FORM),
    Case("an empty plan", "", call(advice="", scaffold=""), fault=ReplyFault.EMPTY, form=PLAN_FORM),
    Case("an empty block", "```\n```", fault=ReplyFault.EMPTY, form=PLAN_FORM),
    Case("free advice", "Do:\n```\nx\n```", prose="Do:\n```\nx\n```", form=PLAN_FORM_WITHOUT_ANCHORS),
    Case("free advice in a call", "", call(advice="Tile."), prose="Tile.", form=PLAN_FORM_WITHOUT_ANCHORS),
    Case("no free advice", "", call(scaffold="x"), fault=ReplyFault.EMPTY, form=PLAN_FORM_WITHOUT_ANCHORS),
    Case("advice that is a list", "", call(advice=["a"]), fault=ReplyFault.MALFORMED, form=PLAN_FORM),
]

CASES = KERNELS + PLANS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_reply_is_read_as_the_table_says(case):
    case.check(case.read(case.reply()))


def test_thinking_that_never_ends_is_no_answer_but_may_hold_one_where_nothing_follows():
    """Not in the table: some clients take such tags away themselves."""
    assert read_kernel(Reply(text=f"<think>\n{FENCED}")).fault is ReplyFault.EMPTY
    assert read_plan(Reply(text="<think>Hm\n```\nx", finish=Finish.TRUNCATED), PLAN_FORM).text == ""
    assert read_kernel(Reply(text=f"<think>\n{FENCED}</think>\n")).source == KERNEL


def test_the_table_names_every_fault_and_no_case_twice():
    assert {case.fault for case in CASES} == {None, *ReplyFault}
    assert len({case.name for case in CASES}) == len(CASES) >= 40


def test_forms_are_named_after_their_roles():
    assert [form.name for form in (PLAN_FORM, CODE_FORM, DEBUG_FORM, SOLO_FORM)] == ["plan", "code", "debug", "solo"]
    assert list(PLAN_FORM_WITHOUT_ANCHORS.fields) == ["advice"]


def test_the_largest_reply_is_still_read():
    filler = "#" * (MAX_REPLY_CHARACTERS - len(FENCED))
    assert read_kernel(Reply(text=FENCED + filler)).source == KERNEL
    assert read_kernel(Reply(text=FENCED + filler + "#")).fault is ReplyFault.TOO_LARGE


PIECES = st.sampled_from(["```", "~~~~", "\n", "\r", KERNEL, SCAFFOLD, "class ModelNew", "python", "\0", "\ud800", " "])
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)
FIELDS = st.dictionaries(
    st.sampled_from(["source", "explanation", "advice", "scaffold"]) | st.text(max_size=3),
    TEXTS | st.none() | st.integers() | st.lists(st.text(max_size=3), max_size=2),
)
ARGUMENTS = (
    st.none() | st.text() | FIELDS.map(json.dumps) | st.lists(FIELDS.map(json.dumps), max_size=3).map(json.dumps)
)


@given(TEXTS, ARGUMENTS, st.sampled_from(Finish))
@example("", '{"\\ud800": 1}', Finish.COMPLETE)
def test_whatever_a_model_says_is_an_answer_that_can_be_stored(text, arguments, finish):
    reply = Reply(text=text, arguments=arguments, finish=finish)
    for answer in (read_kernel(reply), read_plan(reply, PLAN_FORM), read_plan(reply, PLAN_FORM_WITHOUT_ANCHORS)):
        assert bool(answer.detail) == (answer.fault is not None)
        assert answer.fault is None or answer.source is None
        for stored in (answer.text, answer.source or "", answer.detail):
            stored.encode("utf-8")
            assert "\r" not in stored


@given(TEXTS)
def test_a_kernel_that_is_accepted_defines_model_new(text):
    answer = read_kernel(Reply(text=text))
    assert answer.fault is not None or "class ModelNew" in (answer.source or "")
