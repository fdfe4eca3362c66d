"""Files of rows: JSON, JSON lines, CSV and, where pyarrow is installed, Parquet. The only home of pyarrow."""

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
    """Whether Parquet files can be read and written here."""
    return importlib.util.find_spec("pyarrow") is not None


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, by its suffix."""
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


def csv_text(columns: Sequence[str], rows: Sequence[Row]) -> str:
    """Rows as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def parquet_bytes(rows: Sequence[Row]) -> bytes:
    """Rows as Parquet."""
    import pyarrow
    import pyarrow.parquet

    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), content)
    return content.getvalue()


def _read_parquet(path: Path) -> list[Row]:
    if not has_parquet():
        raise UsageError(f"{path} needs pyarrow to be read.", "Install it with: pip install 'stark-kernels[parquet]'")
    import pyarrow.parquet

    rows: list[Row] = pyarrow.parquet.read_table(path).to_pylist()
    return rows
