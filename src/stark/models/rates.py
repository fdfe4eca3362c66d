"""The rate of calls to one provider: requests and tokens in any minute, with equal parts for all runs. Pure: no clock.

A call counts with the tokens that similar calls took, until its own are known. So the limit on requests is exact, and
that on tokens holds as far as calls resemble each other; what they took more delays the next calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

WINDOW_S = 60.0
RECENT = 0.2  # weight of the latest call in the estimate


@dataclass
class Grant:
    """A call that was let through. ``worst`` is the most tokens it can take."""

    run: str
    at: float
    worst: int
    tokens: int
    is_recent: bool = True


@dataclass
class _Use:
    """The calls and tokens of the last minute."""

    calls: int = 0
    tokens: int = 0

    def add(self, calls: int, tokens: int) -> None:
        self.calls += calls
        self.tokens += tokens


@dataclass
class _Waiting:
    number: int
    worst: int


@dataclass
class RateWindow:
    """Calls of the last minute, and the queues of those that wait, one for each run."""

    requests: int | None = None
    tokens: int | None = None
    _granted: deque[Grant] = field(default_factory=deque)
    _queues: dict[str, deque[_Waiting]] = field(default_factory=dict)
    _used: _Use = field(default_factory=_Use)
    _used_by: dict[str, _Use] = field(default_factory=dict)
    _share: float = 1.0  # of the worst case that calls take

    def add(self, run: str, number: int, worst: int) -> None:
        """Let a call wait for its turn."""
        self._queues.setdefault(run, deque()).append(_Waiting(number, worst))

    def withdraw(self, run: str, number: int) -> None:
        """Forget a call that no longer waits."""
        left = deque(each for each in self._queues.get(run, ()) if each.number != number)
        if left:
            self._queues[run] = left
        else:
            self._queues.pop(run, None)

    def admit(self, now: float) -> Iterator[tuple[int, Grant]]:
        """Yield the number of each call that may begin now.

        The run that had least in the last minute is next. Its first call is never overtaken because it is large.
        """
        while self._granted and self._granted[0].at + WINDOW_S <= now:
            self._expire(self._granted.popleft())
        while self._queues:
            run = min(self._queues, key=self._use_of)
            first = self._queues[run][0]
            expected = round(first.worst * self._share)
            if not self._fits(expected):
                return
            self.withdraw(run, first.number)
            grant = Grant(run, now, first.worst, expected)
            self._granted.append(grant)
            self._count(run, 1, expected)
            yield first.number, grant

    def settle(self, grant: Grant, tokens: int | None) -> None:
        """Note what a call really took; None keeps the estimate."""
        if tokens is None:
            return
        if grant.is_recent:
            self._count(grant.run, 0, tokens - grant.tokens)
        grant.tokens = tokens
        if grant.worst:
            self._share += RECENT * (min(1.0, tokens / grant.worst) - self._share)

    def next_change(self) -> float | None:
        """Return the time at which room is made next, or None if nothing waits for it."""
        return self._granted[0].at + WINDOW_S if self._queues and self._granted else None

    def _use_of(self, run: str) -> tuple[int, int]:
        use = self._used_by.get(run, _Use())
        return (use.tokens if self.tokens is not None else 0, use.calls)

    def _expire(self, grant: Grant) -> None:
        grant.is_recent = False
        self._count(grant.run, -1, -grant.tokens)
        if not self._used_by[grant.run].calls:
            del self._used_by[grant.run]

    def _count(self, run: str, calls: int, tokens: int) -> None:
        self._used.add(calls, tokens)
        self._used_by.setdefault(run, _Use()).add(calls, tokens)

    def _fits(self, tokens: int) -> bool:
        """True if a call fits into this minute. One that is larger than any minute fits if it is alone."""
        if self.requests is not None and len(self._granted) >= self.requests:
            return False
        if self.tokens is None or not self._granted:
            return True
        return self._used.tokens + tokens <= self.tokens
