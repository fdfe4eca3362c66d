"""The clock on a real GPU: which calls are gated and which are awake, where results may lie, and what is refused.

Run as ``test_gpu_worker`` is.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from gpu.test_gpu_worker import KERNEL, LARGE, LIMITS, SMALL, Judge, forward
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.report import Check, EvalReport
from stark_worker.protocol.request import Entry, EvalRequest, Target
from stark_worker.referee.trial import KEPT_DEVICE, NO_KERNEL, RANDOM_TASK
from stark_worker.timing.measurement import HIDDEN_LAUNCH_MS
from worker_fixture import running_worker

HIDDEN_MS = HIDDEN_LAUNCH_MS + 0.15  # of launching a call, with what an empty one takes
AWAKE_MS = 1.5  # of a handshake and two switches of processes, at most
RETURNS = "return self.right(x)"


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    cache = tmp_path_factory.mktemp("shared") / "cache"
    with running_worker(cache, Target.TRITON) as worker:
        yield Judge(worker, cache)
        assert worker.left() == (set(), set())


def calling(body: str, before: str = "") -> str:
    """The right kernel in Triton, with other lines in its forward() and before its class."""
    source = forward(textwrap.indent(textwrap.dedent(body), " " * 8).strip(), Target.TRITON)
    return before + source.replace("torch.randn(features))\n", MADE)


def check_gated(report: EvalReport) -> None:
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.CLOCKS].startswith("gated: "), report.checks
    assert "awake" not in report.checks[Check.TIMING]


def check_awake(report: EvalReport, why: str) -> None:
    assert report.outcome is Outcome.OK, report.log
    assert report.checks[Check.CLOCKS].startswith("awake: "), report.checks
    assert f"awake, because {why}" in report.checks[Check.TIMING]
    assert report.timing
    assert report.timing.unsure_ms > 0


# --- where results may lie

RESULTS = {
    "new in every call": RETURNS,
    "the same memory every time": """
        self.out = getattr(self, "out", x.clone())
        return self.out.copy_(self.right(x))
    """,
    "in a buffer of the model": """
        return self.buffer.copy_(self.right(x))
    """,
    "in a graph's pool": """
        if not hasattr(self, "graph"):
            self.given = x.clone()
            self.right(self.given)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self.right(self.given)
        self.given.copy_(x)
        self.graph.replay()
        return self.result
    """,
    "next to what a graph keeps for itself": """
        if not hasattr(self, "graph"):
            self.given = x.clone()
            self.right(self.given)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self.right(self.given * 1.0)
        kept = [x * 3.0 for _ in range(8)]
        self.given.copy_(x)
        self.graph.replay()
        return self.result + sum(each - x * 3.0 for each in kept)
    """,
    "in a pool that two graphs share": """
        if not hasattr(self, "graphs"):
            self.given, self.graphs, self.results = x.clone(), [], []
            self.right(self.given)
            torch.cuda.synchronize()
            handle = torch.cuda.graph_pool_handle()
            for _ in range(2):
                self.graphs.append(torch.cuda.CUDAGraph())
                with torch.cuda.graph(self.graphs[-1], pool=handle):
                    self.results.append(self.right(self.given))
        self.given.copy_(x)
        self.graphs[1].replay()
        return self.results[1]
    """,
    "in the middle of more": """
        y = torch.empty(3, *x.shape, device=x.device)
        y[1] = self.right(x)
        return y[1]
    """,
}
MADE = """torch.randn(features))
        self.register_buffer("buffer", torch.empty(16, 64), persistent=False)
        self.elsewhere = torch.empty(16, 64, device="cuda")
"""


@pytest.mark.parametrize("name", RESULTS)
def test_results_are_read_wherever_they_lie(judge, name):
    check_gated(judge(SMALL, calling(RESULTS[name]), Target.TRITON))


def test_a_graph_whose_result_is_stale_is_found_out(judge):
    stale = RESULTS["in a graph's pool"].replace("self.given.copy_(x)", "pass")
    assert judge(SMALL, calling(stale), Target.TRITON).outcome is Outcome.WRONG_RESULT


# --- calls that cannot be gated


def test_a_random_task_is_timed_awake(judge):
    """The seed would be known before the inputs are."""
    task = SMALL.replace("torch.relu(x * 2.0 + self.bias)", "nn.functional.dropout(x * 2.0 + self.bias)")
    check_awake(judge(task, task, Target.TRITON, Entry.REFERENCE), RANDOM_TASK)


NOT_IN_TIME, ELSEWHERE = "forward() did not return", "a result has to be copied"
UNGATED = {
    "a number for the host": "y = self.right(x); y.sum().item(); return y",
    "a wait": "y = self.right(x); torch.cuda.synchronize(); return y",
    "more launches than a queue holds": """
        y = self.right(x)
        for _ in range(1_500):
            y.add_(0.0)
        return y
    """,
}


@pytest.mark.parametrize("name", UNGATED)
def test_a_call_that_cannot_wait_for_a_gate_is_timed_awake(judge, name):
    check_awake(judge(SMALL, calling(UNGATED[name]), Target.TRITON), NOT_IN_TIME)


def test_a_result_in_memory_from_elsewhere_is_copied_and_timed_awake(judge):
    check_awake(judge(SMALL, calling("return self.elsewhere.copy_(self.right(x))"), Target.TRITON), ELSEWHERE)


def test_a_side_stream_that_is_joined_is_timed_awake(judge):
    joined = """
        self.side = getattr(self, "side", None) or torch.cuda.Stream()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            y = self.right(x)
        torch.cuda.current_stream().wait_stream(self.side)
        return y
    """
    check_awake(judge(SMALL, calling(joined), Target.TRITON), KEPT_DEVICE)


def test_a_result_in_a_pool_of_its_own_is_found(judge):
    """Inside the arena or outside: torch decides which of two pools gives the memory."""
    own = """
        self.pool = getattr(self, "pool", None) or torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pool):
            return self.right(x)
    """
    report = judge(SMALL, calling(own), Target.TRITON)
    assert report.outcome is Outcome.OK, report.log


def test_if_one_side_cannot_be_gated_both_are_timed_awake(judge):
    right, waiting = KERNEL[Target.TRITON], calling(UNGATED["a number for the host"])
    for source, opponent in ((right, waiting), (waiting, right)):
        request = EvalRequest(SMALL, source, target=Target.TRITON, limits=LIMITS)
        report = judge.ask(replace(request, opponent_source=opponent, opponent_entry=Entry.CANDIDATE))
        check_awake(report, NOT_IN_TIME)
        assert len(report.opponent.samples_ms) == len(report.timing.samples_ms)


# --- the time


@pytest.mark.parametrize("milliseconds", [1.0, 25.0])
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "awake"])
def test_what_is_launched_slowly_is_as_slow_as_its_launches(judge, milliseconds, is_gated):
    ending = RETURNS if is_gated else UNGATED["a wait"]
    report = judge(SMALL, calling(f"time.sleep({milliseconds / 1e3}); {ending}"), Target.TRITON)
    check_gated(report) if is_gated else check_awake(report, NOT_IN_TIME)
    timing = report.timing
    assert milliseconds - 2 * HIDDEN_MS <= timing.median_ms + timing.unsure_ms
    assert timing.median_ms < 1.5 * milliseconds + AWAKE_MS


def test_a_kernel_takes_as_many_times_as_long_as_it_spins(judge):
    """Without the time of the right kernel, and within what one call varies."""
    cycles = 200_000
    times = [
        judge(SMALL, calling(f"torch.cuda._sleep({count * cycles}); {RETURNS}"), Target.TRITON).timing.median_ms
        for count in (1, 3, 5)
    ]
    assert (times[2] - times[1]) / (times[1] - times[0]) == pytest.approx(1.0, abs=0.05), times


EVENTS = """
import statistics, sys, torch
x, bias = torch.randn(2**21, 64, device="cuda"), torch.randn(64, device="cuda")
cold, times = torch.empty(2**28, dtype=torch.uint8, device="cuda"), []
for _ in range(30):
    cold.zero_()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record(); torch.relu(x * 2.0 + bias); end.record(); end.synchronize()
    times.append(begin.elapsed_time(end))
print(statistics.median(times))
"""


def test_the_time_is_that_of_device_events(judge):
    """Roughly; benchmarks/perf/evaluator.py compares with KernelBench's timer."""
    report = judge(LARGE, LARGE, Target.TRITON, Entry.REFERENCE)
    done = subprocess.run([sys.executable, "-c", EVENTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert report.timing.median_ms == pytest.approx(float(done.stdout), rel=0.1), report.checks


# --- what is refused

SERVER = """
def server():
    import gc
    return next(thing for thing in gc.get_objects() if type(thing).__name__ == "Server")

def patch():
    PATCH
"""
ONCE = f"""
    if not hasattr(self, "is_patched"):
        self.is_patched = True
        patch()
    {RETURNS}
"""
PLACES = """channel = server().channel
    send, inputs = channel.send, server().job.inputs
    channel.send = lambda **message: send(**message | FORGED if message["did"] == "launched" else message)
"""
DONE = """device, calls = server().device, []
    await_gate, signal_done = device.await_gate, device.signal_done
    device.await_gate = lambda n: (await_gate(n), calls.append(n), len(calls) > 5 and signal_done(n))
    device.signal_done = lambda n: len(calls) > 5 or signal_done(n)
"""
EARLY = """device, calls = server().device, []
    await_gate = device.await_gate
    device.await_gate = lambda n: (calls.append(n), len(calls) > 5 and torch.cuda._sleep(20_000_000), await_gate(n))
"""
NEVER = """server().device.signal_done = lambda number: None
"""


def patched(patch: str) -> str:
    return calling(ONCE, before=SERVER.replace("PATCH", patch))


REJECTED = {
    "results on top of an input": (
        patched(PLACES.replace("FORGED", '{"offsets": [inputs[0][0].offset]}')),
        "forged_message",
    ),
    "results beyond the arena": (
        patched(PLACES.replace("FORGED", '{"offsets": [server().job.size - 64]}')),
        "forged_message",
    ),
    "done before the work, once the clock is chosen": (patched(DONE), "done_too_early"),
    "a kernel that does not wait for the gate, once the clock is chosen": (patched(EARLY), "ran_before_gate"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_a_lie_about_a_gated_call_is_rejected_by_name(judge, name):
    source, rule = REJECTED[name]
    report = judge(SMALL, source, Target.TRITON)
    assert (report.outcome, report.rule) == (Outcome.REJECTED, rule), report


def test_one_that_always_signals_its_end_too_early_is_timed_awake(judge):
    check_awake(judge(SMALL, patched(DONE.replace("> 5", "> 0")), Target.TRITON), NO_KERNEL)


def test_one_that_never_waits_for_the_gate_is_timed_awake_with_all_its_work(judge):
    report = judge(SMALL, patched(EARLY.replace("> 5", "> 0")), Target.TRITON)
    check_awake(report, KEPT_DEVICE)
    besides = calling(f"""
        self.side = getattr(self, "side", None) or torch.cuda.Stream()
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(20_000_000)
        {RETURNS}
    """)
    report = judge(SMALL, besides, Target.TRITON)
    check_awake(report, KEPT_DEVICE)
    assert report.timing.median_ms > 8


def test_one_that_never_signals_its_end_is_timed_awake(judge):
    check_awake(judge(SMALL, patched(NEVER), Target.TRITON), "the work did not end")
