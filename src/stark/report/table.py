"""A table as every output shows it: raw values with a form per column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]

FORMS: dict[str, Callable[[Any], str]] = {
    "text": str,
    "count": lambda value: f"{value:,}",
    "percent": lambda value: f"{value:.1%}",
    "times": lambda value: f"{value:.2f}x",
    "number": lambda value: f"{value:.3f}",
    "money": lambda value: f"${value:,.2f}",
    "money, if any": lambda value: f"${value:,.2f}",
    "hours": lambda value: f"{value:.2f}",
}
WHOLE = {"text", "count"}  # forms of values that have no fraction
NONE = {"money": "unknown"}  # as what a value of None is shown; otherwise as nothing


@dataclass(frozen=True)
class Table:
    """``columns`` maps a column's name to the form of its values. A value of None is not known or does not apply."""

    name: str
    title: str
    columns: dict[str, str]
    rows: Sequence[Row]
    note: str = ""
    listing: bool = False  # as long as there are runs: for CSV and Parquet, and for who asks for it by name

    def texts(self) -> list[list[str]]:
        """The rows as a person reads them."""
        return [
            [_shown(form, value) for form, value in zip(self.columns.values(), row, strict=True)] for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """The rows as a program reads them, in a file of whatever kind: a column is of one type."""
        return [
            {name: _exact(form, value) for (name, form), value in zip(self.columns.items(), row, strict=True)}
            for row in self.rows
        ]


def _shown(form: str, value: Any) -> str:
    return NONE.get(form, "") if value is None else FORMS[form](value)


def _exact(form: str, value: Any) -> Any:
    return value if value is None or form in WHOLE else float(value)
