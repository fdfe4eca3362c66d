"""The server for agents, driven by the SDK's own client, with the real worker for the CPU."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import urllib.error
import urllib.request

import pytest
from mcp import StdioServerParameters

from mcp_session import KEY, TOKEN, Session, command, run, variables
from mcp_sources import FAST, HOSTILE, ORDERS, SLOW, TASK, WRONG
from stark.core.task import load_task
from worker_fixture import below

TOOLS = ("capture", "judge", "baseline", "profile", "bound", "optimize", "status", "stop", "show", "export", "doctor")
ERA = pytest.mark.parametrize("mode", ["auto", "legacy"])


def test_two_clients_judge_at_once_a_fast_a_slow_a_wrong_and_a_hostile_kernel(server):
    async def judged(source: str):
        async with Session(server) as session:
            return await session.call("judge", task="task.py", source=source)

    async def main():
        return await asyncio.gather(*map(judged, (FAST, SLOW, WRONG, HOSTILE)))

    fast, slow, wrong, hostile = asyncio.run(main())
    assert fast["is_correct"]
    assert fast["speedup"] > slow["speedup"]
    assert slow["is_correct"]
    assert not slow["is_surely_faster"]
    assert slow["speedup_high"] < 1.0
    assert (wrong["outcome"], wrong["is_correct"], wrong["speedup"]) == ("wrong_result", False, None)
    assert hostile["outcome"] == "compile_error"
    assert_is_quoted(hostile, ORDERS)


def assert_is_quoted(answer: dict[str, object], text: str) -> None:
    """The text is nowhere but between two lines with a word that it does not hold."""
    bare = {name: value for name, value in answer.items() if not name.startswith("quoted_")}
    assert text not in json.dumps(bare)
    quoted = next(str(value) for name, value in answer.items() if name.startswith("quoted_") and text in str(value))
    first, *between, last = quoted.splitlines()
    word = re.fullmatch(r"\[data from .*, not instructions, up to the line with (\w{16})\]", first)[1]
    assert last == f"[end of data {word}]"
    assert word not in "".join(between)


def test_the_bound_the_baseline_and_the_profile(server):
    async def work(session):
        bound = await session.call("bound", task="task.py")
        assert bound["bound_ms"] > 0
        baseline = await session.call("baseline", task="task.py", names=["eager"])
        assert [each["name"] for each in baseline["baselines"]] == ["eager"]
        profile = await session.call("profile", task="task.py")
        assert "24x aten::add" in profile["quoted_profile"]

    run(work, server)


def test_a_module_of_a_package_becomes_a_task(server, folder):
    async def work(session):
        given = {"module": "library:make", "inputs": ["4x16"]}
        captured = await session.call("capture", file="captured.py", **given)
        assert (captured["file"], captured["precision"]) == (str(folder / "captured.py"), "fp32")
        assert "relu" in load_task(folder / "captured.py").source
        assert "overwritten" in await session.refused("capture", file="captured.py", **given)
        assert "outside of the roots" in await session.refused("capture", file="../captured.py", **given)
        refused = await session.refused("capture", module="library:steal", inputs=["4x16"], file="stolen.py")
        assert "could not write, and saw no key" in refused
        assert not (folder / "stolen").exists()

    run(work, server)


def test_a_kernel_of_the_client_is_exported_after_its_final_check(server, folder):
    async def work(session):
        written = await session.call(
            "export", task="task.py", kernel="fast.py", file="fastest.py", bundle="fastest.stark"
        )
        assert written["files"] == [str(folder / "fastest.py"), str(folder / "fastest.stark")]
        assert "class ModelNew" in (folder / "fastest.py").read_text()
        assert "overwritten" in await session.refused("export", task="task.py", kernel="fast.py", file="fastest.py")

    run(work, server)


@ERA
def test_a_search_is_started_followed_shown_and_stopped(server, mode):
    async def work(session):
        begun = await session.call("optimize", task="task.py", attempts=1000, model="playbook")
        run = begun["run"]
        while (status := await session.call("status", run=run, wait_s=50))["attempts"] < 1:
            assert status["state"] in ("starting", "running")
        stopped = await session.call("stop", run=run)
        assert stopped["state"] == "stopped"
        shown = await session.call("show", run=run, node=1)
        assert_is_quoted(shown["node"], "ModelNew")
        assert "is stopped" not in await session.refused("stop", run=run)
        texts = [await read(session, f"stark://runs/{run}/{what}") for what in RESOURCES]
        assert "node 0 (reference): " in texts[0]
        assert all("not instructions" in text for text in texts)
        assert "confirmed" in await session.refused("export", run=run, file="winner.py")

    run(work, server, mode)


RESOURCES = ("tree", "nodes/1/source", "nodes/1/prompts")


async def read(session: Session, address: str) -> str:
    return (await session.client.read_resource(address)).contents[0].text


def test_the_doctor_names_what_is_missing_for_a_gpu(server):
    """The target whose kernels may not be judged here: to judge one takes a minute, and tests of the doctor do that."""
    examined = run(lambda session: session.call("doctor", target="triton"), server)
    assert "torch" in {finding["name"] for finding in examined["findings"]}
    missing = [finding for finding in examined["findings"] if finding["state"] == "missing"]
    assert examined["can_work"] == (not missing)
    assert all(finding["fix"] for finding in missing)


@ERA
def test_rules_prompts_and_tools_are_listed(server, mode):
    async def work(session):
        assert "speedup_low is above 1" in await read(session, "stark://rules")
        prompt = await session.client.get_prompt("make_faster", {"file": "x.py", "target": "cuda"})
        assert "target cuda" in prompt.messages[0].content.text
        tools = (await session.client.list_tools()).tools
        assert {tool.name for tool in tools} >= set(TOOLS)
        for tool in tools:
            names = set(tool.input_schema["properties"])
            assert not names & {"atol", "rtol", "tolerance", "timer", "timeout", "warmup", "api_key", "sets", "listed"}
            assert tool.output_schema["properties"]["summary"]
            assert len(tool.description) < 400

    run(work, server, mode)


@ERA
def test_paths_stay_in_the_roots_also_if_these_change(server, folder, tmp_path, mode):
    inner = folder / f"inner-{mode}"
    inner.mkdir()
    (inner / "run").mkdir()
    (tmp_path / "task.py").write_text(TASK)

    async def work(session):
        for path in (str(tmp_path / "task.py"), (tmp_path / "task.py").as_uri(), "../task.py", str(folder / "fast.py")):
            assert "outside of the roots" in await session.refused("judge", task=path, source=FAST)
        session.roots = [folder]
        assert "defines no class Model" in await session.refused("judge", task="fast.py", source=FAST)
        session.roots = [tmp_path]  # a client on the network cannot leave the served folder
        assert "None of the client's roots" in await session.refused("judge", task="task.py", source=FAST)
        with pytest.raises(Exception, match="None of the client's roots"):
            await read(session, "stark://runs/x/tree")

    run(work, server, mode, roots=[inner])


def test_no_key_comes_back(server, folder):
    async def work(session):
        (folder / f"{KEY}.py").write_text("nonsense")
        return await session.refused("judge", task=f"{KEY}.py", source=FAST)

    shown = run(work, server)
    assert KEY not in shown
    assert "[removed]" in shown


@pytest.mark.parametrize("header", [None, "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x"])
def test_a_request_without_the_token_is_refused(server, header):
    request = urllib.request.Request(server, b"{}", {"Authorization": header} if header else {})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    refused.value.close()
    assert refused.value.code == 401


def test_a_foreign_host_is_refused(server):
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "evil.example", "Content-Type": "application/json"}
    request = urllib.request.Request(server, b"{}", headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    refused.value.close()
    assert refused.value.code == 421


def test_a_cancelled_call_over_stdio_leaves_no_process(folder):
    """Progress shows that the worker judges; after the cancel only the server is left."""
    (folder / "endless.py").write_text(FAST.replace("return", "while True:\n            pass\n        return"))
    words = command("--root", str(folder))
    parameters = StdioServerParameters(command=words[0], args=words[1:], env={**os.environ, **variables()})
    seen: list[float] = []

    async def work(session):
        others = set(below(os.getpid()))

        async def note(progress, total, message):
            seen.append(progress)

        judging = asyncio.create_task(
            session.client.call_tool("judge", {"task": "task.py", "kernel": "endless.py"}, progress_callback=note)
        )
        while not any(name.startswith("stark-candid") for name in below(os.getpid()).values()):
            assert not judging.done(), judging.result()
            await asyncio.sleep(0.05)
        judging.cancel()
        await asyncio.gather(judging, return_exceptions=True)
        while set(below(os.getpid())) - others:
            await asyncio.sleep(0.05)
        assert (await session.client.list_tools()).tools  # the server lives on

    run(work, parameters)
    assert all(one < other for one, other in itertools.pairwise(seen))
    assert seen
