"""How long tests wait: until it happens. What never happens is ended by the limit on every test, which is a long one,
because a machine whose host is busy can be twenty times as slow for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(happens: Callable[[], object]) -> None:
    while not happens():
        time.sleep(0.02)
