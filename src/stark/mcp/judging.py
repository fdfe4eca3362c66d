"""The tools that judge: a kernel, the baselines of a task, the machine. Plain functions without the SDK."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stark.capture.confined import Place, capture_in
from stark.core.errors import UsageError
from stark.core.task import check_candidate, check_syntax, load_candidate, load_task
from stark.evaluation.requests import check_reference, make_request
from stark.mcp import files, results
from stark.mcp.files import Outputs
from stark.mcp.results import Baselines, Bounded, Captured, Examined, Exported, Judged, Profiled
from stark.mcp.roots import Roots
from stark.mcp.rules import Choice, ServerRules
from stark.mcp.waiting import Activity
from stark.mcp.workers import Workers
from stark.run import judge as runner
from stark_worker.protocol.baselines import BASELINES
from stark_worker.protocol.findings import Finding
from stark_worker.protocol.request import ALWAYS_MS, Entry

INLINE = Path("source")  # the name of a kernel that came as text, in errors


@dataclass(frozen=True)
class Kernel:
    """A kernel as a client gives it: a file in its roots, or the source itself."""

    file: str | None
    source: str | None

    def load(self, roots: Roots) -> str:
        """Return the source; refuse both or neither, and text that defines no ``ModelNew``."""
        if (self.file is None) == (self.source is None):
            raise UsageError("A kernel is either a file or a source.", "Give one of kernel and source.")
        if self.file is not None:
            return load_candidate(roots.source_file(self.file))
        assert self.source is not None
        check_syntax(self.source, INLINE)
        check_candidate(self.source, INLINE)
        return self.source


class JudgeTools:
    """Judges on the workers that all clients share."""

    def __init__(self, rules: ServerRules, workers: Workers) -> None:
        self._rules, self._workers = rules, workers

    async def capture(
        self, roots: Roots, name: str, inputs: Sequence[str], block: str | None, file: str, activity: Activity
    ) -> Captured:
        """Make the task file of a module in the client's roots."""
        path, settings = roots.new_file(file, ".py"), self._rules.evaluation(Choice())
        place = Place(roots.folders, not self._rules.trust_tasks, settings.allow_weak_sandbox, settings.build_s)
        activity.begin(f"capturing {name}")
        captured = await capture_in(place, name, inputs, block)
        return files.write_task(path, captured)

    async def judge(self, roots: Roots, task: str, kernel: Kernel, choice: Choice, activity: Activity) -> Judged:
        """Check and time one kernel, in turns with its task's own model."""
        loaded, source = load_task(roots.source_file(task)), kernel.load(roots)
        settings = self._rules.evaluation(choice)
        async with self._workers.lend(settings) as lent:
            activity.begin(f"judging a kernel on {loaded.name}")
            judged = await runner.judge(loaded, source, settings, evaluator=lent.with_kept_references, in_turns=True)
        reference, report = judged
        check_reference(reference)
        return results.judged_of(report, reference)

    async def baseline(
        self, roots: Roots, task: str, names: Sequence[str] | None, choice: Choice, activity: Activity
    ) -> Baselines:
        """Time the task's own model and torch.compile."""
        loaded, settings = load_task(roots.source_file(task)), self._rules.evaluation(choice)
        async with self._workers.lend(settings) as lent:
            activity.begin(f"timing the baselines of {loaded.name}")
            reports = await runner.measure_baselines(
                loaded,
                settings,
                lambda name, report: activity.begin(f"timed {name} of {loaded.name}"),
                [name for name in BASELINES if names is None or name in names],
                evaluator=lent.evaluator,
            )
            return results.baselines_of(reports, await lent.evaluator.device())

    async def bound(self, roots: Roots, task: str, choice: Choice, activity: Activity) -> Bounded:
        """Return the least time that the device needs for a task."""
        loaded, settings = load_task(roots.source_file(task)), self._rules.evaluation(choice)
        async with self._workers.lend(settings) as lent:
            activity.begin(f"measuring the bound of {loaded.name}")
            return results.bounded_of(await runner.measure_bound(loaded, settings, evaluator=lent.evaluator))

    async def profile(
        self, roots: Roots, task: str, kernel: Kernel | None, choice: Choice, activity: Activity
    ) -> Profiled:
        """Profile a kernel, or the task's own model if there is no kernel."""
        loaded, source = load_task(roots.source_file(task)), kernel.load(roots) if kernel else None
        settings = self._rules.evaluation(choice)
        entry = Entry.REFERENCE if source is None else Entry.CANDIDATE
        request = make_request(loaded, source or loaded.source, settings, entry)
        async with self._workers.lend(settings) as lent:
            activity.begin(f"profiling on {loaded.name}")
            report = await lent.with_kept_references.evaluate(replace(request, profile_below_ms=ALWAYS_MS))
        return results.profiled_of(report)

    async def export_kernel(
        self, roots: Roots, task: str, kernel: Kernel, outputs: Outputs, choice: Choice, activity: Activity
    ) -> Exported:
        """Judge a kernel as the final check of a run does, and write its files if it holds."""
        loaded, source = load_task(roots.source_file(task)), kernel.load(roots)
        settings = self._rules.evaluation(choice)
        async with self._workers.lend(settings) as lent:
            activity.begin(f"the final check of a kernel on {loaded.name}")
            device, final = await runner.judge_as_winner(loaded, source, settings, evaluator=lent.evaluator)
        return files.export_kernel(loaded, source, final, (settings, device), outputs)

    async def doctor(self, roots: Roots, choice: Choice, call_models: bool, activity: Activity) -> Examined:
        """Try the evaluating machine, the folder of runs and, on request, the chat models."""
        from stark.doctor.examination import examine

        found: list[Finding] = []
        settings, folder = self._rules.settings(choice.layer()), roots.runs_folder()
        async for finding in examine(settings, folder, lambda step: activity.begin(f"trying {step}"), call_models):
            found.append(finding)
        return results.examined_of(found)
