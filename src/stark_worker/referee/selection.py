"""Chooses which huge calls are compared: comparing them takes far longer than computing them."""

from __future__ import annotations

import random
import statistics

GROUP, FAST_SHARE = 5, 0.9  # of huge calls one in a group is compared, and each that is faster than this share


class Selection:
    """Chooses after each huge call if it is compared: at least one in every group, and every fast one."""

    def __init__(self) -> None:
        self._left, self._has_chosen = 0, False
        self._compared_ms: list[float] = []

    def is_chosen(self, total_ms: float) -> bool:
        """Decide about one call. Earlier choices make a later one no less likely: a candidate may notice them."""
        if self._left == 0:
            self._left, self._has_chosen = GROUP, False
        self._left -= 1
        is_last = self._left == 0 and not self._has_chosen
        is_fast = bool(self._compared_ms) and total_ms < FAST_SHARE * statistics.median(self._compared_ms)
        chosen = is_last or is_fast or random.SystemRandom().random() < 1 / GROUP
        if chosen:
            self._has_chosen = True
            self._compared_ms.append(total_ms)
        return chosen
