"""The live view on a real pseudo-terminal, and ``stark watch`` and ``stark runs`` from another process."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from pathlib import Path

import pytest

from fakes import TASK
from stark_process import command, environment, stark_command
from waiting import stored, wait_until

ALTERNATE, NORMAL = "\x1b[?1049h", "\x1b[?1049l"
ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
PRETEND = (
    "--set",
    "roles.model=fakes:HeldModel",
    "--evaluator",
    "fakes:HashEvaluator",
    "--set",
    "evaluation.torch_compile=false",
)


class Terminal:
    """A process on a pseudo-terminal, and all that it has written."""

    def __init__(self, words, width=100, height=30, **variables):
        self.master, slave = pty.openpty()
        self.resize(width, height)
        plain = {name: value for name, value in environment(**variables).items() if name not in ("COLUMNS", "NO_COLOR")}
        plain |= {"TERM": "xterm-256color", **{name: str(value) for name, value in variables.items()}}
        self.process = subprocess.Popen(
            command(*words), stdin=slave, stdout=slave, stderr=slave, env=plain, start_new_session=True
        )
        os.close(slave)
        self._written = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        while True:
            try:
                part = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                return
            if not part:
                return
            self._written += part

    @property
    def text(self) -> str:
        return self._written.decode("utf-8", "replace")

    @property
    def last_frame(self) -> str:
        """The latest full screen without escapes."""
        return ESCAPES.sub("", self.text.rpartition("\x1b[H")[2])

    def resize(self, width, height):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def end(self) -> int:
        code = self.process.wait()
        self._reader.join()
        os.close(self.master)
        return code


@pytest.fixture
def task(tmp_path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK)
    return path


@pytest.fixture
def held(tmp_path) -> Path:
    """While this file exists, the model does not answer for the fifth time."""
    path = tmp_path / "held"
    path.touch()
    return path


def optimize(task, folder, *words):
    return ("optimize", task, "--run", folder, "--attempts", "6", *PRETEND, *words)


def test_a_run_is_followed_resized_watched_and_listed(task, tmp_path, held):
    folder = tmp_path / "run"
    terminal = Terminal(optimize(task, folder), 100, 30, HELD_BY=held)
    wait_until(
        lambda: (
            stored(folder, "nodes") >= 3
            and re.search(r"#3 on .*(planning|coding|debugging) +[2-9] s", terminal.last_frame)
        )
    )
    assert ALTERNATE in terminal.text
    assert "of 6 attempts" in terminal.last_frame

    terminal.resize(40, 12)
    wait_until(
        lambda: max(map(len, terminal.last_frame.splitlines() or ["x" * 99])) <= 40 and "done" in terminal.last_frame
    )

    watching = Terminal(("watch", folder), 90, 20)
    wait_until(lambda: re.search(r"#3 on .* +[0-9]+ s", watching.last_frame))
    listed = json.loads(stark_command("runs", tmp_path, "--json").stdout)
    assert [(each["folder"], each["state"], each["made"]) for each in listed] == [(str(folder), "running", 2)]

    held.unlink()
    assert terminal.end() in (0, 3)
    assert watching.end() == 0
    after = terminal.text.rpartition(NORMAL)[2]
    assert "#6 " in after, "the tree stays when the view has ended"
    assert "attempts," in after
    assert not (folder / "in-flight.json").exists()
    finished = stark_command("watch", folder).stdout
    assert "No process works on" in finished
    assert "6 of 6 attempts" in finished
    assert "6/6" in stark_command("runs", tmp_path).stdout


def test_ctrl_c_gives_the_terminal_back(task, tmp_path, held):
    folder = tmp_path / "run"
    terminal = Terminal(optimize(task, folder), HELD_BY=held)
    wait_until(lambda: stored(folder, "nodes") >= 3)
    terminal.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping: attempts in flight are finished first" in terminal.last_frame)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130
    assert terminal.text.count(ALTERNATE) == terminal.text.count(NORMAL) == 1
    assert "\x1b[?25h" in terminal.text.rpartition(NORMAL)[0] + terminal.text[-200:], "the cursor is shown again"


@pytest.mark.parametrize(
    ("words", "variables"),
    [(("--plain",), {}), ((), {"TERM": "dumb"})],
    ids=["plain", "dumb"],
)
def test_plain_lines_where_they_are_wanted_or_needed(task, tmp_path, words, variables):
    terminal = Terminal(optimize(task, tmp_path / "run", *words), **variables, HELD_BY=tmp_path / "nothing")
    assert terminal.end() in (0, 3)
    assert ALTERNATE not in terminal.text
    assert "asks the plan agent" in terminal.text


def test_no_colours_where_none_are_wanted(task, tmp_path):
    terminal = Terminal(optimize(task, tmp_path / "run"), NO_COLOR="1", HELD_BY=tmp_path / "nothing")
    assert terminal.end() in (0, 3)
    assert ALTERNATE in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.text)
