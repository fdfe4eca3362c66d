"""Reads the structure of a live module: for each class the statements that construct it, without weights' values.

Modules of one class whose statements differ in numbers only share a class; these numbers become its arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class Literal:
    """A value that may differ between modules of one class. ``hint`` is a name for it."""

    text: str
    hint: str


@dataclass(eq=False)
class Statement:
    """``target`` and the parts of its value, as in ``self.proj = nn.Linear(64, 64)``."""

    target: str
    parts: list[Any]
    form: str = "{target} = {value}"


@dataclass(eq=False)
class Made:
    """A module whose class is taken by source."""

    kind: type
    path: str
    statements: list[Statement] = field(default_factory=list)

    def shape(self) -> Any:
        """Return everything but the literals, to compare with other modules."""
        return (
            self.kind,
            tuple((each.target, each.form, tuple(map(_shape, each.parts))) for each in self.statements),
        )

    def children(self) -> Iterator[Made]:
        for statement in self.statements:
            yield from (part for part in statement.parts if isinstance(part, Made))


def _shape(part: Any) -> Any:
    return part.shape() if isinstance(part, Made) else "?" if isinstance(part, Literal) else part


@dataclass(eq=False)
class Group:
    """Modules of one class with the same statements, apart from literals."""

    members: list[Made] = field(default_factory=list)
    name: str = ""


class Groups:
    """All modules of a capture, by class and statements."""

    def __init__(self, root: Made) -> None:
        self.root = root
        self._shapes: dict[int, Any] = {}
        self.groups: dict[Any, Group] = {}
        self._differing: dict[int, list[int]] = {}
        self._add(root)

    def _add(self, made: Made) -> None:
        for child in made.children():
            self._add(child)
        shape = self._shapes[id(made)] = made.shape()
        self.groups.setdefault(shape, Group()).members.append(made)

    def group(self, made: Made) -> Group:
        return self.groups[self._shapes[id(made)]]

    def literals(self, made: Made) -> list[Literal]:
        """Return the literals of a module's statements; of modules inside only their arguments."""
        found: list[Literal] = []
        for statement in made.statements:
            for part in statement.parts:
                if isinstance(part, Literal):
                    found.append(part)
                elif isinstance(part, Made):
                    found += self.arguments(part)
        return found

    def arguments(self, made: Made) -> list[Literal]:
        """Return the literals that differ between the modules of this group."""
        group = self.group(made)
        if id(group) not in self._differing:
            columns = list(zip(*map(self.literals, group.members), strict=True))
            self._differing[id(group)] = [
                place for place, column in enumerate(columns) if len({each.text for each in column}) > 1
            ]
        literals = self.literals(made)
        return [literals[place] for place in self._differing[id(group)]]

    def parameters(self, group: Group) -> list[tuple[Literal, str]]:
        """Return the literals of the first module that become arguments, each with a name. Equal columns share one."""
        columns: dict[tuple[str, ...], str] = {}
        named: list[tuple[Literal, str]] = []
        every = [self.arguments(member) for member in group.members]
        for place, literal in enumerate(every[0]):
            column = tuple(each[place].text for each in every)
            if column not in columns:
                name, number = re.sub(r"\W+", "_", literal.hint).strip("_") or "value", 2
                name = f"_{name}" if name[0].isdigit() else name
                while name in columns.values():
                    name, number = f"{name.rstrip('0123456789')}{number}", number + 1
                columns[column] = name
            named.append((literal, columns[column]))
        return named

    def call(self, made: Made, names: dict[int, str]) -> str:
        """Return the expression that constructs a module inside another."""
        group = self.group(made)
        texts: dict[str, str] = {}
        for (_, name), literal in zip(self.parameters(group), self.arguments(made), strict=True):
            texts.setdefault(name, names.get(id(literal), literal.text))
        return f"{group.name}({', '.join(texts.values())})"

    def lines(self, group: Group) -> list[str]:
        """Return the statements of a group's constructor."""
        names = {id(literal): name for literal, name in self.parameters(group)}
        lines = []
        for statement in group.members[0].statements:
            value = "".join(self._text(part, names) for part in statement.parts)
            lines.append(statement.form.format(target=statement.target, value=value))
        return lines

    def _text(self, part: Any, names: dict[int, str]) -> str:
        if isinstance(part, Made):
            return self.call(part, names)
        return names.get(id(part), part.text) if isinstance(part, Literal) else str(part)
