"""The Ray evaluator on a real cluster of several nodes, which are all on this machine.

The resource ``stark_lane`` stands in for a GPU. A node has a lane; tests add nodes with a lane or for builds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.evaluator import RIGHT, EvaluatorConformance
from conformance.evaluator import TASK as TASK_SOURCE
from stark.core.errors import EvaluatorError, UsageError
from stark.core.settings import EvaluationSettings
from stark.evaluation.cluster import evaluator as coordinator
from stark.evaluation.cluster.evaluator import RayEvaluator
from stark.store.open import open_store
from stark_worker.processes.process_tree import descendants
from stark_worker.protocol.errors import Outcome
from waiting import stored, wait_until

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings are Ray's own
STORE = 80 * 2**20
# A lost node is noticed after 3 s instead of 15, and no node starts processes before it needs them.
SWIFT = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
SWIFT |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}


@pytest.fixture(scope="module")
def cluster():
    """Nodes that are reached with a token and from this machine only. Ray reads its variables when it is imported."""
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), coordinator.LOOPBACK_ONLY: "0"}
    own |= {"RAY_USAGE_STATS_ENABLED": "0", **SWIFT}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster

        made = Cluster()
        try:
            start_node(made, num_cpus=0, include_dashboard=False)  # the first is the head
            add_lane(made)
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


@pytest.mark.slow  # until five runs in a row have passed
class TestRay(EvaluatorConformance):
    @pytest.fixture
    def make(self, cluster):
        return lambda: RayEvaluator(settings(cluster, lanes=1))


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
    lost, builder = add_lane(cluster), start_node(cluster, num_cpus=1)
    requests = variants(4)

    async def judge_while_things_die():
        async with RayEvaluator(settings(cluster)) as judge:
            while len(judge.lanes) < 2:
                await asyncio.sleep(0.1)
            running = [asyncio.create_task(judge.evaluate(request)) for request in requests]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.to_thread(cluster.remove_node, lost, False)
            (gateway,) = gateways()
            os.kill(gateway, signal.SIGKILL)
            return await asyncio.gather(*running)

    try:
        reports = asyncio.run(judge_while_things_die())
    finally:
        cluster.remove_node(builder)
    assert [report.outcome for report in reports] == [Outcome.OK] * len(requests)
    assert all(report.isolation for report in reports)
    wait_until(lambda: not gateways())


KERNEL = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(features))

    def forward(self, x):
        return torch.relu({} + self.bias)
"""


@pytest.mark.slow
def test_a_grid_survives_a_lost_node_and_a_killed_driver_with_the_trees_of_the_local_evaluator(cluster, tmp_path):
    local, ray = tmp_path / "local", tmp_path / "ray"
    run_bench(tmp_path, local, "local").communicate()
    lost = add_lane(cluster)
    with run_bench(tmp_path, ray, "ray", cluster.address) as driver:
        wait_until(lambda: stored(ray, "nodes") >= 2)
        cluster.remove_node(lost, allow_graceful=False)
        wait_until(lambda: stored(ray, "nodes") >= 3)
        driver.kill()
    run_bench(tmp_path, ray, "ray", cluster.address).communicate()
    assert trees(ray) == trees(local)
    assert sum(map(len, trees(ray).values())) == 2 * (1 + 2)


def run_bench(folder: Path, store: Path, evaluator: str, address: str | None = None):
    """Start a grid of two tasks, for which the same two kernels are proposed; the second is wrong."""
    tasks, script = folder / "tasks", folder / "script"
    for number in (1, 2):
        tasks.mkdir(exist_ok=True)
        Path(tasks, f"task{number}.py").write_text(f"# task {number}\n{TASK_SOURCE}")
    for number, product in enumerate(("x * 2.0", "x * 2.1"), 1):
        script.mkdir(exist_ok=True)
        Path(script, f"{number:02}-solo.md").write_text(f"Done.\n\n```python\n{KERNEL.format(product)}```\n")
    command = [sys.executable, "-m", "stark.cli", "bench", "--tasks", tasks, "--store", store, "--method", "sampling"]
    command += ["--model", f"scripted:{script}", "--attempts", "2", "--no-baselines", "--allow-weak-sandbox"]
    command += ["--set", "evaluation.final=false", "--plain", "--evaluator", evaluator]
    return subprocess.Popen([*command, *(["--ray-address", address] if address else [])])


def trees(folder: Path):
    """All nodes of each run but their times."""
    with contextlib.closing(open_store(folder, write=False)) as store:
        return {
            run.id: [(each.id, each.parent_id, each.source, each.report.outcome) for each in store.nodes(run.id)]
            for run in store.runs()
        }


@pytest.mark.slow
def test_a_cluster_without_a_gpu_is_refused_with_what_it_has(cluster):
    with pytest.raises(EvaluatorError, match=r"has no GPU. Its nodes: .*127\.0\.0\.1: 1 core[;.]"):
        asyncio.run(enter(settings(cluster, target="cuda")))


@pytest.mark.slow
def test_a_kind_that_the_cluster_lacks_is_refused(cluster):
    with pytest.raises(EvaluatorError, match=r"no device of the kind 'H200'. It has: \d x .*cores"):
        asyncio.run(enter(settings(cluster, device_kind="H200")))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:9", "refused"),
        ("nowhere.invalid:6379", "not known|resolution"),
        ("nowhere", "address"),
        ("local", "names no running cluster"),
    ],
)
def test_an_address_without_a_cluster_is_refused(address, why):
    with pytest.raises(EvaluatorError, match=f"cannot be reached: .*({why})"):
        asyncio.run(enter(EvaluationSettings(evaluator="ray", ray_address=address)))


def test_a_port_where_something_else_listens_is_refused():
    with socket.create_server(("", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(EvaluatorError, match="is not Ray"):
            asyncio.run(enter(EvaluationSettings(evaluator="ray", ray_address=address)))


def test_an_address_of_rays_client_is_refused():
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
