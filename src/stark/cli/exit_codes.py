"""The exit codes of the command line. Errors carry the codes 1, 2 and 5 to 7 themselves."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """The exit codes that commands raise without an error."""

    MISSING = 1  # doctor: a requirement is missing
    NOT_IMPROVED = 3  # also: the kernel is wrong (judge), the claim does not hold (verify)
    UNRESOLVED = 4
    INTERRUPTED = 130


MEANINGS = {
    0: "success (of optimize and resume: a faster kernel was found)",
    1: "a bug in STARK (of doctor: a requirement is missing)",
    2: "wrong usage or bad input (of bench: no usable task)",
    3: "no faster kernel was found (of judge: the kernel is wrong; of verify: the claim does not hold)",
    4: "cannot tell: measurements contradict each other (of verify: it is not clear that the claim holds)",
    5: "the chat model failed",
    6: "the evaluating machine failed",
    7: "the run folder cannot be used",
    130: "stopped by Ctrl-C or SIGTERM; the run can be resumed",
}


def format_exit_codes() -> str:
    """Return all exit codes in one sentence, for the help."""
    return "Exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items()) + "."
