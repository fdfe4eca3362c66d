"""The Ray evaluator on a real cluster of several nodes, which are all on this machine.

The resource ``stark_lane`` stands in for a GPU. Two nodes have a lane; a third one builds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.evaluator import REFERENCE, RIGHT, EvaluatorConformance
from paths import ROOT
from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark.evaluation.cluster import evaluator as coordinator
from stark.evaluation.cluster.evaluator import RayEvaluator
from stark.run import api
from stark.store.open import open_store
from stark_worker.processes.process_tree import descendants
from stark_worker.protocol.errors import Outcome
from waiting import wait_until

# Warnings are Ray's own. A cluster takes minutes to start, and to be missed, on two cores.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
STORE = 80 * 2**20
TASK = ROOT / "examples" / "tasks" / "softmax_rows.py"
SEARCH = {"method": "sampling", "budget": {"attempts": 3}}  # its tree does not depend on times


@pytest.fixture(scope="module")
def cluster():
    """Nodes that are reached with a token and from this machine only. Ray reads its variables when it is imported."""
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), coordinator.LOOPBACK_ONLY: "0"}
    own |= {"RAY_USAGE_STATS_ENABLED": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        made = Cluster()
        try:
            start_node(made, num_cpus=0, include_dashboard=False)  # the first is the head
            add_lane(made)
            start_node(made, num_cpus=1)
            yield made
        finally:
            made.shutdown()


def add_lane(cluster):
    return start_node(cluster, num_cpus=1, resources={"stark_lane": 1})


def start_node(cluster, **options):
    for _ in range(3):
        with contextlib.suppress(Exception):  # Ray gives a node 30 s to start, and a busy machine may need longer
            return cluster.add_node(object_store_memory=STORE, **options)
    return cluster.add_node(object_store_memory=STORE, **options)


def settings(cluster, **others) -> EvaluationSettings:
    return EvaluationSettings(evaluator="ray", ray_address=cluster.address, allow_weak_sandbox=True, **others)


class TestRay(EvaluatorConformance):
    @pytest.fixture
    def make(self, cluster):
        return lambda: RayEvaluator(settings(cluster))


def variants(count: int):
    return [
        replace(RIGHT, candidate_source=f"# {secrets.token_hex(4)}\n{RIGHT.candidate_source}") for _ in range(count)
    ]


def gateways() -> list[int]:
    """The gateways that this process has started and that live."""
    found = []
    for number, process in descendants(os.getpid()).items():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_text()
            if process.state != "Z" and coordinator.GATEWAY in command:
                found.append(number)
    return found


@pytest.mark.slow
def test_nothing_is_lost_or_blamed_if_a_node_or_the_gateway_dies(cluster):
    second = add_lane(cluster)
    requests = variants(8)

    async def judge_while_things_die():
        async with RayEvaluator(settings(cluster)) as judge:
            await judge.evaluate(REFERENCE)
            while len(judge.lanes) < 2:
                await asyncio.sleep(0.1)
            running = [asyncio.create_task(judge.evaluate(request)) for request in requests]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(cluster.remove_node, second, False)
            await asyncio.sleep(0.5)
            (gateway,) = gateways()
            os.kill(gateway, signal.SIGKILL)
            return await asyncio.gather(*running)

    reports = asyncio.run(judge_while_things_die())
    assert [report.outcome for report in reports] == [Outcome.OK] * len(requests)
    assert all(report.isolation for report in reports)
    wait_until(lambda: not gateways())


START = """
import sys
from pathlib import Path
from stark.core.records import EventKind
from stark.run import api
def say(event):
    if event.kind is EventKind.LANDED:
        print("landed", flush=True)
evaluation = {"evaluator": "ray", "ray_address": sys.argv[3], "allow_weak_sandbox": True, "final": False}
api.optimize(sys.argv[1], run=sys.argv[2], evaluation=evaluation, listener=say, method="sampling",
             budget={"attempts": 3})
"""


@pytest.mark.slow
def test_a_killed_coordinator_resumes_and_ends_with_the_tree_of_the_local_evaluator(cluster, tmp_path):
    here = {"evaluator": "local", "allow_weak_sandbox": True, "final": False}
    api.optimize(TASK, run=tmp_path / "local", evaluation=here, **SEARCH)
    command = [sys.executable, "-c", START, str(TASK), str(tmp_path / "ray"), cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):  # the reference and an attempt
            assert process.stdout.readline() == "landed\n"
        process.kill()
    api.resume(tmp_path / "ray")
    assert tree(tmp_path / "ray") == tree(tmp_path / "local")


def tree(folder: Path):
    """All nodes of a run but their times."""
    with contextlib.closing(open_store(folder, write=False)) as store:
        (run,) = store.runs()
        return [(each.id, each.parent_id, each.source, each.report.outcome) for each in store.nodes(run.id)]


def test_a_cluster_without_a_gpu_is_refused_with_what_it_has(cluster):
    with pytest.raises(EvaluatorError, match=r"has no GPU. Its nodes: 127\.0\.0\.1: 0 cores"):
        asyncio.run(enter(settings(cluster, target="cuda")))


def test_a_kind_that_the_cluster_lacks_is_refused(cluster):
    with pytest.raises(EvaluatorError, match=r"no device of the kind 'H200'. It has: \d x .*cores"):
        asyncio.run(enter(settings(cluster, device_kind="H200")))


def test_an_address_without_a_cluster_is_refused():
    with pytest.raises(EvaluatorError, match="cannot be reached"):
        asyncio.run(enter(EvaluationSettings(evaluator="ray", ray_address="127.0.0.1:9")))
    with pytest.raises(UsageError, match="Ray's client"):
        RayEvaluator(EvaluationSettings(evaluator="ray", ray_address="ray://head:10001"))


async def enter(chosen: EvaluationSettings) -> None:
    async with RayEvaluator(chosen):
        pass


@pytest.mark.slow
def test_a_cluster_of_its_own_listens_on_this_machine_only_and_knows_no_key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret-key")
    before = listening()

    async def look():
        async with RayEvaluator(EvaluationSettings(evaluator="ray", allow_weak_sandbox=True)):
            (gateway,) = gateways()
            environments = [
                Path(f"/proc/{number}/environ").read_bytes()
                for number in (gateway, *descendants(gateway))
                if readable(number)
            ]
            return listening() - before, environments

    opened, environments = asyncio.run(look())
    assert opened
    assert {address for address, _ in opened} <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert len(environments) > 3
    assert not any(b"secret-key" in environment for environment in environments)


def listening() -> set[tuple[str, str]]:
    texts = [Path("/proc/net", name).read_text() for name in ("tcp", "tcp6")]
    lines = [line.split() for text in texts for line in text.splitlines()[1:]]
    return {tuple(line[1].split(":")) for line in lines if line[3] == "0A"}


def readable(number: int) -> bool:
    with contextlib.suppress(OSError):
        return bool(Path(f"/proc/{number}/environ").read_bytes())
    return False
