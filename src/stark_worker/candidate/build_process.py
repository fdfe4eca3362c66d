"""Builds a candidate outside the lane: one process reads it, others compile its extensions. No GPU.

The reader imports the candidate; its calls of ``load_inline`` become build requests. A compiler process answers them.
It never runs the candidate's Python, and states the key of its result before it loads anything of the candidate. So an
entry of the shared cache is always what its key says.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stark_worker.compiler import extension
from stark_worker.correctness.model import import_file
from stark_worker.processes.channel import Channel
from stark_worker.processes.workdir import EXTENSION_FILE, LIBRARY_FOLDER, SOURCE_FILE
from stark_worker.protocol.errors import Outcome
from stark_worker.protocol.logs import MAX_LOG_CHARACTERS, describe
from stark_worker.sandbox.confine import enter_sandbox


class PrivateBuild(Exception):
    """The extension may read files of the candidate's own, so it is built only where the candidate is loaded."""


def read(channel: Channel) -> None:
    """Import the candidate in the current folder; other processes build its extensions.

    Only an extension that does not compile is reported here. Other errors may come from the missing device, and appear
    again when the candidate is loaded there.
    """
    source_file = Path.cwd() / SOURCE_FILE

    def make(requested: extension.Extension) -> Any:
        if not requested.is_shareable:
            raise PrivateBuild
        path = Path.cwd() / EXTENSION_FILE
        path.write_text(json.dumps([requested.function, requested.call], default=str), encoding="utf-8")
        channel.send(did="asked")
        answer = channel.receive()
        if "failed" in answer:
            raise extension.BuildFailed(answer["failed"])
        return requested.load(Path(answer["library"]))

    order = channel.receive()
    confinement = enter_sandbox([Path(order["cache"])])
    channel.send(did="locked", isolation=asdict(confinement.isolation))  # before any code of the candidate runs
    extension.install(make, order["mode"])
    try:
        import_file("candidate", source_file)
    except extension.BuildFailed as error:
        channel.send(did="failed", outcome=Outcome.COMPILE_ERROR, log=describe(error, source_file))
    except BaseException:  # noqa: BLE001 - a candidate can raise anything
        channel.send(did="unclear")
    else:
        channel.send(did="read")


def compile_extension(channel: Channel) -> None:
    """Build one extension into the current folder, or precompile the headers that it begins with."""
    order = channel.receive()
    request = Path(order["home"], EXTENSION_FILE)
    enter_sandbox([request.parent, Path(order["cache"])])
    function, call = json.loads(request.read_text(encoding="utf-8"))
    requested = extension.Extension(function, call, order["mode"])
    channel.send(did="named", key=requested.key, headers=requested.headers_key)
    order = channel.receive()  # comes only if the cache has no such entry
    folder = Path.cwd() / LIBRARY_FOLDER
    folder.mkdir()
    try:
        if order["do"] == "headers":
            requested.precompile_headers(folder)
        else:
            requested.build(folder, order["ready"] and Path(order["ready"]))
    except Exception as error:  # noqa: BLE001 - sources and flags are the candidate's
        channel.send(did="failed", log=f"{error}"[:MAX_LOG_CHARACTERS])
    else:
        channel.send(did="built")
