"""Records a session of an agent: serves MCP as ``stark mcp`` does, and writes down every call of a tool.

    python tests/record_session.py SESSION.json [options of stark mcp]

Give this command to a client in the place of ``stark mcp``. Later starts append. ``test_first_session.py`` makes the
calls of ``tests/data/mcp/first-session.json`` again, so copy the result there. The source files that a call names are
kept with it, because an agent changes them between calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class Recorder:
    """Puts answers together with their calls, and appends them to a file."""

    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root
        self._open: dict[Any, dict[str, Any]] = {}

    def note_call(self, message: dict[str, Any]) -> None:
        if message.get("method") == "tools/call":
            given = message["params"].get("arguments") or {}
            call = {"tool": message["params"]["name"], "arguments": self._relative(given)}
            files = {
                name: (self._root / name).read_text() for name in call["arguments"].values() if self._is_file(name)
            }
            self._open[message["id"]] = {**call, "files": files}

    def note_answer(self, message: dict[str, Any]) -> None:
        """Write a call with its answer; a refusal has none. A question for the roots is no answer."""
        call, result = self._open.pop(message.get("id"), None), message.get("result", {})
        if call and "content" in result:
            calls = json.loads(self._path.read_text()) if self._path.exists() else []
            answer = None if result.get("isError") else self._relative(result["structuredContent"])
            self._path.write_text(json.dumps([*calls, {**call, "answer": answer}], indent=1) + "\n")

    def _relative(self, value: Any) -> Any:
        """Paths in the root become relative to it, so that they exist wherever the calls are made again."""
        return json.loads(json.dumps(value).replace(f"{self._root}/", ""))

    def _is_file(self, name: object) -> bool:
        return isinstance(name, str) and name.endswith(".py") and (self._root / name).is_file()


def main() -> None:
    words = sys.argv[2:]
    root = Path(words[words.index("--root") + 1] if "--root" in words else ".").resolve()
    recorder = Recorder(Path(sys.argv[1]).resolve(), root)
    command = [sys.executable, "-m", "stark.cli", "mcp", *words]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert server.stdin is not None
    assert server.stdout is not None

    def pass_calls_on() -> None:
        for line in sys.stdin.buffer:
            recorder.note_call(json.loads(line))
            server.stdin.write(line)
            server.stdin.flush()
        server.stdin.close()

    threading.Thread(target=pass_calls_on, daemon=True).start()
    for line in server.stdout:
        recorder.note_answer(json.loads(line))
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
    os._exit(server.wait())  # the thread may still wait for input


if __name__ == "__main__":
    main()
