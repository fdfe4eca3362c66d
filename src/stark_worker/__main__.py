"""The command line of the worker: one request on standard input, one answer on standard output, both JSON.

    python -m stark_worker judge [--allow-weak-sandbox]     an EvalRequest -> an EvalReport
    python -m stark_worker device [--target cpu|cuda|triton]     -> DeviceFacts
    python -m stark_worker doctor [--target ...] [--allow-weak-sandbox] [--json]     tries what evaluating needs here
    python -m stark_worker serve FOLDER [--target ...] [--allow-weak-sandbox]     works off the requests in a folder

A candidate's fault is in the report and the exit code is 0. Otherwise the last line of standard error says what
happened: exit code 3 for a fault of the machine, 4 for a task that does not work by itself; of doctor 1 when something
is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from stark_worker.cache import default_cache
from stark_worker.doctor import can_work, examine
from stark_worker.faults import MachineryFault, TaskFault
from stark_worker.folder import serve
from stark_worker.protocol import EvalRequest, ProtocolError, Target, from_json, to_json
from stark_worker.station import Station

ALLOW_WEAK_HELP = "run candidates where they cannot be locked in as an ordinary user's should be"
LACKING, MACHINERY, TASK, STOPPED = 1, 3, 4, 128 + signal.SIGTERM


async def judge(text: bytes, allow_weak_sandbox: bool) -> str:
    """Judge one request."""
    request = from_json(EvalRequest, text)
    async with Station(request.target, default_cache(), allow_weak_sandbox) as station:
        return to_json(await station.judge(request))


async def device(target: Target) -> str:
    """What kernels for this target run on."""
    async with Station(target, default_cache()) as station:
        return to_json(await station.device())


async def work(options: argparse.Namespace) -> str:
    """Do what the command line says; the answer, if there is one to print."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if options.command == "judge":
        return await judge(sys.stdin.buffer.read(), options.allow_weak_sandbox)
    if options.command == "device":
        return await device(options.target)
    async with Station(options.target, default_cache(), options.allow_weak_sandbox) as station:
        await serve(options.folder, station)
    return ""


def doctor(target: Target, allow_weak_sandbox: bool, as_json: bool) -> int:
    """Tell each finding as it comes, as a line of JSON or for people."""
    found = []
    for finding in examine(target, allow_weak_sandbox, lambda name: print(f"tries {name} ...", file=sys.stderr)):
        found.append(finding)
        fix = f"\n{'':12}fix: {finding.fix}" if finding.fix else ""
        text = f"{finding.state:<12}{finding.name}: {finding.detail}{fix}"
        print(to_json(finding) if as_json else text, flush=True)
    return 0 if can_work(found) else LACKING


def main(arguments: list[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    if options.command == "doctor":
        return doctor(options.target, options.allow_weak_sandbox, options.json)
    try:
        answer = asyncio.run(work(options))
    except TaskFault as error:
        return _fail(TASK, f"task: {error}")
    except (MachineryFault, ProtocolError, OSError) as error:
        return _fail(MACHINERY, f"worker: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        return STOPPED
    if answer:
        print(answer)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stark_worker", description="Judges kernels; speaks JSON.")
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge", help="an EvalRequest on standard input, an EvalReport on standard output")
    describing = commands.add_parser("device", help="what kernels run on")
    trying = commands.add_parser("doctor", help="try everything that evaluating needs on this machine")
    trying.add_argument("--json", action="store_true", help="a line of JSON for each finding")
    serving = commands.add_parser("serve", help="work off the requests in a folder")
    serving.add_argument("folder", type=Path)
    for command in (describing, trying, serving):
        command.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    for command in (judging, trying, serving):
        command.add_argument("--allow-weak-sandbox", action="store_true", help=ALLOW_WEAK_HELP)
    return parser


def _fail(code: int, sentence: str) -> int:
    print(" ".join(sentence.split()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
