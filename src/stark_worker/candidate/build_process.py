"""How a candidate is built outside the lane: read in one process, its extensions compiled in others. No GPU.

The reader imports the candidate, whose calls of ``load_inline`` become requests to build. They are answered by a
compiler process that never runs a line of the candidate's Python, and says under which key its result belongs before it
has loaded anything of it. So what is found in the shared cache is what its key says, whatever a candidate tries.
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


def read(channel: Channel) -> None:
    """Import the candidate in our folder; what it asks for is built elsewhere.

    Only an extension that does not compile says something about the candidate here. Anything else it raises may be for
    want of the device, and is seen again when it is loaded there.
    """
    source_file = Path.cwd() / SOURCE_FILE

    def make(asked_for: extension.Extension) -> Any:
        path = Path.cwd() / EXTENSION_FILE
        path.write_text(json.dumps([asked_for.function, asked_for.call], default=str), encoding="utf-8")
        channel.send(did="asked")
        answer = channel.receive()
        if "failed" in answer:
            raise extension.BuildFailed(answer["failed"])
        return asked_for.load(Path(answer["library"]))

    order = channel.receive()
    confinement = enter_sandbox([Path(order["cache"])])
    channel.send(
        did="locked", isolation=asdict(confinement.isolation)
    )  # while there is nothing of the candidate's that could lie
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
    """Build one extension into our folder, or make the headers ready that it begins with."""
    order = channel.receive()
    asked = Path(order["home"], EXTENSION_FILE)
    enter_sandbox([asked.parent, Path(order["cache"])])
    function, call = json.loads(asked.read_text(encoding="utf-8"))
    asked_for = extension.Extension(function, call, order["mode"], asked.parent)
    channel.send(did="named", key=asked_for.key, headers=asked_for.headers_key)
    wish = channel.receive()  # what nobody has built yet
    folder = Path.cwd() / LIBRARY_FOLDER
    folder.mkdir()
    try:
        if wish["do"] == "headers":
            asked_for.precompile_headers(folder)
        else:
            asked_for.build(folder, wish["ready"] and Path(wish["ready"]))
    except Exception as error:  # noqa: BLE001 - sources and flags are the candidate's
        channel.send(did="failed", log=f"{error}"[:MAX_LOG_CHARACTERS])
    else:
        channel.send(did="built")
