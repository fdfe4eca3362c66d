"""Searches in the background, and the tools that read their runs, with stand-ins for model and evaluator."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3

import pytest

import stark
from fakes import TASK
from stark.core.errors import StarkError, StoreLocked, UsageError
from stark.mcp import runs
from stark.mcp.files import Outputs
from stark.mcp.roots import Roots
from stark.mcp.rules import Choice, SearchChoice, ServerRules
from stark.mcp.searches import MAX_SEARCHES, Searches
from stark.mcp.searching import RunTools
from stark.mcp.waiting import Activity
from stark.mcp.workers import Workers
from stark.store.open import open_store

FAKES = {"evaluation": {"evaluator": "fakes:HashEvaluator"}, "roles": {"model": "fakes:PretendModel"}}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


@contextlib.asynccontextmanager
async def tools(options=FAKES):
    workers = Workers()
    searches = Searches(workers)
    try:
        yield RunTools(ServerRules.load(None, [], options), searches)
    finally:
        await searches.close()
        await workers.close()


async def finish(tools, roots, run):
    while (status := await tools.status(roots, run, 5.0, Activity(""))).state in ("starting", "running"):
        pass
    return status


def start(tools, roots, **limits):
    return tools.optimize(roots, "task.py", None, "", Choice(), SearchChoice(**limits))


def test_a_search_returns_its_run_at_once_and_is_read_from_its_store(place):
    async def main():
        roots = Roots((place,))
        async with tools() as mine:
            begun = await start(mine, roots, attempts=6)
            assert (begun.state, begun.attempts) == ("starting", 0)
            assert begun.folder == str(place / "runs" / begun.run)
            return roots, begun.run, await finish(mine, roots, begun.run)

    roots, run, ended = asyncio.run(main())
    assert (ended.state, ended.attempts) == ("ended", 6)
    assert ended.quoted_error == ""

    async def later():  # another server reads the same run
        async with tools() as other:
            again = await other.status(roots, run, 5.0, Activity(""))
            assert again == await other.status(roots, f"runs/{run}", 0, Activity(""))
            assert (again.state, again.attempts, again.best_node) == ("ended", 6, ended.best_node)
            with pytest.raises(UsageError, match="does not run"):
                await other.stop(roots, run)
            return other.show(roots, run, 2, 0), other.show(roots, run, None, None)

    node, tree = asyncio.run(later())
    assert [line.node for line in tree.nodes] == list(range(7))
    assert tree.node is None
    assert "variant" in tree.quoted_plans
    assert "class ModelNew" in node.node.quoted_source
    assert "--- node 0" in node.node.quoted_diff
    folder = place / "runs" / run
    assert "node 0 (reference): " in runs.format_tree(folder)
    assert "class ModelNew" in runs.format_source(folder, 2)
    assert "--- system ---" in runs.format_prompts(folder, 2)
    assert runs.format_prompts(folder, 0) == "No model was asked for node 0."
    with pytest.raises(UsageError, match="no node 99"):
        runs.show_run(folder, 99, None)


def test_a_stopped_search_can_be_resumed(place):
    async def main():
        roots = Roots((place,))
        async with tools() as mine:
            begun = await start(mine, roots, attempts=100_000)
            await mine.status(roots, begun.run, 50.0, Activity(""))
            return begun, await mine.stop(roots, begun.run)

    begun, stopped = asyncio.run(main())
    assert stopped.state == "stopped"
    open_store(place / "runs" / begun.run, write=True).close()  # nothing holds it
    result = stark.resume(begun.folder, budget={"attempts": stopped.attempts + 2})
    assert result.attempts == stopped.attempts + 2


def test_a_server_that_ends_stops_its_searches(place):
    async def main():
        async with tools() as mine:
            begun = await start(mine, Roots((place,)), attempts=100_000)
            await mine.status(Roots((place,)), begun.run, 50.0, Activity(""))
            return begun

    folder = place / "runs" / asyncio.run(main()).run
    assert runs.status_of(folder, None).state == "stopped"


def test_a_run_of_another_process_is_running_elsewhere(place):
    stark.optimize(place / "task.py", run=place / "run", budget={"attempts": 1}, **FAKES)
    with contextlib.closing(open_store(place / "run", write=True)), pytest.raises(StoreLocked):
        open_store(place / "run", write=True)
    held = open_store(place / "run", write=True)
    assert runs.status_of(place / "run", None).state == "running elsewhere"
    held.close()
    assert runs.status_of(place / "run", None).state == "ended"


def test_a_search_that_fails_says_why_as_data(place):
    async def main():
        options = {**FAKES, "evaluation": {"evaluator": "fakes:TroubledEvaluator"}}
        (place / "task.py").write_text(TASK + "# broken\n")
        async with tools(options) as mine:
            begun = await start(mine, Roots((place,)))
            return await finish(mine, Roots((place,)), begun.run)

    failed = asyncio.run(main())
    assert failed.state == "failed"
    assert "It is broken." in failed.quoted_error
    assert "not instructions" in failed.quoted_error


def test_a_server_has_a_most_of_searches(place):
    async def main():
        roots = Roots((place,))
        async with tools() as mine:
            for _ in range(MAX_SEARCHES):
                await start(mine, roots, attempts=100_000)
            await start(mine, roots)

    with pytest.raises(StarkError, match="searches run already"):
        asyncio.run(main())


def test_runs_outside_of_the_roots_are_not_found(place, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    stark.optimize(place / "task.py", run=other / "run", budget={"attempts": 1}, **FAKES)
    (place / "link").symlink_to(other / "run")
    (place / "near").mkdir()
    (place / "near" / "stark.db").symlink_to(other / "run" / "stark.db")

    async def main():
        async with tools() as mine:
            for name in (str(other / "run"), f"../{other.name}/run", "link", "near", "", ".", "..", "/", "missing"):
                with pytest.raises(UsageError):
                    mine.show(Roots((place,)), name, None, None)

    asyncio.run(main())


def test_a_store_that_is_no_store_is_an_error_of_the_user(place):
    (place / "run").mkdir()
    (place / "run" / "stark.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(StarkError):
        runs.status_of(place / "run", None)


def test_the_winner_of_a_run_is_exported_with_its_evidence(place):
    stark.optimize(place / "task.py", run=place / "run", budget={"attempts": 4}, **FAKES)
    roots = Roots((place,))

    async def main():
        async with tools() as mine:
            return mine.export(roots, "run", Outputs.of(roots, None, "evidence.stark"))

    written = asyncio.run(main())
    assert written.files == [str(place / "evidence.stark")]
    assert (place / "evidence.stark").stat().st_size > 1000
    with pytest.raises(UsageError, match="nothing to write"):
        Outputs.of(roots, None, None)
    with pytest.raises(UsageError, match="overwritten"):
        Outputs.of(roots, None, "evidence.stark")


def test_the_store_is_only_read(place):
    stark.optimize(place / "task.py", run=place / "run", budget={"attempts": 1}, **FAKES)
    before = (place / "run" / "stark.db").read_bytes()
    runs.show_run(place / "run", 1, None)
    runs.status_of(place / "run", None)
    assert (place / "run" / "stark.db").read_bytes() == before
    with contextlib.closing(sqlite3.connect(place / "run" / "stark.db")) as db:
        assert db.execute("SELECT count(*) FROM nodes").fetchone() == (2,)
