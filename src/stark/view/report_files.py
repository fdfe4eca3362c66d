"""A report as files: Markdown, CSV, Parquet, pictures, and one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from stark.errors import UsageError
from stark.tabular import csv_text, has_parquet, write_parquet
from stark.view.exports import write_text
from stark.view.grouping import Group
from stark.view.report import every_table
from stark.view.report_figures import FIGURES, KINDS, can_draw, draw
from stark.view.tables import Table

PAGE = "report.md"
NO_FIGURES = "Figures need matplotlib: pip install 'stark-kernels[report]'"

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 0.5rem 0; font-size: 14px; }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #ddd; }
th { border-bottom: 2px solid #888; } td.text, th.text { text-align: left; }
div.wide { overflow-x: auto; } p.note { color: #666; font-size: 14px; } svg { max-width: 100%; height: auto; }
"""


def write_report(
    folder: Path, title: str, facts: Sequence[str], tables: Sequence[Table], groups: Sequence[Group]
) -> str:
    """Everything into a folder; what could not be written, in a sentence."""
    drawn = draw(groups) if can_draw() else {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_earlier(folder)
        for name, files in drawn.items():
            for kind, content in files.items():
                (folder / f"{name}.{kind}").write_bytes(content)
        for table in tables if has_parquet() else ():
            write_parquet(folder / f"{table.name}.parquet", table.records())
    except OSError as error:
        why = error.strerror or str(error)  # pyarrow's have no strerror
        raise UsageError(f"The report cannot be written into {folder}: {why}.", "Choose another folder.") from error
    pictures = {name: files["svg"] for name, files in drawn.items()}
    read = [table for table in tables if not table.listing]
    write_text(folder / PAGE, as_markdown(title, facts, read, list(pictures)))
    write_text(folder / "report.html", as_html(title, facts, read, pictures))
    for table in tables:
        write_text(folder / f"{table.name}.csv", csv_text(list(table.columns), table.records()))
    return "" if can_draw() else NO_FIGURES


def _remove_earlier(folder: Path) -> None:
    """Remove what an earlier report left, of which this one may have less. Nothing else, and nothing where none was."""
    if not (folder / PAGE).is_file():
        return
    tables = [table.name for table in every_table([])]
    names = [f"{name}.{kind}" for name in tables for kind in ("csv", "parquet")]
    names += [f"{name}.{kind}" for name in FIGURES for kind in KINDS]
    for path in (folder / name for name in names):
        if path.is_file():
            path.unlink()


def as_markdown(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Sequence[str]) -> str:
    """The report for a README or an issue."""
    parts = [f"# {title}", *facts]
    for table in tables:
        sides = [":--" if form == "text" else "--:" for form in table.columns.values()]
        lines = [table.columns, sides, *table.texts()]
        parts += [f"## {table.title}", "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)]
        parts += [table.note] if table.note else []
        parts += [f"![{table.title}]({table.name}.svg)"] if table.name in pictures else []
    return "\n\n".join(parts) + "\n"


def as_html(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Mapping[str, bytes]) -> str:
    """The report as one page; pictures are inside it."""
    parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(fact)}</p>" for fact in facts)]
    for table in tables:
        parts += [f"<h2>{escape(table.title)}</h2>", f'<div class="wide">{_html_table(table)}</div>']
        parts += [f'<p class="note">{escape(table.note)}</p>'] if table.note else []
        if table.name in pictures:
            svg = pictures[table.name].decode()
            parts.append(svg[svg.index("<svg") :])
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _html_table(table: Table) -> str:
    kinds = [' class="text"' if form == "text" else "" for form in table.columns.values()]

    def line(tag: str, texts: Sequence[str]) -> str:
        cells = (f"<{tag}{kind}>{escape(text)}</{tag}>" for kind, text in zip(kinds, texts, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    rows = "\n".join(line("td", texts) for texts in table.texts())
    return f"<table>\n<thead>{line('th', list(table.columns))}</thead>\n<tbody>\n{rows}\n</tbody></table>"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
