"""A recorded session: an agent that saw nothing but the tools made an example task faster. Its calls are made again.

``tests/record_session.py`` records one; calls that led to nothing are left out. Times differ from machine to machine,
so only the verdicts have to be the same; and the task is smaller here, because most of a call is the time that its
kernels take.
"""

from __future__ import annotations

import json
import sys

from mcp import StdioServerParameters

from mcp_session import run, variables
from paths import ROOT, TESTS

RECORDED = json.loads((TESTS / "data" / "mcp" / "first-session.json").read_text())
TASK = "softmax_rows.py"
EXACT = ("outcome", "is_correct")


def test_the_session_ended_with_a_kernel_that_is_surely_faster():
    judged = [call["answer"] for call in RECORDED if call["tool"] == "judge" and call["answer"]]
    assert any(answer["is_surely_faster"] for answer in judged)
    assert {"bound", "baseline", "profile"} <= {call["tool"] for call in RECORDED}


def test_the_calls_of_the_session_have_the_same_verdicts_again(server, folder):
    source = (ROOT / "examples" / "tasks" / TASK).read_text()
    assert "ROWS = 1024" in source
    (folder / TASK).write_text(source.replace("ROWS = 1024", "ROWS = 64"))

    async def repeat(session):
        for call in RECORDED:
            for name, text in call.get("files", {}).items():
                if name != TASK:
                    (folder / name).write_text(text)
            quick = {"names": ["eager"]} if call["tool"] == "baseline" else {}  # torch.compile takes a minute
            answer = await session.client.call_tool(call["tool"], call["arguments"] | quick)
            assert answer.is_error == (call["answer"] is None), answer.content[0].text
            if not answer.is_error:
                found = answer.structured_content
                assert found.keys() == call["answer"].keys()
                assert verdict(found) == verdict(call["answer"])

    run(repeat, server)


def verdict(answer: dict[str, object]) -> dict[str, object]:
    return {name: answer[name] for name in EXACT if name in answer}


def test_a_session_is_recorded_in_the_form_that_is_made_again(tmp_path):
    (tmp_path / "task.py").write_text("no task")
    words = [str(TESTS / "record_session.py"), str(tmp_path / "session.json"), "--root", str(tmp_path)]
    server = StdioServerParameters(command=sys.executable, args=words, env=variables())

    async def work(session):
        await session.client.list_tools()
        await session.refused("judge", task=str(tmp_path / "task.py"), source="x")

    run(work, server)
    call = {"tool": "judge", "arguments": {"task": "task.py", "source": "x"}, "files": {"task.py": "no task"}}
    assert json.loads((tmp_path / "session.json").read_text()) == [{**call, "answer": None}]
