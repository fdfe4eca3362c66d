"""What ``stark verify`` says. What comes out of an archive is untrusted text and is printed as plain letters."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from stark.cli.terminal.screen import console
from stark.evaluation.verification import Verdict, Verification
from stark_worker.protocol import report_text
from stark_worker.protocol.report_text import strip_control_chars

LONGEST = 300
COLOURS = {Verdict.HOLDS: "bold green", Verdict.UNRESOLVED: "bold yellow", Verdict.FAILS: "bold red"}
STRANGER = (
    "The task came with the kernel and was loaded, confined, by the process that judges: the verdict is only as honest "
    "as that task. Read it, or give your own with --task."
)
OTHER_TASK = "The kernel was judged against your task, whose text is not the one of the bundle."


def show_whole(digest: str, facts: Sequence[tuple[str, str]]) -> None:
    """That an archive is what it was, and what it says of itself."""
    console.print(Text("The archive is what it was when it was made."))
    for name, value in [("manifest", f"SHA-256 {digest}"), *facts]:
        console.print(Text.assemble((f"{name:>11}  ", "dim"), _shortly(value)))


def show_verification(verification: Verification, notes: Sequence[str]) -> None:
    """What was claimed beside what was found here, and whether it holds."""
    claim, found = verification.bundle.claim, verification.found
    table = Table(box=None, pad_edge=False)
    for column in ("score", "claimed", "found here"):
        table.add_column(column)
    for row in verification.rows():
        table.add_row(*map(_shortly, row))
    console.print(Text(), table)
    if verification.elsewhere:
        console.print(
            Text(f"Claimed on another device, {_shortly(claim.device.name)}; this is {verification.device.name}.")
        )
    if found.verified.labels is not None:
        console.print(Text(_shortly(report_text.format_labels(found.verified.labels)), "dim"))
    for name, text in report_text.isolation_facts(found.report):
        console.print(Text(f"{name}: {_shortly(text)}", "dim"))
    for note in notes:
        console.print(Text(note, "yellow"))
    if found.report.log:
        console.print(Text(strip_control_chars(found.report.log), "dim"))
    verdict = verification.verdict
    console.print(
        Text.assemble((f"The claim {_named(verdict)} here. ", COLOURS[verdict]), strip_control_chars(verification.reason))
    )


def _shortly(text: str) -> str:
    return strip_control_chars(text[:LONGEST])


def _named(verdict: Verdict) -> str:
    return "is unresolved" if verdict is Verdict.UNRESOLVED else verdict.value
