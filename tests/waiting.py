"""How long tests wait: until it happens. What never happens is ended by the limit on every test, which is a long one,
because a machine whose host is busy can be twenty times as slow for minutes.
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
    """How far a run has got that another process writes: so many rows are in this table."""
    try:
        with closing(sqlite3.connect(f"file:{folder}/stark.db?mode=ro", uri=True)) as db:
            found: int = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            return found
    except sqlite3.OperationalError:
        return 0  # not yet created


@contextmanager
def standstills() -> Iterator[list[float]]:
    """How long the machine let nobody go on, a tenth of a second or more at a time: by so much a sleeper woke late."""
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
