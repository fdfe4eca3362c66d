"""Opens chat models by name. Imports the providers' library only for a real provider."""

from __future__ import annotations

import socket
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from stark.core.chat import Reply
from stark.core.errors import KeyMissing, ModelUnavailable, UsageError
from stark.core.interfaces import ChatModel
from stark.core.plugins import find_class, find_entry_points
from stark.core.settings import RoleSettings
from stark.core.tree import Role
from stark.models.recorded import RecordedModel, ReplayModel, load_script

ENTRY_POINT = "chat_model"
CONNECT_S = 3.0

PLAYBOOK = "playbook"
_NO_LLM = {
    PLAYBOOK: "no LLM: a library of moves",
    "scripted": "no LLM: replies written beforehand",
    "replay": "no LLM: replies of a stored run",
}

StoredReplies = Callable[[str, Role], Mapping[int, Sequence[Reply]]]  # by the number of the attempt


def open_model(
    role: Role, settings: RoleSettings, answered: int = 0, load_replies: StoredReplies | None = None
) -> ChatModel:
    """Open the chat model of a role.

    A resumed run has used ``answered`` replies already; a scripted model skips them. ``load_replies`` reads the
    replies of another run for a replay.
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
        return RecordedModel(name, load_script(Path(place).expanduser(), role)[answered:])
    if kind == "replay":
        return ReplayModel(name, _require_stored_replies(name, load_replies)(place, role))
    if settings.base_url is None and _is_class_name(name):
        return typing.cast(ChatModel, find_class(ENTRY_POINT, name, {})(settings))
    # The import takes a second, which a scripted run need not wait for.
    from stark.models.provider import ProviderModel

    return ProviderModel(settings)


def open_for_estimate(role: Role, settings: RoleSettings, load_replies: StoredReplies) -> ChatModel:
    """Open a model to count with. Without a name or a key it has at most a price."""
    from stark.models.prices import PriceOnlyModel

    try:
        return open_model(role, settings, load_replies=load_replies) if settings.model else PriceOnlyModel(settings)
    except KeyMissing:
        return PriceOnlyModel(settings)


def check_addresses(settings: Iterable[RoleSettings]) -> None:
    """Refuse an address where nobody listens, which a provider's library finds out after minutes of retries."""
    for address in sorted({each.base_url for each in settings if each.base_url}):
        parts = urlsplit(address)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if not parts.hostname or getproxies().get(parts.scheme):
            continue
        try:
            socket.create_connection((parts.hostname, port), CONNECT_S).close()
        except OSError as error:
            raise ModelUnavailable(
                f"Nobody answers at {address}: {error.strerror or error}.", "Start that server, or check --base-url."
            ) from error


def is_provider(settings: RoleSettings) -> bool:
    """True for a provider's model, which can answer any number of runs."""
    scripted = settings.model.partition(":")[0] in _NO_LLM
    return not scripted and (settings.base_url is not None or not _is_class_name(settings.model))


def describe_model(name: str) -> str:
    """Name a model, and mark one that is no LLM."""
    kind = name.partition(":")[0]
    return f"{name} ({_NO_LLM[kind]})" if kind in _NO_LLM else name


def _require_stored_replies(name: str, load_replies: StoredReplies | None) -> StoredReplies:
    if load_replies is None:
        raise UsageError(
            f"{name} cannot be opened here: there is no store to read from.", "Open it through stark.run.api."
        )
    return load_replies


def _is_class_name(name: str) -> bool:
    """True for an entry point or ``package.module:Class``. No provider has a dot, and no model a class's spelling."""
    module, _, attribute = name.partition(":")
    return name in find_entry_points(ENTRY_POINT) or (
        attribute.isidentifier() and ("." in module or attribute[0].isupper())
    )
