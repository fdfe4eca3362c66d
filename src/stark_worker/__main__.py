"""The worker's command line, for a machine without the rest of STARK. Answers go to standard output.

    python -m stark_worker judge TASK.py CANDIDATE.py [--score ...] [--json]     checks and times one kernel
    python -m stark_worker baseline TASK.py [--only eager default max-autotune] [--json]     times eager, torch.compile
    python -m stark_worker device     -> DeviceFacts as JSON
    python -m stark_worker doctor [--json]     tries what evaluating needs here
    python -m stark_worker serve FOLDER     serves the requests in a folder
    python -m stark_worker capture NAME --inputs ... [--block NAME | --rank]     a module as a task, as JSON
    python -m stark_worker capture TASK.py --file     a task file with its local packages, as JSON
    python -m stark_worker judge     an EvalRequest as JSON on standard input -> an EvalReport as JSON

All but capture take --target cpu|cuda|triton, except the last, whose request names it; judge and baseline of files
take --precision too. All except device and capture take --allow-weak-sandbox.

A candidate's fault is in the report, and the exit code is 0, or 1 for judge with files. Otherwise the last line of
standard error names the error: exit code 2 for a wrong command line, 3 for a fault of the machine, 4 for a task that
does not work by itself. Doctor exits with 1 if something is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

from stark_worker.compiler.cache import default_cache_dir
from stark_worker.doctor.doctor import examine
from stark_worker.protocol import report_text
from stark_worker.protocol.baselines import COMPILE_MODES, EAGER
from stark_worker.protocol.codec import ProtocolError, from_json, to_json
from stark_worker.protocol.errors import MachineryFault, TaskFault
from stark_worker.protocol.findings import Begun, can_work
from stark_worker.protocol.request import Entry, EvalRequest, Precision, Score, Target
from stark_worker.scheduler.retry import judge_with_retries, measure_baselines
from stark_worker.scheduler.serve import serve
from stark_worker.scheduler.worker import Worker

ALLOW_WEAK_HELP = "run candidates even if the sandbox is below the level standard"
MISSING = INCORRECT = 1  # exit codes
MACHINERY, TASK, STOPPED = 3, 4, 128 + signal.SIGTERM
BASELINES = {EAGER: EAGER, **{mode: name for name, mode in COMPILE_MODES.items()}}  # by what is typed


async def judge_request(text: bytes, allow_weak_sandbox: bool) -> int:
    """Judge an EvalRequest given as JSON; print the report as JSON."""
    request = from_json(EvalRequest, text)
    async with Worker(request.target, default_cache_dir(), allow_weak_sandbox) as worker:
        print(to_json(await judge_with_retries(worker.judge, request)))
    return 0


async def judge_files(worker: Worker, options: argparse.Namespace) -> int:
    """Judge a kernel and the task's own model, and compare them."""
    request = replace(_request(options), score=options.score)
    reference = await judge_with_retries(worker.judge, request)
    request = replace(request, candidate_source=options.candidate, entry=Entry.CANDIDATE, with_labels=True)
    report = await judge_with_retries(worker.judge, request)
    print(to_json(report) if options.json else "\n".join(report_text.format_lines(report, reference)))
    return 0 if report.timing else INCORRECT


async def baseline(worker: Worker, options: argparse.Namespace) -> int:
    """Measure each baseline and print it, compared with the first that could be timed."""
    first_ms = None
    names = [BASELINES[name] for name in options.only]
    async for name, report in measure_baselines(worker.judge, _request(options), names):
        line = json.dumps({"baseline": name, "report": json.loads(to_json(report))}, ensure_ascii=False)
        text = [
            f"{name:<28}{report_text.format_verdict(report, first_ms)}",
            *report_text.task_warnings(report),
            *report_text.timing_warnings(report),
        ]
        print(line if options.json else "\n".join(text), flush=True)
        first_ms = first_ms or (report.timing.median_ms if report.timing else None)
    return 0


async def device(worker: Worker, _: argparse.Namespace) -> int:
    """Print the facts of the target's device."""
    print(to_json(await worker.device()))
    return 0


async def serve_folder(worker: Worker, options: argparse.Namespace) -> int:
    await serve(options.folder, worker)
    return 0


COMMANDS = {"judge": judge_files, "baseline": baseline, "device": device, "serve": serve_folder}


async def work(options: argparse.Namespace) -> int:
    """Run a command that needs a worker."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    if options.command == "judge" and options.task is None:
        return await judge_request(sys.stdin.buffer.read(), options.allow_weak_sandbox)
    async with Worker(options.target, default_cache_dir(), options.allow_weak_sandbox) as worker:
        return await COMMANDS[options.command](worker, options)


def doctor(target: Target, allow_weak_sandbox: bool, as_json: bool) -> int:
    """Try all requirements; print each finding as it comes, as text or as a line of JSON."""
    found = []

    def begin(name: str) -> None:
        print(to_json(Begun(name)) if as_json else f"tries {name} ...", file=sys.stderr)

    for finding in examine(target, allow_weak_sandbox, begin):
        found.append(finding)
        fix = f"\n{'':12}fix: {finding.fix}" if finding.fix else ""
        text = f"{finding.state:<12}{finding.name}: {finding.detail}{fix}"
        print(to_json(finding) if as_json else text, flush=True)
    return 0 if can_work(found) else MISSING


def capture(options: argparse.Namespace) -> int:
    """Capture a module or a task file, which is the user's own code."""
    from stark_worker.capture.commands import answer  # torch, which the scheduler does without
    from stark_worker.capture.faults import CaptureFault

    try:
        print(json.dumps(answer(options)))
    except CaptureFault as fault:
        return _fail(TASK, f"capture: {fault}")
    return 0


def main(arguments: list[str]) -> int:
    """Run one command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "judge" and options.task is not None and options.candidate is None:
        parser.error("judge needs a task and a candidate, or neither and a request on standard input")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a candidate may print characters that the terminal cannot show
    if options.command == "doctor":
        return doctor(options.target, options.allow_weak_sandbox, options.json)
    if options.command == "capture":
        return capture(options)
    try:
        return asyncio.run(work(options))
    except TaskFault as error:
        return _fail(TASK, f"task: {error}")
    except (MachineryFault, ProtocolError, OSError) as error:
        return _fail(MACHINERY, f"worker: {error}")
    except (KeyboardInterrupt, asyncio.CancelledError):
        return STOPPED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m stark_worker", description="Judges kernels.")
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge", help="check and time one kernel; without files, an EvalRequest as JSON")
    judging.add_argument("task", type=_source, nargs="?", metavar="TASK.py")
    judging.add_argument("candidate", type=_source, nargs="?", metavar="CANDIDATE.py")
    judging.add_argument("--score", type=Score, choices=list(Score), default=Score.VERIFIED)
    timing = commands.add_parser("baseline", help="time a task under eager and torch.compile")
    timing.add_argument("task", type=_source, metavar="TASK.py")
    timing.add_argument("--only", nargs="+", choices=list(BASELINES), default=list(BASELINES))
    describing = commands.add_parser("device", help="print the facts of the device as JSON")
    describing.set_defaults(allow_weak_sandbox=False)
    trying = commands.add_parser("doctor", help="try everything that evaluating needs on this machine")
    capturing = commands.add_parser("capture", help="make the task of a live module")
    capturing.add_argument("name", metavar="PACKAGE.MODULE:FACTORY")
    capturing.add_argument("--inputs", action="append", default=[], metavar="INPUT")
    capturing.add_argument("--block", metavar="NAME", help="a block inside the model")
    capturing.add_argument("--rank", action="store_true", help="find the blocks that are worth it")
    capturing.add_argument("--best", type=int, default=3, help="blocks to write as tasks, of those ranked")
    capturing.add_argument("--file", action="store_true", help="the name is a task file")
    serving = commands.add_parser("serve", help="serve the requests in a folder")
    serving.add_argument("folder", type=Path)
    for command in (judging, timing, trying):
        command.add_argument("--json", action="store_true", help="JSON, a line for each finding")
    for command in (judging, timing):
        command.add_argument("--precision", type=Precision, choices=list(Precision), default=Precision.FP32)
    for command in (judging, timing, describing, trying, serving):
        command.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    for command in (judging, timing, trying, serving):
        command.add_argument("--allow-weak-sandbox", action="store_true", help=ALLOW_WEAK_HELP)
    return parser


def _source(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be read: {error}") from error


def _request(options: argparse.Namespace) -> EvalRequest:
    """Return a request for the task's own model."""
    return EvalRequest(options.task, options.task, Entry.REFERENCE, target=options.target, precision=options.precision)


def _fail(code: int, sentence: str) -> int:
    print(" ".join(sentence.split()), file=sys.stderr, flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
