"""Writes files from a stored run: the best kernel, a bundle, training data, the worker."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipapp
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import stark_worker
from stark.core.errors import UsageError
from stark.core.records import Call, Final, RunRecord
from stark.core.settings import EvaluationSettings
from stark.core.task import Task
from stark.core.tree import ROOT_ID, Node, Role, Tree
from stark.evaluation.bundle import Bundle, Claim, Origin, manifest_digest, pack
from stark.evaluation.confirmation import find_winner
from stark.models.open import describe_model
from stark_worker.protocol import report_text
from stark_worker.protocol.report import EvalReport


def write_best(path: Path, record: RunRecord, nodes: Sequence[Node], final: Final | None) -> None:
    """Write the drop-in of a run's winner to a file, under a comment with its origin."""
    best = find_winner(Tree(nodes), final)
    if best is None:
        raise UsageError("The run has no correct kernel to export.", "Give it more attempts with stark resume.")
    if final is None:
        raise UsageError(
            "The run's best kernel was not confirmed, so it is not known where it may take the model's place.",
            "Finish the run with stark resume and evaluation.final on.",
        )
    write_drop_in(path, final, f"{record.task.name}: node {best.id} of run {record.id}, on {record.device.name}")


def write_drop_in(path: Path, final: Final, origin: str) -> None:
    """Write a confirmed kernel as a file that can be put in its model's place."""
    if (why_not := explain_missing_drop_in(final)) is not None:
        raise UsageError(*why_not)
    assert final.drop_in is not None
    if _is_task(path):
        raise UsageError(f"{path} is a task; the kernel would overwrite it.", "Name another file.")
    report, labels = final.drop_in.report, final.verified.labels
    lines = [origin, f"{_times(report)}, in a {report.sandbox_level or 'unknown'} sandbox"]
    lines += [report_text.format_labels(labels)] if labels else []
    write_text(path, "".join(f"# {line}\n" for line in lines) + final.drop_in.source)


def explain_missing_drop_in(final: Final) -> tuple[str, str] | None:
    """Return why a confirmed kernel cannot take its model's place, and what to do; None if it can."""
    if final.drop_in is None:
        labels = final.verified.labels
        if labels is None or labels.interface is None:
            again = "Judge it with this version: stark judge TASK.py KERNEL.py --export FILE."
            return "The kernel was judged by an older version of STARK, which did not record its interface.", again
        return (
            "The kernel makes its weights itself from the seed, so it cannot take the place of a trained model.",
            "Give ModelNew parameters with the names of the original's, then judge it again.",
        )
    if not final.drop_in.holds:
        outcome = final.drop_in.report.outcome.value.replace("_", " ")
        why = outcome if final.drop_in.report.timing is None else "it does not follow when weights change"
        log = f" {final.drop_in.report.log}".rstrip()
        return (
            f"The kernel is right, but the file that was made of it fails its own check: {why}.{log}",
            "Check it again when no other programs are busy here. If it fails again, change the kernel.",
        )
    return None


def bundle_of(record: RunRecord, nodes: Sequence[Node], final: Final | None, rules: EvaluationSettings) -> Bundle:
    """The evidence for a run's winner."""
    best = find_winner(Tree(nodes), final)
    if final is None or best is None or best.source is None:
        raise UsageError(
            "The run has no confirmed winner, so there is no evidence.",
            "Finish it with stark resume and evaluation.final on, or use stark judge --bundle.",
        )
    claim = Claim.of(record.task.name, record.created_at, (record.device, record.versions), final, rules)
    return Bundle(claim, record.task.source, best.source, final)


def bundle_of_kernel(task: Task, source: str, final: Final, rules: EvaluationSettings, origin: Origin) -> Bundle:
    """The evidence for a kernel that no run made."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Bundle(Claim.of(task.name, now, origin, final, rules), task.source, source, final)


def write_bundle(path: Path, bundle: Bundle) -> str:
    """Write the bundle; return the SHA-256 of its manifest."""
    data = pack(bundle)
    write_bytes(path, data)
    return manifest_digest(data)


def _times(report: EvalReport) -> str:
    assert report.timing is not None
    reference = f", reference {report.opponent.median_ms:.4f} ms, measured in turns" if report.opponent else ""
    return f"{report.timing.median_ms:.4f} ms per call{reference}"


def describe_run(
    record: RunRecord, nodes: Sequence[Node], final: Final | None, only: int | None = None
) -> dict[str, Any]:
    """Return a run for programs: its settings and nodes, or one node with its source."""
    best = find_winner(Tree(nodes), final)
    listed = [_describe_node(node, with_source=only is not None) for node in nodes if only in (None, node.id)]
    if only is not None:
        return listed[0]
    about = {"run": record.id, "task": record.task.name, "created_at": record.created_at, "settings": record.settings}
    return {**about, "best": best.id if best else None, "nodes": listed}


def _describe_node(node: Node, with_source: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"id": node.id, "parent": node.parent_id, "role": node.role, "outcome": node.report.outcome}
    found |= {"median_ms": node.runtime_ms, "advice": node.plan.advice if node.plan else None}
    return {**found, "source": node.source, "log": node.report.log} if with_source else found


def write_training_data(path: Path, nodes: Sequence[Node], calls: Sequence[Call], role: Role) -> int:
    """Write one line per call: the conversation in chat format, and the outcome of its attempt."""
    lines = [json.dumps(line, ensure_ascii=False) for line in _training_lines(nodes, calls, role)]
    text = "".join(f"{line}\n" for line in lines)
    write_text(path, text.encode("utf-8", "replace").decode())  # a reply may hold a lone surrogate
    return len(lines)


def write_worker(path: Path) -> None:
    """Write the worker package as one file that Python can run."""
    package = Path(stark_worker.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(package, Path(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(folder) / "__main__.py").write_text(_PACKED_MAIN, encoding="utf-8")
        try:
            zipapp.create_archive(folder, path)
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another file.") from error


_PACKED_MAIN = """\
import sys

from stark_worker.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


def _is_task(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:  # writing will fail and report it
        return False
    return "def get_inputs" in text and "ModelNew" not in text


def make_folder(path: Path) -> None:
    """Create a folder unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path} cannot be created: {error.strerror}.", "Choose another folder.") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, following links. Write directly to devices such as /dev/stdout."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file.")
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Choose another file.") from error


def _replace(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def _training_lines(nodes: Sequence[Node], calls: Sequence[Call], role: Role) -> Iterator[dict[str, Any]]:
    by_id = {node.id: node for node in nodes}
    for call in calls:
        node = by_id.get(call.number)
        if call.role is not role or node is None:
            continue
        prompt = [{"role": message.role, "content": message.content} for message in call.messages]
        yield {
            "messages": [*prompt, {"role": "assistant", "content": call.reply.arguments or call.reply.text}],
            "role": call.role,
            "model": call.model,
            "model_label": describe_model(call.model),  # marks models that are no LLM
            "attempt": call.number,
            "outcome": node.report.outcome,
            "runtime_ms": node.runtime_ms,
            "reference_ms": by_id[ROOT_ID].runtime_ms,
            "grounded": node.plan.grounded if node.plan else None,
        }
