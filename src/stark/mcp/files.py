"""Writes files for a client: a task, the drop-in of a kernel and the bundle of evidence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stark.capture.files import CapturedTask
from stark.core.errors import TaskError, UsageError
from stark.core.records import Final
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark.mcp.quoting import quote
from stark.mcp.results import JUDGE, Captured, Exported, summarise_final
from stark.mcp.roots import Roots
from stark.mcp.runs import StoredRun
from stark.report import exports
from stark.store.lookup import settings_of
from stark_worker.protocol.report import DeviceFacts
from stark_worker.protocol.request import Precision


@dataclass(frozen=True)
class Outputs:
    """The new files to write, at least one."""

    drop_in: Path | None
    bundle: Path | None

    @classmethod
    def of(cls, roots: Roots, file: str | None, bundle: str | None) -> Outputs:
        """Check the names before any work begins."""
        if file is None and bundle is None:
            raise UsageError("There is nothing to write.", "Give file, bundle or both.")
        return cls(roots.new_file(file, ".py") if file else None, roots.new_file(bundle, ".stark") if bundle else None)


def write_task(path: Path, captured: CapturedTask) -> Captured:
    """Write a captured task. The code that was captured may have changed the answer, so it is checked like a file."""
    try:
        precision = Precision(captured.precision)
    except ValueError as error:
        raise TaskError("The module has weights of a type that is not judged.", "Convert the module first.") from error
    exports.write_text(path, captured.task.source)
    return Captured(f"The task is in {path}; its weights are {precision}.", str(path), precision)


def export_run(stored: StoredRun, outputs: Outputs) -> Exported:
    """Write the confirmed winner of a run."""
    if outputs.drop_in is not None:
        exports.write_best(outputs.drop_in, stored.record, stored.nodes, stored.final)
    digest = None
    if outputs.bundle is not None:
        rules = settings_of(stored.record).evaluation
        evidence = exports.bundle_of(stored.record, stored.nodes, stored.final, rules)
        digest = exports.write_bundle(outputs.bundle, evidence)
    return _written(outputs, digest, f"The winner of {stored.record.id}.")


def export_kernel(
    task: Task, source: str, final: Final, judged_by: tuple[EvaluationSettings, DeviceFacts], outputs: Outputs
) -> Exported:
    """Write a kernel that has passed a final check; say why if it has not."""
    from stark.run.assembly import versions

    settings, device = judged_by
    if not final.holds:
        return Exported(f"{summarise_final(final)} Nothing was written.", [], None, quote(final.report.log, JUDGE))
    if outputs.drop_in is not None:
        if why_not := exports.explain_missing_drop_in(final):
            return Exported("It has no drop-in. Nothing was written.", [], None, quote(" ".join(why_not), JUDGE))
        exports.write_drop_in(outputs.drop_in, final, f"{task.name}, on {device.name}")
    digest = None
    if outputs.bundle is not None:
        evidence = exports.bundle_of_kernel(task, source, final, settings, (device, versions()))
        digest = exports.write_bundle(outputs.bundle, evidence)
    return _written(outputs, digest, summarise_final(final))


def _written(outputs: Outputs, digest: str | None, summary: str) -> Exported:
    written = [str(path) for path in (outputs.drop_in, outputs.bundle) if path is not None]
    return Exported(f"{summary} Written: {', '.join(written)}.", written, digest, "")
