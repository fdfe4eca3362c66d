"""The lanes and builders of a cluster: actors on each node that offers what they need.

A node that is lost takes its actors along; one that joins gets actors. A lane that cannot start is tried again later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stark.core.errors import EvaluatorError
from stark.evaluation.cluster.kinds import choose_kind, describe_kind
from stark.evaluation.cluster.messages import Order
from stark.evaluation.cluster.node import BuilderNode, LaneNode
from stark_worker.protocol.codec import from_json
from stark_worker.protocol.report import DeviceFacts

CPU_LANE = "stark_lane"  # the resource by which a node offers its processor as a lane; a GPU is offered by Ray itself
LANE_CAPACITY = 2  # one request is timed while the candidate of the next is read
WATCH_EVERY_S = 1.0
STRAGGLERS_S = 30.0  # that long after the first lane, others may still join the choice of a device kind
FIRST_RETRY_S, LAST_RETRY_S = 10.0, 600.0

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """One device with its actor."""

    name: str
    node: str
    actor: Any
    device: DeviceFacts | None = None
    build_kind: str = ""
    level: str = ""

    @property
    def kind(self) -> str:
        return describe_kind(self.device) if self.device else ""


@dataclass
class Builder:
    """The builder of one node."""

    actor: Any
    build_kind: str = ""
    running: int = 0


@dataclass
class _Node:
    """One machine of the cluster as the pool uses it."""

    id: str
    address: str
    lanes: int
    cores: int
    starting: set[asyncio.Task[None]] = field(default_factory=set)  # lanes
    building: set[asyncio.Task[None]] = field(default_factory=set)  # the builder's start
    excluded: bool = False
    retry_at: float = 0.0
    retry_s: float = FIRST_RETRY_S
    last_failure: str = ""
    count: int = 0  # of the lanes ever started, for their names


class Pool:
    """Keeps actors on all nodes. Calls ``on_lane`` with each lane that can be used, ``on_loss`` with one that died."""

    def __init__(
        self, order: Order, archive: Any, on_lane: Callable[[Lane], None], on_loss: Callable[[str], None]
    ) -> None:
        self._order, self._archive, self._on_lane, self._on_loss = order, archive, on_lane, on_loss
        self._nodes: dict[str, _Node] = {}
        self._started: dict[str, Lane] = {}
        self._builders: dict[str, Builder] = {}
        self._first_lane_at: float | None = None
        self.kind = order.kind
        self._resource = CPU_LANE if order.target == "cpu" else "GPU"

    # -- nodes ----------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Follow the cluster until this is cancelled."""
        if self._order.lanes is not None and self._resource == "GPU":
            await asyncio.to_thread(_request_gpus, self._order.lanes)
        while True:
            self._compare(await asyncio.to_thread(ray.nodes))
            if self.kind is None:
                self._settle_kind()
            await asyncio.sleep(WATCH_EVERY_S)

    def _compare(self, listed: list[dict[str, Any]]) -> None:
        alive = {node["NodeID"]: node for node in listed if node["Alive"]}
        for gone in self._nodes.keys() - alive.keys():
            self._forget_node(gone)
        for node_id, facts in alive.items():
            if node_id not in self._nodes:
                offered = facts["Resources"]
                lanes, cores = int(offered.get(self._resource, 0)), int(offered.get("CPU", 0))
                self._nodes[node_id] = _Node(node_id, facts["NodeManagerAddress"], lanes, cores)
        for node in self._nodes.values():
            self._fill(node)

    def _forget_node(self, node_id: str) -> None:
        node = self._nodes.pop(node_id)
        self._builders.pop(node_id, None)
        for task in (*node.starting, *node.building):
            task.cancel()
        for lane in [lane for lane in self._started.values() if lane.node == node_id]:
            log.warning("The node %s is lost; its work goes to other lanes.", node.address)
            self.lose(lane.name)

    def _fill(self, node: _Node) -> None:
        """Start what is missing on a node."""
        if node.excluded or time.monotonic() < node.retry_at:
            return
        used = sum(lane.node == node.id for lane in self._started.values()) + len(node.starting)
        room = node.lanes - used
        if self._order.lanes is not None:
            room = min(room, self._order.lanes - len(self._started) - self._count_starting())
        for _ in range(room):
            node.count += 1
            _start(node.starting, self._start_lane(node, f"{node.address}/{node.id[:6]}/{node.count}"))

    def _count_starting(self) -> int:
        return sum(len(node.starting) for node in self._nodes.values())

    # -- lanes ----------------------------------------------------------------------------------------------------

    async def _start_lane(self, node: _Node, name: str) -> None:
        share: dict[str, Any] = {"num_gpus": 1} if self._resource == "GPU" else {"resources": {CPU_LANE: 1}}
        actor = self._create(LaneNode, node, num_cpus=0, **share)
        lane = Lane(name, node.id, actor)
        try:
            facts = await actor.start.remote()
        except asyncio.CancelledError:
            ray.kill(actor)
            raise
        except RayError as error:
            ray.kill(actor)
            self._note_failure(node, name, error)
            return
        lane.device, lane.build_kind = from_json(DeviceFacts, facts["device"]), facts["build_kind"]
        lane.level = facts["level"]
        self._started[name] = lane
        self._first_lane_at = self._first_lane_at or time.monotonic()
        node.retry_s = FIRST_RETRY_S
        log.info("lane %s on %s: %s, sandbox %s", name, facts["host"], lane.kind, facts["isolation"])
        if self.kind is not None:
            self._admit(lane)

    def _create(self, kind: type, node: _Node, **options: Any) -> Any:
        place = NodeAffinitySchedulingStrategy(node.id, soft=False)
        made: Any = ray.remote(kind).options(scheduling_strategy=place, max_restarts=0, **options)
        return made.remote(self._archive, self._order.target, self._order.allow_weak_sandbox)

    def _note_failure(self, node: _Node, name: str, error: RayError) -> None:
        lines = str(getattr(error, "cause", None) or error).strip().splitlines()
        node.last_failure = lines[-1] if lines else type(error).__name__
        node.retry_at, node.retry_s = time.monotonic() + node.retry_s, min(2 * node.retry_s, LAST_RETRY_S)
        log.warning("The lane %s cannot be used: %s", name, node.last_failure)

    def _settle_kind(self) -> None:
        """Choose the device kind when all lanes have reported; raise if there is none to choose."""
        if self._order.lanes is not None and not self._started and self._is_growing():
            return
        waiting = self._count_starting() > 0
        if self._started:
            late = time.monotonic() - (self._first_lane_at or 0.0) > STRAGGLERS_S
            if not waiting or late:
                self.kind = choose_kind((lane.kind for lane in self._started.values()), self._order.device_kind)
                for lane in list(self._started.values()):
                    self._admit(lane)
        elif not waiting:
            raise self._no_lane()

    def _is_growing(self) -> bool:
        return not any(node.lanes for node in self._nodes.values())

    def _no_lane(self) -> EvaluatorError:
        failures = [f"{node.address}: {node.last_failure}" for node in self._nodes.values() if node.last_failure]
        if failures:
            return EvaluatorError(
                f"No lane of the cluster can be used; this is not the candidate's fault. {'; '.join(failures)}",
                "Fix that on the nodes; `python -m stark_worker doctor` tries a machine. A weak sandbox is accepted "
                "with --allow-weak-sandbox.",
            )
        what = "GPU" if self._resource == "GPU" else f"node with the resource {CPU_LANE}"
        nodes = "; ".join(
            f"{node.address}: {node.cores} core{'' if node.cores == 1 else 's'}" for node in self._nodes.values()
        )
        option = "--num-gpus N" if self._resource == "GPU" else f"--resources '{{\"{CPU_LANE}\": 1}}'"
        return EvaluatorError(
            f"The cluster has no {what}. Its nodes: {nodes or 'none'}.",
            f"Start nodes that offer one: ray start --address ADDRESS {option}",
        )

    def _admit(self, lane: Lane) -> None:
        """Use a lane of the chosen kind, and give any other one back."""
        if lane.kind == self.kind:
            self._on_lane(lane)
            self._ensure_builders(lane.device.architecture or "" if lane.device else "")
            return
        log.warning("The lane %s is not used, because it is of another kind: %s", lane.name, lane.kind)
        self._started.pop(lane.name, None)
        if node := self._nodes.get(lane.node):
            node.excluded = True
        ray.kill(lane.actor)

    def lose(self, name: str, because: str = "") -> None:
        """Give up a lane. Another one takes its place if its node still offers one."""
        lane = self._started.pop(name, None)
        if lane is None:
            return
        if because and (node := self._nodes.get(lane.node)):
            node.last_failure = because
            node.retry_at, node.retry_s = time.monotonic() + node.retry_s, min(2 * node.retry_s, LAST_RETRY_S)
        ray.kill(lane.actor)
        self._on_loss(name)

    # -- builders -------------------------------------------------------------------------------------------------

    def _ensure_builders(self, architecture: str) -> None:
        """Start a builder on each node that has cores to spare: all of them, or half of those next to a lane.

        On a node whose processor is the lane, building would disturb the clock.
        """
        for node in self._nodes.values():
            timed = self._resource == CPU_LANE and node.lanes
            slots = 0 if timed else node.cores // 2 if node.lanes else node.cores
            if slots and node.id not in self._builders:
                actor = self._create(BuilderNode, node, num_cpus=slots, max_concurrency=slots + 1)
                self._builders[node.id] = Builder(actor)
                _start(node.building, self._start_builder(node, architecture))

    async def _start_builder(self, node: _Node, architecture: str) -> None:
        builder = self._builders[node.id]
        try:
            builder.build_kind = (await builder.actor.start.remote(architecture))["build_kind"]
        except RayError as error:
            log.warning("The node %s builds nothing: %s", node.address, str(error).strip().splitlines()[-1])

    def find_builder(self) -> Builder | None:
        """Return the least busy builder whose builds the lanes can use."""
        usable = {lane.build_kind for lane in self._started.values()}
        fitting = [each for each in self._builders.values() if each.build_kind in usable]
        return min(fitting, key=lambda builder: builder.running, default=None)


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _request_gpus(count: int) -> None:
    """Ask Ray's autoscaler, where there is one, for nodes with that many GPUs."""
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{"GPU": 1}] * count)
