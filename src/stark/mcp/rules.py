"""The rules of a server. The person who starts it sets them; a client chooses among them and can only lower a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stark.core.errors import UsageError
from stark.core.settings import EvaluationSettings, RoleSettings, Settings
from stark.models.open import PLAYBOOK, is_provider
from stark_worker.protocol.request import Precision, Score, Target


@dataclass(frozen=True)
class Choice:
    """The rules that a client may choose for judging; None leaves the server's own."""

    target: Target | None = None
    precision: Precision | None = None
    score: Score | None = None

    def layer(self) -> dict[str, dict[str, Any]]:
        """Return the choice as settings."""
        chosen = {"target": self.target, "precision": self.precision, "score": self.score}
        return {"evaluation": {name: value for name, value in chosen.items() if value is not None}}


@dataclass(frozen=True)
class SearchChoice:
    """The limits and the model that a client may choose for a search."""

    attempts: int | None = None
    usd: float | None = None
    minutes: float | None = None
    model: str | None = None

    def layer(self) -> dict[str, dict[str, Any]]:
        """Return the choice as settings. Another model drops the address and the key of the server's own."""
        wall_s = None if self.minutes is None else self.minutes * 60
        limits = {"attempts": self.attempts, "usd": self.usd, "wall_s": wall_s}
        roles: dict[str, Any] = {}
        if self.model is not None:
            each = {"model": self.model, "base_url": None, "api_key_env": None}
            roles = {**each, **dict.fromkeys(("plan", "code", "debug", "solo"), each)}
        return {"budget": {name: value for name, value in limits.items() if value is not None}, "roles": roles}


@dataclass(frozen=True)
class ServerRules:
    """The settings of a server, read once: a client may be able to change the file they came from."""

    layers: Mapping[str, Any]
    trust_tasks: bool = False

    @classmethod
    def load(
        cls, file: Path | None, sets: Sequence[str], options: Mapping[str, Any], trust_tasks: bool = False
    ) -> ServerRules:
        """Read the settings file and the assignments; raise SettingsError for what is wrong in them."""
        from stark.run.settings_loader import merge_layers, parse_assignment, read_file

        rules = cls(merge_layers([read_file(file) if file else {}, *map(parse_assignment, sets), options]), trust_tasks)
        rules.settings()
        return rules

    def settings(self, *layers: Mapping[str, Any]) -> Settings:
        """Return the server's settings with further layers laid over them."""
        from stark.run.settings_loader import change_settings, merge_layers

        return change_settings(Settings(), [merge_layers([self.layers, *layers])])

    def evaluation(self, choice: Choice) -> EvaluationSettings:
        """Return the rules by which a client's kernel is judged."""
        return self.settings(choice.layer()).evaluation

    def search(self, choice: Choice, search: SearchChoice) -> Settings:
        """Return the settings of a client's search. Refuse a higher limit, and a model that is code or a file."""
        own = self.settings().budget
        wall_s = None if search.minutes is None else search.minutes * 60
        for name, asked, limit in (
            ("usd", search.usd, own.usd),
            ("attempts", search.attempts, own.attempts if "attempts" in self.layers.get("budget", {}) else None),
            ("wall_s", wall_s, own.wall_s),
        ):
            if asked is not None and limit is not None and asked > limit:
                raise UsageError(
                    f"This server allows at most budget.{name}={limit:g}; {asked:g} were asked for.",
                    f"Ask for less. The person who starts the server can set --set budget.{name}=NUMBER.",
                )
        if search.model is not None and not _is_plain_model(search.model):
            raise UsageError(
                f"The model {search.model!r} cannot be chosen through a tool.",
                "Name playbook, or a provider's model such as anthropic:claude-sonnet-4-6.",
            )
        return self.settings(choice.layer(), search.layer())

    def key_names(self) -> Iterator[str]:
        """Yield the environment variables that the settings name for keys."""
        yield from (role.api_key_env for role in self._roles() if role.api_key_env)

    def passwords(self) -> Iterator[str]:
        """Yield the passwords in the addresses of the settings."""
        yield from (password for role in self._roles() if (password := urlsplit(role.base_url or "").password))

    def _roles(self) -> list[RoleSettings]:
        roles = self.settings().roles
        return [roles.plan, roles.code, roles.debug, roles.solo]


def _is_plain_model(name: str) -> bool:
    """True for a model that neither loads code of its own nor reads a folder."""
    return name.partition(":")[0] == PLAYBOOK or is_provider(RoleSettings(model=name))
