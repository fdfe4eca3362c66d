"""Secrets are planted; a candidate that looks everywhere finds none, and a run leaves none behind."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adversarial.processes import NAMESPACES, ROOT, as_ordinary_user
from conformance.evaluator import TASK
from stark_process import environment
from stub_server import Behaviour, StubServer

SEARCH = r"""
import os, re

PATTERN = re.compile(rb"canary-(?:key|file|argument)-[0-9a-f]{32}")
found, counts = set(), {"processes": 0, "files": 0, "megabytes": 0}


def look(path, kind):
    try:
        with open(path, "rb") as file:
            content = file.read(2**20)
    except OSError:
        return
    counts[kind] += 1
    found.update(PATTERN.findall(content))


def look_into_own_memory():
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps.read().splitlines():
            span, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
            begin, end = (int(part, 16) for part in span.split("-"))
            if "r" not in rights or name.startswith(("/", "[v")):
                continue
            try:
                memory.seek(begin)
                content = memory.read(min(end - begin, 2**26))
            except (OSError, ValueError):
                continue
            counts["megabytes"] += len(content) / 2**20
            found.update(PATTERN.findall(content))


def look_everywhere(tops):
    for name, value in os.environ.items():
        found.update(PATTERN.findall(f"{name}={value}".encode()))
    for process in ("self", *range(1, os.getpid() + 1000)):  # whether or not they can be listed
        for entry in ("environ", "cmdline", "status"):
            look(f"/proc/{process}/{entry}", "processes")
    for top in tops:
        seen = 0
        for folder, _, names in os.walk(top):
            for name in names:
                look(os.path.join(folder, name), "files")
            seen += len(names)
            if seen > 1000:
                break
    look_into_own_memory()
    return f"LOOKED {counts} FOUND {sorted(found)}"
"""
PLACES = ["/root", "/home", "/tmp", "/var/tmp", "/run", "/dev/shm", "/etc", "..", "."]
RIGHT = TASK.replace("class Model(", "class ModelNew(")
only_as_root = pytest.mark.skipif(not (ROOT and NAMESPACES), reason="a test of its own only where another user is root")
KINDS = ("key", "file", "argument")


def searcher(home: Path) -> str:
    return f"{SEARCH}\nraise RuntimeError(look_everywhere({[str(home), *PLACES]}))\nclass ModelNew: ...\n"


def canary_run(url: str) -> dict[str, object]:
    """A run with secrets in its environment, its home and its arguments; what it said, and what it left."""
    planted = {kind: f"canary-{kind}-{secrets.token_hex(16)}" for kind in KINDS}
    with tempfile.TemporaryDirectory() as place:
        home, folder, task = Path(place, "home"), Path(place, "run"), Path(place, "task.py")
        home.mkdir()
        (home / ".credentials").write_text(planted["file"])
        task.write_text(TASK)
        surroundings = environment(HOME=str(home), MY_KEY=planted["key"], ANTHROPIC_API_KEY=planted["key"])

        def stark(*words: object) -> str:
            command = [sys.executable, "-X", f"canary={planted['argument']}", "-m", "stark.cli", *map(str, words)]
            done = subprocess.run(command, capture_output=True, text=True, env=surroundings, cwd=place)
            return f"{done.returncode}\n{done.stdout}\n{done.stderr}"

        Path(place, "search.py").write_text(searcher(home))
        options = ["--method", "sampling", "--model", "m", "--base-url", f"{url}/v1", "--api-key-env", "MY_KEY"]
        options += ["--attempts", 2, "--tokens", 10**9, "--set", "evaluation.torch_compile=false"]
        options += ["--set", "evaluation.final=false", "--run", folder]
        said = [stark("optimize", task, *options), stark("show", folder), stark("show", folder, 1)]
        said.append(stark("export", folder, "--training-data", Path(place, "calls.jsonl"), "--role", "solo"))
        said.append(stark("judge", task, Path(place, "search.py"), "--json"))
        Path(place, "right.py").write_text(RIGHT)  # a bundle is not compressed, so that all of it is looked through
        files = ["--bundle", Path(place, "evidence.zip"), "--export", Path(place, "best.py")]
        said.append(stark("judge", task, Path(place, "right.py"), *files))
        left = {str(file.relative_to(place)): file.read_bytes() for file in Path(place).rglob("*") if file.is_file()}
    return {"planted": planted, "said": said, "left": left, "home": home}


@pytest.mark.parametrize("user", ["this user", pytest.param("ordinary", marks=[only_as_root, pytest.mark.slow])])
def test_canaries_are_found_nowhere(user):
    replies = [Behaviour(text=f"```python\n{source}\n```") for source in (searcher(Path("/nowhere")), RIGHT)]
    with StubServer(*replies) as server:
        found = (as_ordinary_user if user == "ordinary" else lambda step: step())(lambda: canary_run(server.url))
    if "has the level weak" in found["said"][0]:
        pytest.skip("this machine has no better sandbox than a weak one")
    optimised, _, node, exported, judged, bundled = found["said"]
    assert optimised[0] in "03", optimised
    assert exported[0] == "0", exported
    assert bundled[0] == "0", bundled
    for text in (node, judged):  # the candidate did look, and could say what it found
        looked = re.search(r"LOOKED \{'processes': (\d+), 'files': (\d+), 'megabytes': ([\d.]+)\} FOUND \[\]", text)
        assert looked, text
        assert all(float(number) > 0 for number in looked.groups())
    assert all(found["planted"]["key"] in request.headers["authorization"] for request in server.requests)
    for kind, secret in found["planted"].items():
        assert secret not in str([request.body for request in server.requests]), kind
        assert secret not in "".join(found["said"]), kind
        where = [name for name, content in found["left"].items() if secret.encode() in content]
        assert where == (["home/.credentials"] if kind == "file" else []), kind
    assert {"run/stark.db", "best.py", "calls.jsonl", "evidence.zip"} <= found["left"].keys()


def test_the_same_search_finds_them_all_where_nothing_is_confined(tmp_path):
    planted = {kind: f"canary-{kind}-{secrets.token_hex(16)}" for kind in KINDS}
    (tmp_path / ".credentials").write_text(planted["file"])
    program = f"{SEARCH}\nprint(look_everywhere([{str(tmp_path)!r}]))"
    command = [sys.executable, "-X", f"canary={planted['argument']}", "-c", program]
    surroundings = os.environ | {"MY_KEY": planted["key"]}
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings)
    assert done.returncode == 0, done.stderr
    assert all(secret in done.stdout for secret in planted.values()), done.stdout
