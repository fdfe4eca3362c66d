"""Writes a report as files: Markdown, CSV, Parquet, figures, and one self-contained HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from stark.analysis.groups import Group
from stark.core.table_files import format_csv, format_parquet, has_parquet
from stark.page.assets import standalone_page
from stark.report.exports import make_folder, write_bytes
from stark.report.figures import FIGURES, FILE_KINDS, can_draw, draw_figures
from stark.report.paper_tables import all_tables
from stark.report.table import Table
from stark.report.tasks.findings import tasks_table

MARKDOWN_FILE = "report.md"
NO_FIGURES = "Figures need matplotlib: pip install 'stark-kernels[report]'"

STYLE = """
main.report { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
.report table { border-collapse: collapse; margin: 0.5rem 0; font-size: 14px; }
.report th, .report td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid #8884; }
.report th { border-bottom: 2px solid #888; } .report td.text, .report th.text { text-align: left; }
.report div.wide { overflow-x: auto; } .report p.note { opacity: 0.7; font-size: 14px; }
.report img { max-width: 100%; height: auto; background: white; } .report p.found { font-size: 17px; }
.report summary { cursor: pointer; } .report pre { font-size: 13px; overflow-x: auto; line-height: 1.4; }
.report ins { background: #2a83; text-decoration: none; } .report del { background: #c333; text-decoration: none; }
.report b.failed { color: #c33; } .report b.ok { color: #197a3a; } .report pre i { opacity: 0.65; font-style: normal; }
"""


@dataclass(frozen=True)
class Findings:
    """The beginning of a report: sentences, and one row per task. ``sections`` holds trees and kernels as HTML.

    ``runs`` is the document that the page of the runs draws, below the tables.
    """

    sentences: Sequence[str] = ()
    table: Table | None = None
    anchors: Sequence[tuple[str, str]] = ()
    sections: str = ""
    runs: dict[str, Any] | None = None


NOTHING_FOUND = Findings()


def write_report(
    folder: Path,
    title: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    groups: Sequence[Group],
    found: Findings = NOTHING_FOUND,
) -> str:
    """Write all files of a report; return a sentence on what could not be written."""
    drawn = draw_figures(groups) if can_draw() else {}
    pictures = {name: kinds["svg"] for name, kinds in drawn.items()}
    read = [table for table in tables if not table.is_listing]
    files = {f"{name}.{kind}": content for name, kinds in drawn.items() for kind, content in kinds.items()}
    for table in [*([found.table] if found.table else []), *tables]:
        files[f"{table.name}.csv"] = format_csv(list(table.columns), table.records()).encode()
        if has_parquet():
            files[f"{table.name}.parquet"] = format_parquet(table.records())
    files["report.html"] = format_html(title, facts, read, pictures, found).encode()
    files[MARKDOWN_FILE] = format_markdown(title, facts, read, list(pictures), found).encode()
    make_folder(folder)
    earlier_files = _find_earlier_files(folder)
    for name, content in files.items():
        write_bytes(folder / name, content)
    for name in earlier_files - files.keys():
        (folder / name).unlink(missing_ok=True)
    return "" if can_draw() else NO_FIGURES


def _find_earlier_files(folder: Path) -> set[str]:
    """The files of an earlier report in this folder, which may have had more tables."""
    if not (folder / MARKDOWN_FILE).is_file():
        return set()
    names = {f"{table.name}.{kind}" for table in (*all_tables([]), tasks_table([])) for kind in ("csv", "parquet")}
    names |= {f"{name}.{kind}" for name in FIGURES for kind in FILE_KINDS}
    return {name for name in names if (folder / name).is_file()}


def format_markdown(
    title: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[str],
    found: Findings = NOTHING_FOUND,
) -> str:
    """The report for a README or an issue."""
    parts = [f"# {title}"]
    parts += [" ".join(map(_escape_cell, found.sentences))] if found.sentences else []
    parts += _markdown_table(found.table) if found.table else []
    parts += facts
    for table in tables:
        parts += _markdown_table(table)
        parts += [f"![{table.title}]({table.name}.svg)"] if table.name in pictures else []
    return "\n\n".join(parts) + "\n"


def _markdown_table(table: Table) -> list[str]:
    sides = [":--" if form == "text" else "--:" for form in table.columns.values()]
    lines = [table.columns, sides, *table.texts()]
    text = "\n".join(f"| {' | '.join(map(_escape_cell, line))} |" for line in lines)
    return [f"## {table.title}", text, *([table.note] if table.note else [])]


def format_html(
    title: str,
    facts: Sequence[str],
    tables: Sequence[Table],
    pictures: Mapping[str, bytes],
    found: Findings = NOTHING_FOUND,
) -> str:
    """The report as one page with its figures inside; below it, the page of its runs."""
    parts = [f"<h1>{escape(title)}</h1>"]
    parts += [f'<p class="found">{escape(" ".join(found.sentences))}</p>'] if found.sentences else []
    parts += _html_part(found.table, found.anchors) if found.table else []
    parts += [f"<h2>Trees and kernels</h2>{found.sections}"] if found.sections else []
    parts += [f"<p>{escape(fact)}</p>" for fact in facts]
    for table in tables:
        parts += _html_part(table)
        if table.name in pictures:
            code = base64.b64encode(pictures[table.name]).decode()
            parts.append(f'<img alt="{escape(table.title)}" src="data:image/svg+xml;base64,{code}">')
    body = "\n".join(parts)
    return standalone_page(title, found.runs, f'<main class="report">\n{body}\n</main>', STYLE)


def _html_part(table: Table, anchors: Sequence[tuple[str, str]] = ()) -> list[str]:
    note = [f'<p class="note">{escape(table.note)}</p>'] if table.note else []
    return [f"<h2>{escape(table.title)}</h2>", f'<div class="wide">{_html_table(table, anchors)}</div>', *note]


def _html_table(table: Table, anchors: Sequence[tuple[str, str]] = ()) -> str:
    """Return a table. ``anchors`` are links of each row: from the column ``kernel``, and from ``task`` to the tree."""
    kinds = [' class="text"' if form == "text" else "" for form in table.columns.values()]
    places = {"kernel": 0, "task": 1}

    def line(tag: str, texts: Sequence[str], links: tuple[str, str] | None = None) -> str:
        cells = []
        for name, kind, text in zip(table.columns, kinds, texts, strict=True):
            shown = escape(text)
            if links and text and name in places:
                shown = f'<a href="#{links[places[name]]}">{shown}</a>'
            cells.append(f"<{tag}{kind}>{shown}</{tag}>")
        return f"<tr>{''.join(cells)}</tr>"

    linked = [*anchors, *[None] * (len(table.rows) - len(anchors))]
    rows = "\n".join(line("td", texts, links) for texts, links in zip(table.texts(), linked, strict=True))
    return f"<table>\n<thead>{line('th', list(table.columns))}</thead>\n<tbody>\n{rows}\n</tbody></table>"


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
