"""Tries to fool the evaluator, has honest kernels judged, and tries to break out of a confined process.

    python benchmarks/proofs/trust.py [--target cpu|cuda|triton] [--part exploits|honest|probes] [--seconds 540]
        [--fresh] [--only NAME ...]
    python benchmarks/proofs/trust.py --target cuda --part kernelbench --kernelbench PATH   # KernelBench's evaluator

Every exploit of tests/adversarial is judged as a user's kernel would be; one that is accepted has to take the time of
what it computes. Results are kept after each candidate, so that a run that was cut short goes on where it was. Each
entry has a digest of src/stark_worker and counts only for that source. Entries of another source are judged again, and
with --fresh all are. The exit code is 1 if an exploit was not harmless, an honest kernel did not pass, or an entry is
not of today's source.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("benchmarks", "src", "tests")]

from record import commit, host, result_file, worker_digest

from adversarial import honest, honest_gpu, kernelbench, zoo
from adversarial.processes import ROOT as IS_ROOT
from adversarial.processes import as_ordinary_user
from adversarial.zoo import ROUNDS, Verdict
from stark_worker.compiler.cache import default_cache_dir
from stark_worker.doctor.escapes import (
    Probe,
    probe_confinement,
)
from stark_worker.protocol.codec import ProtocolError
from stark_worker.protocol.errors import (
    MachineryFault,
    TaskFault,
)
from stark_worker.protocol.report import Check, EvalReport, Phases
from stark_worker.protocol.request import (
    EvalRequest,
    Target,
)
from stark_worker.sandbox.confine import confine
from stark_worker.sandbox.levels import Confinement
from stark_worker.scheduler.retry import judge_with_retries
from stark_worker.scheduler.worker import Worker

TRIES = 3
IN_FLIGHT = 12  # on a GPU: extensions are built while another candidate is timed
JUDGED_HERE = ("exploits", "honest", "probes")  # by this project's worker, so that its source decides
HARMLESS = ("rejected", Verdict.TRUE_TIME)
STOPPED = "stopped the evaluator"
KNOWN_WITH_GPU = {"take more shared memory than allowed"}  # see "What remains possible" in docs/trust.md

Results = dict[str, Any]


class Record:
    """The result file, written after everything that is found out."""

    def __init__(self, path: Path, fresh: bool) -> None:
        self.path = path
        self.judged: Counter[str] = Counter()  # by part, in this call
        self.data: Results = {} if fresh or not path.exists() else json.loads(path.read_text())

    def missing(self, part: str, name: str, source: str) -> bool:
        """True if it was not tried yet, without a report, or by another worker than today's."""
        found = self.data.get(part, {}).get(name, {})
        outdated = part in JUDGED_HERE and not is_todays(found)
        return found.get("source") != _hash(source) or found.get("verdict") == STOPPED or outdated

    def keep(self, part: str, name: str, source: str, found: Results) -> None:
        by = {"commit": commit(), "digest": worker_digest()}
        self.data.setdefault(part, {})[name] = {"source": _hash(source), **by, **found}
        self.judged[part] += 1
        self.save()

    def drop_unknown(self, part: str, names: Collection[str]) -> None:
        """Forget the results of candidates that do not exist now."""
        known = {name: found for name, found in self.data.get(part, {}).items() if name in names}
        if part in self.data and len(known) < len(self.data[part]):
            self.data[part] = known
            self.save()

    def save(self) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.data |= {"date": now, "commit": commit(), "digest": worker_digest()}
        self.data["machine"] = f"{host()}, {len(os.sched_getaffinity(0))} cores"
        self.path.write_text(json.dumps(self.data, indent=1, sort_keys=True) + "\n")


def is_todays(found: Results) -> bool:
    """True if an entry comes from the source of today's worker."""
    return found.get("digest") == worker_digest()


class Judge:
    """Asks the evaluator, and compares with the true time."""

    def __init__(self, worker: Worker, target: Target) -> None:
        self._worker, self._target = worker, target

    async def report(self, request: EvalRequest) -> EvalReport | str:
        """The report, or what stopped the evaluator. Faults are retried and reported as the host does it."""
        try:
            return await judge_with_retries(self._worker.judge, request, TRIES - 1)
        except (MachineryFault, TaskFault, ProtocolError, OSError) as fault:
            return str(fault)

    async def exploit(self, exploit: zoo.Exploit) -> Results:
        """One attempt, or several where its time alone speaks against it: a busy machine must not look like a gain.

        Of several the middle one counts, and the others are kept with it.
        """
        report = await self.report(exploit.request(self._target, in_turns=exploit.is_timed))
        if isinstance(report, str):
            return {"verdict": STOPPED, "as_expected": False, "outcome": report[:200]}
        if exploit.known or not exploit.only_time_speaks_against_it(report):
            return _describe(exploit, report)
        others = [
            await self.report(exploit.request(self._target, in_turns=exploit.is_timed)) for _ in range(ROUNDS - 1)
        ]
        found = [_describe(exploit, each) for each in (report, *others) if not isinstance(each, str)]
        shares = [each["share"][1] if "share" in each else math.inf for each in found]  # none where it was refused
        middle = found[shares.index(sorted(shares)[(len(shares) - 1) // 2])]
        return middle | {"rounds": [each.get("share") for each in found]}


def _describe(exploit: zoo.Exploit, report: EvalReport) -> Results:
    found = {
        "verdict": exploit.verdict(report).value,
        "as_expected": exploit.as_expected(report),
        "outcome": report.outcome.value,
    }
    if exploit.known:
        found["known"] = exploit.known
    if report.rule:
        found["rule"] = report.rule
    if report.timing and report.opponent:
        found |= {"ms": round(report.timing.median_ms, 4), "true_ms": round(report.opponent.median_ms, 4)}
    if Check.OPPONENT in report.checks:
        found["opponent"] = report.checks[Check.OPPONENT]
    if share := zoo.true_share(report):
        found["share"] = [round(bound, 4) for bound in share]
    return found


async def run(target: Target, parts: list[str], only: Collection[str], record: Record, until: float) -> bool:
    """Try all that was asked for. True if the time was enough."""
    async with Worker(target, default_cache_dir()) as worker:
        judge = Judge(worker, target)
        record.data["device"] = (await worker.device()).name
        work = sorted(_work(target, parts, judge), key=lambda each: (each.task, each.part, each.name))
        if unknown := {*only} - {each.name for each in work}:
            raise SystemExit(f"there is no {', '.join(sorted(unknown))} among {' and '.join(parts)} for {target}")
        for part in {"exploits", "honest"} & {*parts}:
            record.drop_unknown(part, {each.name for each in work if each.part == part})
        wanted = [each for each in work if not only or each.name in only]
        missing = iter([each for each in wanted if record.missing(each.part, each.name, each.source)])
        lines = min(IN_FLIGHT, worker.slots)
        return all(await asyncio.gather(*(_work_off(missing, record, until) for _ in range(lines))))


async def _work_off(missing: Iterator[Work], record: Record, until: float) -> bool:
    """Judge one after the other. Several of these share the iterator. True if the time was enough."""
    for each in missing:
        if time.monotonic() > until:
            return False
        begun = time.monotonic()
        found = await each.step()
        record.keep(each.part, each.name, each.source, found)
        print(
            f"{each.part:9s} {each.name:45s} {found['verdict']}  {found['outcome']} {found.get('rule') or ''}"
            f" {found.get('share') or ''} {found.get('phases_s') or ''} {time.monotonic() - begun:.1f} s",
            flush=True,
        )
    return True


class Work(NamedTuple):
    """One candidate to judge. Those of one task come one after the other, because they share a warm referee."""

    task: str
    part: str
    name: str
    source: str
    step: Callable[[], Coroutine[Any, Any, Results]]


def _work(target: Target, parts: list[str], judge: Judge) -> Iterator[Work]:
    if "exploits" in parts:
        for exploit in zoo.exploits(target):
            step = functools.partial(judge.exploit, exploit)
            yield Work(exploit.task, "exploits", exploit.name, exploit.source, step)
    if "honest" in parts:
        for each in honest.corpus() if target is Target.CPU else honest_gpu.corpus(target):
            step = functools.partial(_honest, judge, each.request(target))
            yield Work(each.task, "honest", each.name, each.source, step)


async def _honest(judge: Judge, request: EvalRequest) -> Results:
    report = await judge.report(request)
    if isinstance(report, str):
        return {"verdict": STOPPED, "outcome": report[:200]}
    if report.timing is None:
        return {"verdict": "rejected", "outcome": report.outcome.value, "rule": report.rule, "log": report.log[:500]}
    verdict = "flagged" if Check.PRECISION in report.checks else "passed"
    phases_s = {name: round(seconds, 2) for name, seconds in asdict(report.phases_s or Phases()).items()}
    return {"verdict": verdict, "outcome": "ok", "ms": round(report.timing.median_ms, 4), "phases_s": phases_s}


def probe(record: Record, gpu: bool) -> None:
    """Run the attempts to break out, as this user and as an ordinary one, with the GPU open if there is one."""
    confined = functools.partial(_confined, gpu)
    attempts = {"as root": lambda: probe_confinement(confined)} if IS_ROOT else {}
    for name, step in (
        attempts | {"as an ordinary user": lambda: as_ordinary_user(lambda: probe_confinement(confined))}
    ).items():
        achieved, found = step()
        record.data.setdefault("probes", {})[name] = _sum_up_probes(achieved, found, KNOWN_WITH_GPU if gpu else set())
        record.save()


def _confined(gpu: bool, folder: Path, memory_bytes: int, processes: int) -> Confinement:
    prepare = _open_gpu if gpu else lambda: None
    return confine(folder, memory_bytes=memory_bytes, processes=processes, gpu=gpu, prepare=prepare)


def _open_gpu() -> None:
    from stark_worker.device import cuda  # only here: whoever forks must not have touched the GPU

    cuda.init_context()


def _sum_up_probes(achieved: Confinement, found: list[Probe], known: set[str]) -> Results:
    succeeded = {each.name for each in found if not each.blocked}
    return {
        "digest": worker_digest(),
        "level": achieved.level.value,
        "controls": list(achieved.controls),
        "missing": list(map(str, achieved.gaps)),
        "attempted": len(found),
        "blocked": sum(each.blocked for each in found),
        "open": sorted(succeeded - known),
        "known": sorted(succeeded & known),
    }


def table(data: Results) -> Iterator[str]:
    """The results on a few lines."""
    entries = _entries(data)
    todays = sum(map(is_todays, entries))
    yield f"source     {todays} of {len(entries)} entries are of today's {worker_digest()}; the others do not count"
    verdicts = Counter(found["verdict"] for found in data.get("exploits", {}).values())
    if verdicts:
        names = dict.fromkeys([*map(str, Verdict), *verdicts])  # zero is shown, too
        yield f"exploits   tried {verdicts.total():4d}   " + "   ".join(f"{name} {verdicts[name]}" for name in names)
        for name, found in data["exploits"].items():
            if found["verdict"] not in HARMLESS:
                took = f"{found.get('ms', '')} {found.get('true_ms', '')} {found.get('share', '')}"
                why = f"; known, {found['known']}" if "known" in found else ""
                yield f"           {found['verdict']}: {name} {took}".rstrip() + why
            elif "rounds" in found:
                shares = [share[1] if share else "refused" for share in found["rounds"]]
                yield f"           doubted at first: {name} {shares}"
            elif not found["as_expected"]:
                yield f"           for another reason than expected: {name}, {found['outcome']}"
    passed = Counter(found["verdict"] for found in data.get("honest", {}).values())
    if passed:
        yield f"honest     tried {passed.total():4d}   rejected {passed['rejected']}   flagged {passed['flagged']}"
        failed = {name: found for name, found in data["honest"].items() if found["verdict"] != "passed"}
        yield from (f"           {found['verdict']}: {name}, {found['outcome']}" for name, found in failed.items())
    for name, found in data.get("probes", {}).items():
        yield f"probes     {name}: {found['level']}, attempted {found['attempted']}, blocked {found['blocked']}"
        yield from (f"           succeeded: {each}" for each in found["open"])
        yield from (f"           known to succeed: {each}" for each in found.get("known", []))
    if theirs := data.get("kernelbench", {}):
        unsaid = [name for name, found in theirs.items() if kernelbench.fooled(found) is None]
        fools = {name: found for name, found in theirs.items() if kernelbench.fooled(found)}
        yield f"KernelBench   fooled {len(fools)} of {len(theirs) - len(unsaid)}"
        for name, found in fools.items():
            yield f"           fools KernelBench: {name}" + (", which warns of it" if found.get("warned") else "")
        yield from (f"           not correct there without cheating: {name}" for name in unsaid)


def origins(record: Record) -> Iterator[str]:
    """State what this call judged and what it took over: the file of a clone is complete from the start."""
    taken_over = 0
    for part in ("exploits", "honest", "kernelbench"):
        if found := len(record.data.get(part, {})):
            judged = record.judged[part]
            taken_over += found - judged
            yield f"{part}: {judged} judged by this call, {found - judged} taken over from {record.path}"
    if taken_over:
        yield "what was taken over an earlier call has judged; --fresh judges everything again"


def holds(data: Results) -> bool:
    """True if all is of today's source, only known exploits succeed, honest kernels pass, and nothing is left open."""
    harmless = all(found["verdict"] in HARMLESS or "known" in found for found in data.get("exploits", {}).values())
    passed = all(found["verdict"] == "passed" for found in data.get("honest", {}).values())
    contained = not any(found["open"] for found in data.get("probes", {}).values())
    return all(map(is_todays, _entries(data))) and harmless and passed and contained


def _entries(data: Results) -> list[Results]:
    """Return the results that the worker's source decides."""
    return [found for part in JUDGED_HERE for found in data.get(part, {}).values()]


def _hash(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _with_canary() -> None:
    """Start again with a secret in the environment: only what was there from the start can be read from outside."""
    if "STARK_CANARY" not in os.environ:
        os.environ["STARK_CANARY"] = "a secret that no candidate may find"
        os.execv(sys.executable, sys.orig_argv)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Target, default=Target.CPU, choices=list(Target))
    parser.add_argument("--part", action="append", choices=["exploits", "honest", "probes", "kernelbench"])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these exploits and honest kernels alone")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so many; a next run goes on")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--kernelbench", type=Path, help="a checkout, for the part of that name; needs a GPU")
    options = parser.parse_args()
    _with_canary()
    record = Record(result_file("trust", options.target), options.fresh)
    parts = options.part or ["exploits", "honest", "probes"]
    until = time.monotonic() + options.seconds
    finished = True
    if {"exploits", "honest"} & {*parts}:
        finished = asyncio.run(run(options.target, parts, options.only or (), record, until))
    if "probes" in parts:
        probe(record, options.target is not Target.CPU)
    if "kernelbench" in parts:
        if not options.kernelbench:
            parser.error("the part kernelbench needs --kernelbench, a checkout")
        finished = kernelbench.run(options.kernelbench, options.target, record, until) and finished
    print(*table(record.data), *origins(record), sep="\n")
    print("all that was asked for is there" if finished else "time is over; run it again to go on")
    return 0 if holds(record.data) else 1


if __name__ == "__main__":
    sys.exit(main())
