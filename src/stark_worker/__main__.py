"""The command line of the worker: one request on standard input, one answer on standard output, both JSON.

    python -m stark_worker judge      an EvalRequest -> an EvalReport
    python -m stark_worker device [--target cpu|cuda|triton]     -> DeviceFacts
    python -m stark_worker serve FOLDER [--target cpu|cuda|triton]     works off the requests in a folder

A candidate's fault is in the report and the exit code is 0. Otherwise the last line of standard error says what
happened: exit code 3 for a fault of the machine, 4 for a task that does not work by itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from stark_worker import folder
from stark_worker.protocol import DeviceFacts, EvalReport, EvalRequest, ProtocolError, Target, from_json, to_json
from stark_worker.sandbox import MachineryFault, candidate_process, end_with_parent

MACHINERY, TASK, USAGE = 3, 4, 2


def judge(text: bytes) -> EvalReport:
    """Judge one request."""
    request = from_json(EvalRequest, text)
    gpu = request.target is not Target.CPU
    if gpu:  # one device only, for the referee and the candidate alike
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    report = _judged(request, gpu)
    if gpu:  # when all that the candidate started is gone
        from stark_worker import cuda

        cuda.check_health()
    return report


def _judged(request: EvalRequest, gpu: bool) -> EvalReport:
    with tempfile.TemporaryDirectory(prefix="stark-referee-") as own, candidate_process(gpu) as candidate:
        # These import torch, which the candidate's process is doing meanwhile.
        from stark_worker import referee
        from stark_worker.reference import TaskFault

        try:
            return referee.judge(request, candidate, Path(own))
        except TaskFault as error:
            _fail(TASK, f"task: {error}")
        except RuntimeError as error:
            if "CUDA" not in str(error):
                raise
            what = "GPU memory exhausted" if "out of memory" in str(error) else "GPU unhealthy"
            raise MachineryFault(f"{what}: {error}") from error


def device(target: Target) -> DeviceFacts:
    """What kernels for this target run on."""
    if target is not Target.CPU:
        from stark_worker import cuda

        if lack := cuda.missing(target):
            raise MachineryFault(lack)
    from stark_worker.device import measured_device

    return measured_device(target)


def main(arguments: list[str]) -> int:
    """Run one command; the answer is the only thing written to standard output."""
    signal.signal(signal.SIGTERM, _end)
    if arguments[:1] == ["serve"]:
        return _serve(arguments[1:])
    end_with_parent()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a task that prints does not spoil the answer
    os.environ["OMP_WAIT_POLICY"] = "passive"  # the referee's idle threads take no time from the candidate
    try:
        result = to_json(_answer(arguments))
    except (MachineryFault, ProtocolError, OSError) as error:
        _fail(MACHINERY, f"worker: {error}")
    with answer:
        print(result, file=answer)
    return 0


def _answer(arguments: list[str]) -> EvalReport | DeviceFacts:
    if arguments == ["judge"]:
        return judge(sys.stdin.buffer.read())
    if arguments == ["device"]:
        return device(Target.CPU)
    if arguments[:2] == ["device", "--target"] and len(arguments) == 3 and arguments[2] in list(Target):
        return device(Target(arguments[2]))
    _fail(USAGE, "usage: python -m stark_worker judge | device [--target TARGET] | serve FOLDER [--target TARGET]")


def _serve(arguments: list[str]) -> int:
    target = arguments[2:] if arguments[1:2] == ["--target"] else []
    if not arguments or (len(arguments) > 1 and target not in [[each] for each in Target]):
        _answer([])
    # In a process of its own: whoever has used a GPU cannot leave it to the candidates afterwards.
    facts = subprocess.run(
        [sys.executable, "-m", "stark_worker", "device", *arguments[1:]],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": folder.PACKAGES},
    )
    if facts.returncode:
        return facts.returncode
    folder.serve(Path(arguments[0]), facts.stdout)
    return 0


def _fail(code: int, sentence: str) -> NoReturn:
    print(" ".join(sentence.split()), file=sys.stderr, flush=True)
    sys.exit(code)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
