"""The same exploits before KernelBench's own evaluator, from a checkout that the user gives. Needs a GPU.

Each is judged in a process of its own, forked from one that has imported KernelBench and not touched the GPU: what it
does to its process, the evaluator included, is what is tried. Extensions are compiled beforehand, beside the others:
their verdict does not depend on it, and it would take most of the time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from adversarial import zoo
from paths import ROOT
from stark_worker.protocol.request import Target

COMPILING_S = 300
SECONDS = 20  # to judge a candidate, whose extension is compiled already
# There is one figure for each, taken one after the other: only a large difference is a gain.
GAINED = 0.5
BENCHMARKS = ROOT / "benchmarks" / "perf"

# A line with task, candidate, language and a folder for what it compiles comes in, one with the verdict goes out; a
# candidate's own output goes elsewhere.
PROGRAM = """
import json, os, select, signal, sys, traceback
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[1])
import kernelbench_runner

asked, torch.cuda.is_available = torch.cuda.is_available, lambda: False  # or the default of an argument starts CUDA
evaluation = kernelbench_runner.load(Path(sys.argv[2])).eval
torch.cuda.is_available = asked

def judge(task, candidate, backend, builds):
    os.dup2(2, 1)
    os.environ["TORCH_EXTENSIONS_DIR"] = os.environ["TRITON_CACHE_DIR"] = builds
    found = evaluation.eval_kernel_against_ref(
        original_model_src=task, custom_model_src=candidate, measure_performance=True, num_correct_trials=5,
        num_perf_trials=100, device=torch.device("cuda:0"), backend=backend,
    )
    if not found or not found.correctness:
        return {"correct": False, "why": "not correct"}
    if found.runtime <= 0:
        return {"correct": False, "why": "not timed"}
    warned = bool(found.metadata.get("excessive_speedup"))
    return {"correct": True, "ms": float(found.runtime), "warned": warned}

def told(line):
    try:
        return judge(*json.loads(line))
    except Exception as error:
        traceback.print_exc()
        return {"correct": False, "why": repr(error)[:200]}

for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        try:
            os.write(writing, json.dumps(told(line)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    ready = select.select([reading], [], [], float(sys.argv[3]))[0]
    said = os.read(reading, 10_000).decode(errors="replace") if ready else ""
    os.close(reading)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    why = "ended without a word" if ready else f"not judged within {sys.argv[3]} s"
    print(said or json.dumps({"correct": False, "why": why}), flush=True)
"""

# Some compile when they are imported, others when a model is made.
CONSTRUCT = """
import sys
task, candidate = {}, {"__name__": "candidate"}
exec(sys.argv[1], task)
exec(sys.argv[2], candidate)
candidate["ModelNew"](*task["get_init_inputs"]())
"""


class KernelBench:
    """Their evaluator, ready to be asked."""

    def __init__(self, checkout: Path, target: Target) -> None:
        self._backend = target.value
        command = [sys.executable, "-c", PROGRAM, str(BENCHMARKS), str(checkout), str(SECONDS)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},  # counting GPUs must not open them
        )
        self._references: dict[str, dict[str, Any]] = {}

    def judged(self, task: str, source: str, builds: Path) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([task, source, self._backend, str(builds)]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise SystemExit("KernelBench's evaluator could not be started; see above") from None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("KernelBench's evaluator ended without an answer; see above")
        try:
            return dict(json.loads(line))
        except ValueError:  # a candidate can write there, too
            return {"correct": False, "why": f"said {line[:200]!r}"}

    def reference(self, exploit: zoo.Exploit, builds: Path) -> dict[str, Any]:
        """The exploit without cheating, or the task's own model: if that is not correct there, nothing can be said."""
        task = zoo.task_source(exploit.task)
        source = exploit.honest_source or task.replace("Model", "ModelNew")
        if source not in self._references:
            self._references[source] = self.judged(task, source, builds)
        return self._references[source]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def run(checkout: Path, target: Target, record: Any, until: float) -> bool:
    """Try every exploit; ``record`` keeps the results. True if the time was enough."""
    waiting = [
        exploit
        for exploit in zoo.exploits(target)
        if record.missing("kernelbench", exploit.name, exploit.source) and "contained" not in exploit.expect
    ]
    waiting.sort(key=_compiles)
    with contextlib.closing(KernelBench(checkout, target)) as theirs, _compiling(filter(_compiles, waiting)) as folders:
        for exploit in waiting:
            if time.monotonic() > until:
                return False
            builds = folders(exploit)
            reference = theirs.reference(exploit, builds)
            found = theirs.judged(zoo.task_source(exploit.task), exploit.source, builds)
            record.keep("kernelbench", exploit.name, exploit.source, found | {"reference": reference})
    return True


def _compiles(exploit: zoo.Exploit) -> bool:
    return "load_inline" in exploit.source


@contextlib.contextmanager
def _compiling(exploits: Iterable[zoo.Exploit]) -> Iterator[Callable[[zoo.Exploit], Path]]:
    """Begin to compile their extensions; yields what waits for one and says in which folder it is."""
    with tempfile.TemporaryDirectory(prefix="stark-theirs-") as place, contextlib.ExitStack() as begun:
        compilers: dict[str, subprocess.Popen[bytes]] = {}
        for exploit in exploits:
            compilers[exploit.name] = compiler = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", CONSTRUCT, zoo.task_source(exploit.task), exploit.source],
                env=os.environ | {"TORCH_EXTENSIONS_DIR": str(Path(place, exploit.name))},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            begun.callback(_end, compiler)

        def folder(exploit: zoo.Exploit) -> Path:
            if exploit.name in compilers:
                with contextlib.suppress(subprocess.TimeoutExpired):  # then it is not judged in time either
                    compilers[exploit.name].wait(COMPILING_S)
            (own := Path(place, exploit.name)).mkdir(exist_ok=True)
            return own

        yield folder


def _end(process: subprocess.Popen[bytes]) -> None:
    """With the compilers it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def fooled(found: dict[str, Any]) -> bool | None:
    """True if it passed as correct and as far faster than without cheating; None where that cannot be known.

    One that is accepted and slower does not count, whatever it did: many try what only our evaluator has.
    """
    reference = found["reference"]
    if not reference["correct"]:
        return None
    return bool(found["correct"] and found["ms"] < GAINED * reference["ms"])
