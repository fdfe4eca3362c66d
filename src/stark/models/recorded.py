"""Chat models with recorded replies: written by hand (scripted) or taken from another run (replay)."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stark.core.chat import Message, Reply, ReplyForm, Usage
from stark.core.errors import ModelUnavailable, UsageError
from stark.core.tree import Role

_SCRIPT_FILE = re.compile(r"(\d+)-(\w+)\.md")


class RecordedModel:
    """Returns its replies in order, one per call and free of charge, for any prompt."""

    def __init__(self, name: str, replies: Sequence[Reply]) -> None:
        self.name = name
        self._replies = [dataclasses.replace(reply, usage=Usage(), cost_usd=0.0) for reply in replies]
        self._next = 0

    @property
    def takes_temperature(self) -> bool:
        return True

    def cost_usd(self, usage: Usage) -> float | None:
        return 0.0

    async def reply(self, messages: Sequence[Message], form: ReplyForm) -> Reply:
        if self._next >= len(self._replies):
            raise ModelUnavailable(
                f"{self.name} has no reply left for the role {form.name!r}: it is shorter than the run.",
                "Ask for fewer attempts, or add replies.",
            )
        self._next += 1
        return self._replies[self._next - 1]


class ReplayModel(RecordedModel):
    """Returns the replies of a stored run by the place of a call, so parallel and killed runs replay too.

    Without a place it returns them in the order of the attempts.
    """

    def __init__(self, name: str, by_attempt: Mapping[int, Sequence[Reply]]) -> None:
        super().__init__(name, [reply for number in sorted(by_attempt) for reply in by_attempt[number]])
        self._by_attempt = by_attempt

    def at(self, number: int, nth: int) -> RecordedModel:
        """Return a model that gives the stored reply to the ``nth`` call of this role in one attempt.

        Asked more often than in the stored run, it says the last one again.
        """
        replies = self._by_attempt.get(number, ())
        if not replies:
            raise ModelUnavailable(
                f"{self.name} holds no reply of this role in attempt {number}.",
                "The attempt took another course than the stored one. Replay its reports too: --evaluator replay.",
            )
        return RecordedModel(self.name, [replies[min(nth, len(replies) - 1)]])


def load_script(folder: Path, role: Role) -> list[Reply]:
    """Load the replies of one role from files such as ``01-plan.md``, ordered by number."""
    try:
        found = [(match, path) for path in folder.iterdir() if (match := _SCRIPT_FILE.fullmatch(path.name))]
        if not found:
            raise UsageError(f"{folder} holds no reply.", "Replies are files such as 01-plan.md and 02-code.md.")
        of_role = sorted((int(match[1]), path) for match, path in found if match[2] == role)
        return [Reply(text=path.read_text(encoding="utf-8"), model="scripted") for _, path in of_role]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The scripted replies in {folder} cannot be read: {error}.",
            "Name a folder of UTF-8 files such as 01-plan.md.",
        ) from error
