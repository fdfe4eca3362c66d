"""Runs ``stark`` as a user does, in a process of its own.

Most of a short command is the import of foreign libraries. So one process, started at the first use, has imported
everything, and every command is a fork of it. ``command`` is for tests that need a process from scratch.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import traceback
from typing import IO

from paths import ROOT, TESTS

WARM_MODULES = (
    "stark.cli.main",
    "stark.run.api",
    "stark.bench.runner",
    "stark.agents.workflows",
    "stark.models.provider",
    "pydantic_ai.models.anthropic",
    "pydantic_ai.models.openai",
)


def environment(**extra: object) -> dict[str, str]:
    """This environment without keys of providers, and with what makes outputs comparable."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    own = os.pathsep.join(map(str, (ROOT / "src", TESTS)))  # this checkout, whatever is installed
    shared = {"PYTHONPATH": own, "NO_COLOR": "1", "COLUMNS": "200"}
    return {**kept, **shared, **{name: str(value) for name, value in extra.items()}}


def command(*words: object) -> list[str]:
    """The command line that starts ``stark`` from scratch."""
    return [sys.executable, "-m", "stark.cli", *map(str, words)]


def stark_command(*words: object, **extra: object) -> subprocess.CompletedProcess[str]:
    """Run ``stark`` with these words, and with ``extra`` in its environment."""
    return _ForkServer.get().run(list(map(str, words)), environment(**extra))


class _ForkServer:
    """A process that has imported what ``stark`` imports, and forks for each command."""

    _instance: _ForkServer | None = None

    def __init__(self) -> None:
        server = [sys.executable, __file__]
        self._process = subprocess.Popen(
            server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
        )
        self._lock = threading.Lock()
        atexit.register(self._close)

    @classmethod
    def get(cls) -> _ForkServer:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def run(self, words: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, self._lock:
            outputs = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (out, err)]
            order = {"words": words, "environment": variables, "folder": os.getcwd(), "outputs": outputs}
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            code = int(self._process.stdout.readline())
            return subprocess.CompletedProcess(words, code, _content(out), _content(err))

    def _close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def warm_process() -> int | None:
    """The number of the process that forks, or None while there is none."""
    server = _ForkServer._instance
    return server._process.pid if server else None


def _serve() -> dict[str, object] | None:
    """Fork for each order. Return it in the child, which then runs it, and None at the end."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return dict(json.loads(line))
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    return None


def _become(order: dict[str, object]) -> None:
    """Take over the words, the environment, the folder and the outputs of an order."""
    import stark.cli.__main__ as program

    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in zip((1, 2), order["outputs"], strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), number)
    sys.argv = [program.__file__, *order["words"]]
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)


def _run() -> None:
    """Run ``stark`` and end. To take down the interpreter would copy and touch all that the child shares."""
    from stark.cli.main import main

    try:
        main()
        code: object = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    for name in WARM_MODULES:
        importlib.import_module(name)
    gc.freeze()  # a collection in a child would touch, and so copy, everything
    if order := _serve():
        _become(order)
        _run()
