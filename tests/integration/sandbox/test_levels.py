"""Which levels of confinement are accepted: real processes on a machine made poorer, by a filter below everything."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adversarial.processes import ROOT
from conformance.evaluator import KERNEL, RIGHT, TASK
from stark_worker.protocol.codec import from_json, to_json
from stark_worker.protocol.findings import Finding, State
from stark_worker.protocol.isolation import Level
from stark_worker.protocol.report import EvalReport
from stark_worker.sandbox import seccomp, syscalls
from stark_worker.sandbox.levels import REMEDIES, STANDARD, STRONG, Control, level_of

MACHINERY = 3
LOAD_NUMBER, ALLOW = (0x20, 0, 0, 0), (0x06, 0, 0, 0x7FFF0000)


def without_landlock() -> None:
    """As in a kernel that was built without it."""
    number = syscalls.number("landlock_create_ruleset")
    refusal = (0x06, 0, 0, 0x00050000 | errno.ENOSYS)
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install([LOAD_NUMBER, (0x15, 0, 1, number), refusal, ALLOW])


def without_any_means() -> None:
    """Without what makes a root root as well, as in a container that was given nothing."""
    without_landlock()
    header = struct.pack("Ii", 0x20080522, 0)
    syscalls.call("capset", ctypes.c_char_p(header), ctypes.c_char_p(struct.pack("6I", *[0] * 6)))


def without_limits() -> None:
    """Where a process may not limit the size of its files."""
    refusal = (0x06, 0, 0, 0x00050000 | errno.ENOSYS)
    which = (0x20, 0, 0, 16 + 8)  # the second argument
    limiting = (0x15, 0, 3, syscalls.number("prlimit64"))
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install([LOAD_NUMBER, limiting, which, (0x15, 0, 1, resource.RLIMIT_FSIZE), refusal, ALLOW])


def judged(poorer, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stark_worker", "judge", *options],
        input=to_json(RIGHT.__class__(TASK, source)),
        capture_output=True,
        text=True,
        preexec_fn=poorer,
    )


@pytest.fixture
def place():
    """A folder that every user may write to, as a candidate can if Landlock is missing."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)


def test_a_weak_sandbox_is_refused_before_anything_is_loaded(place):
    done = judged(without_landlock, leaving_traces(place))
    assert (done.returncode, done.stdout) == (MACHINERY, "")
    said = done.stderr.splitlines()[-1]
    assert "has the level weak" in said
    assert "o Landlock (not in this kernel, or switched off)" in said
    assert REMEDIES[Control.FILES] in said
    assert list(place.iterdir()) == []


def test_a_weak_sandbox_can_be_allowed_and_the_report_says_so(place):
    report = from_json(EvalReport, judged(without_landlock, leaving_traces(place), "--allow-weak-sandbox").stdout)
    assert report.timing is not None, report.log
    assert report.sandbox_level is Level.WEAK
    assert "Landlock: not in this kernel" in str(report.isolation)
    assert len(list(place.iterdir())) == 2  # read where it is built, and loaded where it is judged


def leaving_traces(place: Path) -> str:
    """A kernel that writes a file wherever it is loaded; each time it may be another user."""
    return f"import tempfile; tempfile.mkstemp(dir={str(place)!r})\n{KERNEL}"


def test_where_nothing_can_be_locked_in_a_weak_sandbox_still_works():
    """As in a container without privileges on a kernel without Landlock, where these tests may run as well."""
    report = from_json(EvalReport, judged(without_any_means, KERNEL, "--allow-weak-sandbox").stdout)
    assert report.timing is not None, report.log
    assert report.sandbox_level is Level.WEAK
    refused = judged(without_any_means, KERNEL)
    assert refused.returncode == MACHINERY
    assert ("no own user" in refused.stderr.splitlines()[-1]) == ROOT


def test_no_sandbox_at_all_is_refused_whatever_the_user_says():
    done = judged(without_limits, KERNEL, "--allow-weak-sandbox")
    assert done.returncode == MACHINERY, done.stdout
    assert "level none: no limits" in done.stderr.splitlines()[-1]


def test_the_command_line_refuses_with_the_way_out_and_exit_code_6(tmp_path):
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "kernel.py").write_text(KERNEL)
    words = ["judge", str(tmp_path / "task.py"), str(tmp_path / "kernel.py")]
    command = [sys.executable, "-m", "stark.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=without_landlock)
    assert done.returncode == 6, done.stdout
    message = " ".join(done.stderr.split())
    assert "Landlock" in message
    assert "--allow-weak-sandbox" in message
    assert "Traceback" not in message


def test_the_doctor_names_the_control_that_is_missing_and_what_gets_through():
    command = [sys.executable, "-m", "stark_worker", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=without_landlock)
    assert done.returncode == 1, done.stderr
    found = {each.name.strip(): each for each in (from_json(Finding, line) for line in done.stdout.splitlines())}
    assert found["Landlock"] == Finding(
        "  Landlock", State.MISSING, "not in this kernel, or switched off", REMEDIES[Control.FILES]
    )
    assert found["seccomp"].state is State.OK
    missing = {name for name, each in found.items() if each.state is State.MISSING}
    assert missing - {Control.USER} == {"sandbox", "Landlock", "attempts to break out", "a kernel, judged"}
    assert "--allow-weak-sandbox" in found["sandbox"].fix
    assert "not stopped: " in found["attempts to break out"].detail


@pytest.mark.parametrize(
    ("held", "as_root", "level"),
    [
        (STRONG, False, Level.STRONG),
        (STRONG - {Control.IPC}, False, Level.STANDARD),
        (STANDARD, False, Level.STANDARD),
        (STANDARD, True, Level.WEAK),
        (STRONG - {Control.FILES}, False, Level.WEAK),
        (STANDARD - {Control.FILES}, True, Level.WEAK),
        (STANDARD - {Control.LIMITS}, False, Level.NONE),
    ],
)
def test_what_each_level_needs(held, as_root, level):
    assert level_of(held, as_root) is level


def test_there_is_a_way_to_get_every_control():
    assert set(REMEDIES) == set(Control)
