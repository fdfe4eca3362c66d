"""A table for every output: raw values, with a form per column."""

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
UNCONVERTED_FORMS = {"text", "count"}  # all others become floats in files
NONE_TEXT = {"money": "unknown"}  # text of None by form; empty for all others


@dataclass(frozen=True)
class Table:
    """``columns`` maps a column's name to the form of its values. None is unknown or does not apply."""

    name: str
    title: str
    columns: dict[str, str]
    rows: Sequence[Row]
    note: str = ""
    is_listing: bool = False  # one row per run: only in CSV and Parquet files, or if asked for by name

    def texts(self) -> list[list[str]]:
        """The rows as formatted text."""
        return [
            [_format_value(form, value) for form, value in zip(self.columns.values(), row, strict=True)]
            for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """The rows as raw values, one type per column."""
        return [
            {name: _raw_value(form, value) for (name, form), value in zip(self.columns.items(), row, strict=True)}
            for row in self.rows
        ]


def _format_value(form: str, value: Any) -> str:
    return NONE_TEXT.get(form, "") if value is None else FORMS[form](value)


def _raw_value(form: str, value: Any) -> Any:
    return value if value is None or form in UNCONVERTED_FORMS else float(value)
