"""Writes a report as files: Markdown, CSV, Parquet, figures, and one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from stark.analysis.groups import Group
from stark.core.table_files import format_csv, format_parquet, has_parquet
from stark.report.exports import make_folder, write_bytes
from stark.report.figures import FIGURES, FILE_KINDS, can_draw, draw_figures
from stark.report.paper_tables import all_tables
from stark.report.table import Table

MARKDOWN_FILE = "report.md"
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
    """Write all files of a report; return a sentence on what could not be written."""
    drawn = draw_figures(groups) if can_draw() else {}
    pictures = {name: kinds["svg"] for name, kinds in drawn.items()}
    read = [table for table in tables if not table.is_listing]
    files = {f"{name}.{kind}": content for name, kinds in drawn.items() for kind, content in kinds.items()}
    for table in tables:
        files[f"{table.name}.csv"] = format_csv(list(table.columns), table.records()).encode()
        if has_parquet():
            files[f"{table.name}.parquet"] = format_parquet(table.records())
    files["report.html"] = format_html(title, facts, read, pictures).encode()
    files[MARKDOWN_FILE] = format_markdown(title, facts, read, list(pictures)).encode()
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
    names = {f"{table.name}.{kind}" for table in all_tables([]) for kind in ("csv", "parquet")}
    names |= {f"{name}.{kind}" for name in FIGURES for kind in FILE_KINDS}
    return {name for name in names if (folder / name).is_file()}


def format_markdown(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Sequence[str]) -> str:
    """The report for a README or an issue."""
    parts = [f"# {title}", *facts]
    for table in tables:
        sides = [":--" if form == "text" else "--:" for form in table.columns.values()]
        lines = [table.columns, sides, *table.texts()]
        parts += [f"## {table.title}", "\n".join(f"| {' | '.join(map(_escape_cell, line))} |" for line in lines)]
        parts += [table.note] if table.note else []
        parts += [f"![{table.title}]({table.name}.svg)"] if table.name in pictures else []
    return "\n\n".join(parts) + "\n"


def format_html(title: str, facts: Sequence[str], tables: Sequence[Table], pictures: Mapping[str, bytes]) -> str:
    """The report as one page with its figures inside."""
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


def _escape_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
