"""Who is asked: chat models by name. Real providers are imported only when one is opened."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path

from stark.core.chat import Reply
from stark.core.errors import KeyMissing, UsageError
from stark.core.interfaces import ChatModel
from stark.core.plugins import find_class
from stark.core.settings import RoleSettings
from stark.core.tree import Role
from stark.models.recorded import QueueModel, read_script

POINT = "chat_model"

PLAYBOOK = "playbook"
_NO_LLM = {
    PLAYBOOK: "no LLM: a library of moves",
    "scripted": "no LLM: replies written beforehand",
    "replay": "no LLM: replies of a stored run",
}

StoredReplies = Callable[[str, Role], Sequence[Reply]]


def open_model(
    role: Role, settings: RoleSettings, answered: int = 0, stored_replies: StoredReplies | None = None
) -> ChatModel:
    """The chat model of a role.

    ``answered`` replies were given before the run was interrupted, so a queue leaves them out. ``stored_replies`` is
    how a replay reads the folder of another run.
    """
    name = settings.model
    kind, _, place = name.partition(":")
    if not name:
        raise UsageError(
            f"The role {role.value!r} has no chat model.",
            f"Name one with --set roles.{role.value}.model=provider:name, for example openai:gpt-5.",
        )
    if kind == PLAYBOOK:
        from stark.models.playbook.model import PlaybookModel

        return PlaybookModel(name, answered)
    if kind == "scripted":
        return QueueModel(name, read_script(Path(place).expanduser(), role)[answered:])
    if kind == "replay":
        return QueueModel(name, _stored(name, stored_replies)(place, role)[answered:])
    if settings.base_url is None and _names_a_class(name):
        return typing.cast(ChatModel, find_class(POINT, name, {})(settings))
    # pydantic-ai takes a second to import, which a scripted run or `stark --help` need not wait for
    from stark.models.provider import ProviderModel

    return ProviderModel(settings)


def open_to_estimate(role: Role, settings: RoleSettings, stored_replies: StoredReplies) -> ChatModel:
    """A model to count with. One that is not named, or that there is no key for, has at most a price."""
    from stark.models.prices import UnaskedModel

    try:
        return open_model(role, settings, stored_replies=stored_replies) if settings.model else UnaskedModel(settings)
    except KeyMissing:
        return UnaskedModel(settings)


def is_provider(settings: RoleSettings) -> bool:
    """Whether the model is a provider's, which answers any number of runs; a queue or a class of one's own may not."""
    scripted = settings.model.partition(":")[0] in _NO_LLM
    return not scripted and (settings.base_url is not None or not _names_a_class(settings.model))


def describe(name: str) -> str:
    """How a model is named to people: nobody should take what is none for an LLM."""
    kind = name.partition(":")[0]
    return f"{name} ({_NO_LLM[kind]})" if kind in _NO_LLM else name


def _stored(name: str, stored_replies: StoredReplies | None) -> StoredReplies:
    if stored_replies is None:
        raise UsageError(
            f"{name} cannot be opened here: there is no store to read it with.", "Open it through stark.run.api."
        )
    return stored_replies


def _names_a_class(name: str) -> bool:
    """Whether a name is an entry point or ``package.module:Class``; no provider has a dot in its name, and no model is
    named like a class."""
    module, _, attribute = name.partition(":")
    return name in entry_points(group=f"stark.{POINT}").names or (
        attribute.isidentifier() and ("." in module or attribute[0].isupper())
    )
