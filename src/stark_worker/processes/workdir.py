"""What lies where in a process's own folder, and how to read what it left there. No torch."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stark_worker.protocol.errors import MachineryFault

SOURCE_FILE = "candidate.py"
JOB_FILE = "job.json"
EXTENSION_FILE = "extension.json"
LIBRARY_FOLDER = "library"
RESOURCES_FILE = "resources.txt"
READY_HEADER = "ready.h"  # includes others; a compiler that finds beside it what it once made of them reads that
READY_MADE = f"{READY_HEADER}.gch"
REQUEST_FILE = "request.json"
REPORT_FILE = "report.json"
OUTPUT_FILE = "output"

MOST_BYTES = 32 * 2**20  # of what a process leaves for others to read


def read_plainly(path: Path, last: int = MOST_BYTES) -> bytes:
    """The last bytes of what a process left that may have loaded anything: of an ordinary file, and of nothing that
    leads elsewhere or keeps its reader waiting.
    """
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise MachineryFault(f"{path.name} is no ordinary file")
            file.seek(max(facts.st_size - last, 0))
            return file.read(last)
    except OSError as error:
        raise MachineryFault(f"{path.name} cannot be read: {error.strerror}") from error
