"""Waiting without a time limit. The limit on every test ends what never happens; it is long, because a machine whose
host is busy can be twenty times as slow for minutes.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

OFTEN_S = 0.05


def wait_until(happens: Callable[[], object]) -> None:
    while not happens():
        time.sleep(0.02)


def stored(folder: Path, table: str) -> int:
    """Count the rows of a table that another process writes."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/stark.db?mode=ro", uri=True)) as db:
            found: int = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            return found
    except sqlite3.OperationalError:
        return 0  # not yet created


@contextmanager
def standstills() -> Iterator[list[float]]:
    """Collect the standstills of the machine of a tenth of a second or more, by which a sleeper woke late."""
    late, over = list[float](), threading.Event()

    def sleep() -> None:
        began = time.monotonic()
        while not over.wait(OFTEN_S):
            woken = time.monotonic()
            if woken - began > OFTEN_S + 0.1:
                late.append(woken - began - OFTEN_S)
            began = woken

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    try:
        yield late
    finally:
        over.set()
        sleeper.join()
