"""The command line of the worker: one request on standard input, one answer on standard output, both JSON.

    python -m stark_worker judge      an EvalRequest -> an EvalReport
    python -m stark_worker device     -> DeviceFacts

A candidate's fault is in the report and the exit code is 0. Otherwise the last line of standard error says what
happened: exit code 3 for a fault of the machine, 4 for a task that does not work by itself.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import NoReturn

from stark_worker.protocol import EvalReport, EvalRequest, ProtocolError, Target, from_json, to_json
from stark_worker.sandbox import MachineryFault, candidate_process, end_with_parent

MACHINERY, TASK, USAGE = 3, 4, 2


def judge(text: bytes) -> EvalReport:
    """Judge one request."""
    request = from_json(EvalRequest, text)
    if request.target is not Target.CPU:
        raise MachineryFault(f"This version judges the cpu target only, not {request.target}; use --target cpu.")
    with tempfile.TemporaryDirectory(prefix="stark-referee-") as folder, candidate_process() as candidate:
        # These import torch, which the candidate's process is doing meanwhile.
        from stark_worker import referee
        from stark_worker.reference import TaskFault

        try:
            return referee.judge(request, candidate, Path(folder))
        except TaskFault as error:
            _fail(TASK, f"task: {error}")


def main(arguments: list[str]) -> int:
    """Run one command; the answer is the only thing written to standard output."""
    signal.signal(signal.SIGTERM, _end)
    end_with_parent()
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a task that prints does not spoil the answer
    os.environ["OMP_WAIT_POLICY"] = "passive"  # the referee's idle threads take no time from the candidate
    if arguments == ["judge"]:
        try:
            result = to_json(judge(sys.stdin.buffer.read()))
        except (MachineryFault, ProtocolError, OSError) as error:
            _fail(MACHINERY, f"worker: {error}")
    elif arguments == ["device"]:
        from stark_worker.device import measured_device

        result = to_json(measured_device())
    else:
        _fail(USAGE, "usage: python -m stark_worker judge|device")
    with answer:
        print(result, file=answer)
    return 0


def _fail(code: int, sentence: str) -> NoReturn:
    print(" ".join(sentence.split()), file=sys.stderr, flush=True)
    sys.exit(code)


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
