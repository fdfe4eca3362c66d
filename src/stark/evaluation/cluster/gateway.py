"""The process that talks to Ray for the coordinator: ``python -m stark.evaluation.cluster.gateway``.

Ray ends its own process if the cluster is gone for long. So the coordinator keeps Ray out of its own: it starts this
process, without its keys, and another one if this one ends. Ray's processes inherit only this environment.
"""

from __future__ import annotations

import asyncio
import io
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before Ray is imported

import ray
from ray import cloudpickle
from ray.exceptions import RayActorError, RayError

import stark_worker
from stark.core.errors import EvaluatorError
from stark.evaluation.cluster import node
from stark.evaluation.cluster.address import find_cluster
from stark.evaluation.cluster.dispatch import Dispatcher, Job
from stark.evaluation.cluster.messages import Did, Event, Order, Question
from stark.evaluation.cluster.pool import CPU_LANE, LANE_CAPACITY, Builder, Lane, Pool
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.errors import GpuUnhealthy
from stark_worker.protocol.request import EvalRequest
from stark_worker.scheduler.builds import needs_building
from stark_worker.scheduler.lane import referee_key

LOOPBACK = "127.0.0.1"
OBJECT_STORE_BYTES = 256 * 2**20  # requests, reports and libraries are small
MAX_LOSSES = 5  # lanes that a request may lose: each loss is an accident, but so many have a cause
MAX_LINE_BYTES = 2**28
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}


class Gateway:
    """Answers the coordinator's questions with the lanes of a cluster."""

    def __init__(self, order: Order, archive: Any, output: IO[str]) -> None:
        self._output, self._timeout_s = output, order.timeout_s
        self._pool = Pool(order, archive, self._add_lane, self._lose_lane)
        self._dispatcher = Dispatcher()
        self._lanes: dict[str, Lane] = {}
        self._places: dict[int, asyncio.Future[Lane]] = {}  # of the questions that wait for a lane
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_ready = False

    async def serve(self, questions: asyncio.StreamReader) -> None:
        """Answer until the coordinator closes its end. Raise ``EvaluatorError`` if the cluster cannot be used."""
        watching = asyncio.create_task(self._pool.watch())
        asking = asyncio.create_task(self._take_questions(questions))
        try:
            await asyncio.wait([watching, asking], return_when=asyncio.FIRST_COMPLETED)
            for task in (watching, asking):
                if task.done():
                    task.result()
        finally:
            watching.cancel()
            asking.cancel()

    async def _take_questions(self, questions: asyncio.StreamReader) -> None:
        while line := await questions.readline():
            question = from_json(Question, line)
            if question.request is None:
                if task := self._tasks.get(question.number):
                    task.cancel()
                continue
            task = asyncio.create_task(self._answer(question.number, question.request, question.avoid))
            self._tasks[question.number] = task
            task.add_done_callback(partial(self._forget, question.number))

    def _forget(self, number: int, _: asyncio.Task[None]) -> None:
        self._tasks.pop(number, None)

    def _send(self, event: Event) -> None:
        self._output.write(to_json(event) + "\n")
        self._output.flush()

    # -- one question -----------------------------------------------------------------------------------------------

    async def _answer(self, number: int, text: str, avoid: tuple[str, ...]) -> None:
        request = from_json(EvalRequest, text)
        try:
            for _ in range(MAX_LOSSES):
                failed, entries = await self._build(request, text)
                if failed is not None:
                    return self._send(Event(Did.REPORT, failed, number))
                lane = await self._wait_for_lane(Job(number, referee_key(request), frozenset(avoid)))
                if (answer := await self._judge(lane, text, entries)) is not None:
                    return self._pass_on(number, lane, answer)
                self._finish(number)
            self._send(Event(Did.LOST, f"{MAX_LOSSES} lanes were lost while they judged one request.", number))
        except TimeoutError:
            self._send(Event(Did.LOST, f"The cluster has had no lane for {self._timeout_s:.0f} s.", number))
        finally:
            self._places.pop(number, None)
            self._finish(number)

    def _pass_on(self, number: int, lane: Lane, answer: node.Answer) -> None:
        if "report" in answer:
            return self._send(Event(Did.REPORT, answer["report"], number, lane=lane.name))
        if answer["fault"] == GpuUnhealthy.kind and len(self._lanes) > 1:
            self._pool.lose(lane.name, answer["message"])
        self._send(Event(Did.FAULT, answer["message"], number, answer["fault"], lane.name))

    async def _build(self, request: EvalRequest, text: str) -> tuple[str | None, Any]:
        """Build on a node without a lane. A builder that is lost or in trouble leaves the build to the lane."""
        builder = self._pool.find_builder() if needs_building(request.candidate_source) else None
        if builder is None:
            return None, None
        with _counted(builder), suppress(RayError):
            verdict, entries = builder.actor.build.options(num_returns=2).remote(text)
            return await _result(verdict), entries
        return None, None

    async def _wait_for_lane(self, job: Job) -> Lane:
        place = self._places[job.number] = asyncio.get_running_loop().create_future()
        self._dispatcher.submit(job)
        self._assign()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    return await asyncio.shield(place)
            if not self._lanes:
                raise TimeoutError

    async def _judge(self, lane: Lane, text: str, entries: Any) -> node.Answer | None:
        """Return the lane's answer, or None if the lane or the build was lost."""
        try:
            answer: node.Answer = await _result(lane.actor.judge.remote(text, entries))
            return answer
        except RayActorError:
            self._pool.lose(lane.name)
        except RayError as error:  # the node of the build is gone
            logging.warning("A request goes to another lane: %s", str(error).strip().splitlines()[-1])
        return None

    def _finish(self, number: int) -> None:
        self._dispatcher.finish(number)
        self._assign()

    # -- lanes ------------------------------------------------------------------------------------------------------

    def _add_lane(self, lane: Lane) -> None:
        self._lanes[lane.name] = lane
        self._dispatcher.add_lane(lane.name, LANE_CAPACITY)
        if not self._is_ready:
            self._is_ready = True
            self._send(Event(Did.READY, to_json(lane.device)))
        self._send(Event(Did.NOTE, f"lane {lane.name}: {lane.kind}; sandbox {lane.level}"))
        self._assign()

    def _lose_lane(self, name: str) -> None:
        self._lanes.pop(name, None)
        self._dispatcher.remove_lane(name)  # the calls on it fail, and their requests ask for another lane

    def _assign(self) -> None:
        for number, lane in self._dispatcher.assign():
            place = self._places.get(number)
            if place is not None and not place.done():
                place.set_result(self._lanes[lane])


@contextmanager
def _counted(builder: Builder) -> Iterator[None]:
    builder.running += 1
    try:
        yield
    finally:
        builder.running -= 1


async def _result(call: Any) -> Any:
    """Return the result of a call on a node; cancel it there if its caller is cancelled, so that its processes end."""
    try:
        return await call
    except asyncio.CancelledError:
        with suppress(RayError):
            ray.cancel(call)
        raise


def pack_worker() -> bytes:
    """Return the worker's package as an archive."""
    package, written = Path(stark_worker.__file__).parent, io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(package.parent))
    return written.getvalue()


@contextmanager
def connected(order: Order) -> Iterator[None]:
    """Connect to the cluster, or start one that only this machine reaches, and end it afterwards."""
    if order.address is not None:
        try:
            ray.init(address=find_cluster(order.address), **QUIET)
        except (ConnectionError, OSError, RuntimeError, ValueError, RayError) as error:
            raise EvaluatorError(
                f"The Ray cluster at {order.address} cannot be reached: {' '.join(str(error).split())[:400]}",
                "Run this command on a machine of the cluster; `ray status` shows one. Docs: docs/scale.md.",
            ) from error
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _local_cluster(order):
        yield


@contextmanager
def _local_cluster(order: Order) -> Iterator[None]:
    folder = tempfile.mkdtemp(prefix="stark-ray-")  # only this user can enter it
    lane = {"resources": {CPU_LANE: 1}} if order.target == "cpu" else {}
    try:
        ray.init(
            address="local",
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=folder,
            object_store_memory=OBJECT_STORE_BYTES,
            **lane,
            **QUIET,
        )
        if any(each["NodeManagerAddress"] != LOOPBACK for each in ray.nodes()):
            raise EvaluatorError(
                f"Ray {ray.__version__} does not keep its ports to this machine, so it is not used.",
                "Start a cluster yourself, as docs/scale.md describes, and name it with --ray-address.",
            )
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


async def main(output: IO[str]) -> None:
    """Take the order from standard input, then serve."""
    questions = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(questions), sys.stdin)
    order = from_json(Order, await questions.readline())
    try:
        cloudpickle.register_pickle_by_value(node)
        with connected(order):
            await Gateway(order, ray.put(pack_worker()), output).serve(questions)
    except EvaluatorError as error:
        output.write(to_json(Event(Did.FAILED, error.message, next_step=error.next_step)) + "\n")
        output.flush()


def run() -> None:
    """Run the gateway of a coordinator."""
    # Ray's processes inherit standard output and outlive a killed gateway, so the answers have a file of their own.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        with suppress(BrokenPipeError):  # the coordinator is gone
            asyncio.run(main(answers))


if __name__ == "__main__":
    run()
