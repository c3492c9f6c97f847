"""Tables for the terminal, for Markdown and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from html import escape
from textwrap import fill as fill_text
from typing import Any

from qa_arch.results.columns import Table
from qa_arch.results.latex import latex_table
from qa_arch.results.width import fit, terminal_console, terminal_width

FORMATS = ("text", "markdown", "latex", "json", "csv")
_WIDE = 1000
"""Columns of a page without a terminal: nothing is folded or cut."""


def render(tables: Sequence[Table], form: str, width: int | None = None) -> str:
    """The tables in one of ``FORMATS``, ending in a line end; as text within ``width`` if that is given."""
    if form == "json":
        return json.dumps([table.as_dict() for table in tables], indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(tables)
    if form == "text":
        return "\n".join(_text(table, width) for table in tables)
    draw = {"markdown": markdown, "latex": latex}[form]
    return "\n".join(draw(table) for table in tables)


def cells(table: Table) -> list[list[str]]:
    """What people read: the headings, then a line a row."""
    headings = [column.heading for column in table.columns]
    return [headings, *([column.text(row) for column in table.columns] for row in table.rows)]


def markdown(table: Table, *, titled: bool = True) -> str:
    """The table as GitHub's Markdown below its title, the notes below it."""
    head = [f"## {table.title}", ""] if titled else []
    headings, *rows = cells(table)
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    lines = [
        "| " + " | ".join(headings) + " |",
        "|" + "|".join("---" if column.left else "---:" for column in table.columns) + "|",
        *("| " + " | ".join(row) + " |" for row in escaped),
    ]
    return "\n".join([*head, *lines, "", *(f"- {note}" for note in table.notes)]).rstrip() + "\n"


def html(table: Table) -> str:
    """The table for a notebook: a ``div`` in the colours of the page, every text escaped."""
    alignments = ["left" if column.left else "right" for column in table.columns]
    headings, *rows = cells(table)
    lines = [
        '<div style="overflow-x:auto">',
        f"<b>{escape(table.title)}</b>" if table.title else "",
        f"<table><thead>{_html_row('th', headings, alignments)}</thead>",
        f"<tbody>{''.join(_html_row('td', row, alignments) for row in rows)}</tbody></table>",
        *(f'<div style="opacity:.7">{escape(note)}</div>' for note in table.notes),
    ]
    return "".join([*lines, "</div>"])


def _html_row(tag: str, texts: Sequence[str], alignments: Sequence[str]) -> str:
    filled = (
        f'<{tag} style="text-align:{side};white-space:nowrap;padding:.2em .6em">{escape(text)}</{tag}>'
        for text, side in zip(texts, alignments, strict=True)
    )
    return f"<tr>{''.join(filled)}</tr>"


def latex(table: Table) -> str:
    """The table as LaTeX, its title as caption, its notes below it."""
    alignments = "".join("l" if column.left else "r" for column in table.columns)
    return latex_table(table.title, alignments, cells(table), table.notes)


def fill(page: str, slug: str, tables: Sequence[Table]) -> str:
    """``page`` with an experiment's tables where it asks for them.

    The first stands between ``<!-- table: SLUG -->`` and ``<!-- end -->``, the second between
    ``<!-- table: SLUG 2 -->`` and the same, and so on.
    """
    for place, table in enumerate(tables, start=1):
        mark = f"table: {slug}" + (f" {place}" if place > 1 else "")
        page = fill_between(page, mark, markdown(table, titled=False))
    return page


def fill_between(page: str, mark: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- MARK -->`` and ``<!-- end -->``, wherever these stand."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{text.strip()}\n\n{end}", page, flags=re.DOTALL)


def print_table(table: Table) -> None:
    """On a terminal a table that fits it, into a pipe the same without colour or folding."""
    width = terminal_width()
    terminal_console(width or _WIDE).print(drawn(table, width))
    sys.stdout.write(_notes(table, width))


def _text(table: Table, width: int | None) -> str:
    from rich.console import Console

    page = io.StringIO()
    Console(file=page, width=width or _WIDE).print(drawn(table, width))
    return page.getvalue() + _notes(table, width)


def _notes(table: Table, width: int | None) -> str:
    """A line a note, within ``width``, and the note of what the table had no place for."""
    notes = list(table.notes)
    if width is None:
        return "".join(f"  {note}\n" for note in notes)
    if left_out := fit(table.columns, cells(table), width).left_out:
        shown = f"not shown in {width} characters: {', '.join(left_out)}"
        notes.append(f"{shown}; a wider terminal or a pipe (| cat) has every column")
    wrapped = (fill_text(note, width, initial_indent="  ", subsequent_indent="    ") for note in notes)
    return "".join(f"{note}\n" for note in wrapped)


def drawn(table: Table, width: int | None = None) -> Any:
    """The table for a rich console, within ``width``."""
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=table.title or None, title_justify="left")
    lines = cells(table)
    layout = None if width is None else fit(table.columns, lines, width)
    places = range(len(table.columns)) if layout is None else layout.places
    for number, place in enumerate(places):
        column, own = table.columns[place], None if layout is None else layout.widths[number]
        justify: Any = "left" if column.left else "right"
        whole = own is None and not column.left
        drawn.add_column(column.heading, justify=justify, overflow="fold", no_wrap=whole, width=own)
    for row in lines[1:]:
        drawn.add_row(*(Text(row[place]) for place in places))  # brackets are no markup
    return drawn


def _csv(tables: Sequence[Table]) -> str:
    """All rows below one header, with the table's title first and every figure in full."""
    keys = dict.fromkeys(key for table in tables for row in table.rows for key in row)
    page = io.StringIO()
    writer = csv.DictWriter(page, ["table", *keys], lineterminator="\n")
    writer.writeheader()
    for table in tables:
        writer.writerows({"table": table.title, **row} for row in table.rows)
    return page.getvalue()
