"""Files of rows: JSON, JSON lines, CSV and, if pyarrow is installed, Parquet. Only this module imports pyarrow."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stark.core.errors import UsageError

Row = dict[str, Any]


def has_parquet() -> bool:
    """True if Parquet files can be read and written."""
    return importlib.util.find_spec("pyarrow") is not None


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file; its suffix names the format."""
    try:
        if path.suffix == ".parquet":
            return _read_parquet(path)
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines() if line] if path.suffix == ".jsonl" else json.loads(text)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors too
        raise UsageError(f"{path} cannot be read: {error}.", "Check the file.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path} is not a list of rows.", "Each row is a JSON object.")
    return rows


def format_csv(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Format rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def format_parquet(rows: Sequence[Row]) -> bytes:
    """Format rows as Parquet."""
    import pyarrow
    import pyarrow.parquet

    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), content)
    return content.getvalue()


def _read_parquet(path: Path) -> list[Row]:
    if not has_parquet():
        raise UsageError(f"Reading {path} needs pyarrow.", "Install it with: pip install 'stark-kernels[parquet]'")
    import pyarrow.parquet

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
