"""Shows the result of ``stark verify``. Text from an archive is untrusted, so control characters are removed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.screen import console
from stark.evaluation.verification import Verdict, Verification
from stark_worker.protocol import report_text
from stark_worker.protocol.report_text import strip_control_chars

MAX_CHARACTERS = 300
COLOURS = {Verdict.HOLDS: "bold green", Verdict.UNRESOLVED: "bold yellow", Verdict.FAILS: "bold red"}
UNTRUSTED_TASK_NOTE = (
    "The task came from the bundle and ran in the sandbox. The verdict is only as honest as that task: read it, or "
    "give your own with --task."
)
OTHER_TASK_NOTE = "The kernel was judged against your task, which differs from the bundle's."


def show_intact(digest: str, facts: Sequence[tuple[str, str]]) -> None:
    """Show that an archive is unchanged, and its facts."""
    console.print(Text("The archive is unchanged since it was made."))
    for name, value in [("manifest", f"SHA-256 {digest}"), *facts]:
        console.print(Text.assemble((f"{name:>11}  ", "dim"), _shorten(value)))


def show_verification(verification: Verification, notes: Sequence[str]) -> None:
    """Show the claim, the finding on this machine, and the verdict."""
    claim, found = verification.bundle.claim, verification.found
    table = Table(box=None, pad_edge=False)
    for column in ("score", "claimed", "found here"):
        table.add_column(column)
    for row in verification.rows():
        table.add_row(*map(_shorten, row))
    console.print(Text(), table)
    if verification.is_other_device:
        console.print(
            Text(
                f"The claim is from another device: {_shorten(claim.device.name)}. This is {verification.device.name}."
            )
        )
    if found.verified.labels is not None:
        console.print(Text(_shorten(report_text.format_labels(found.verified.labels)), "dim"))
    for name, text in report_text.isolation_facts(found.report):
        console.print(Text(f"{name}: {_shorten(text)}", "dim"))
    for note in notes:
        console.print(Text(note, "yellow"))
    if found.report.log:
        console.print(Text(strip_control_chars(found.report.log), "dim"))
    verdict = verification.verdict
    console.print(
        Text.assemble(
            (f"The claim {_format_verdict(verdict)} here. ", COLOURS[verdict]), strip_control_chars(verification.reason)
        )
    )


def _shorten(text: str) -> str:
    return strip_control_chars(text[:MAX_CHARACTERS])


def _format_verdict(verdict: Verdict) -> str:
    return "is unresolved" if verdict is Verdict.UNRESOLVED else verdict.value
