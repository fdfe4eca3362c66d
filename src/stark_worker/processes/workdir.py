"""The names of files in a process's own folder, and a safe way to read them. No torch."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stark_worker.protocol.errors import MachineryFault

SOURCE_FILE = "candidate.py"
JOB_FILE = "job.json"
EXTENSION_FILE = "extension.json"
LIBRARY_FOLDER = "library"
RESOURCES_FILE = "resources.json"
PCH_HEADER = "ready.h"  # a compiler that finds the precompiled PCH_FILE next to this header reads that instead
PCH_FILE = f"{PCH_HEADER}.gch"
REQUEST_FILE = "request.json"
REPORT_FILE = "report.json"
OUTPUT_FILE = "output"

MAX_READ_BYTES = 32 * 2**20


def read_regular_file(path: Path, last: int = MAX_READ_BYTES) -> bytes:
    """Return the last bytes of a file that an untrusted process left. Refuse links, and files that block a reader."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise MachineryFault(f"{path.name} is not a regular file")
            file.seek(max(facts.st_size - last, 0))
            return file.read(last)
    except OSError as error:
        raise MachineryFault(f"{path.name} cannot be read: {error.strerror}") from error
