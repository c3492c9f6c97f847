"""Tables for the terminal, for Markdown and for programs."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

from qa_arch.results.columns import Table
from qa_arch.results.latex import latex_table

FORMATS = ("text", "markdown", "latex", "json", "csv")
_WIDE = 1000
"""Columns of a page without a terminal: nothing is folded or cut."""


def render(tables: Sequence[Table], form: str) -> str:
    """The tables in one of ``FORMATS``, ending in a line end."""
    if form == "json":
        return json.dumps([table.as_dict() for table in tables], indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(tables)
    draw = {"markdown": markdown, "latex": latex, "text": _text}[form]
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
    """On a terminal a drawn table, into a pipe the same without colour or folding."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else _WIDE).print(drawn(table))
    for note in table.notes:
        print(f"  {note}")


def _text(table: Table) -> str:
    from rich.console import Console

    page = io.StringIO()
    Console(file=page, width=_WIDE).print(drawn(table))
    return page.getvalue() + "".join(f"  {note}\n" for note in table.notes)


def drawn(table: Table) -> Any:
    """The table for a rich console."""
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=table.title or None, title_justify="left")
    for column in table.columns:
        justify, wrapped = ("left", False) if column.left else ("right", True)
        drawn.add_column(column.heading, justify=justify, overflow="fold", no_wrap=wrapped)  # type: ignore[arg-type]
    for row in cells(table)[1:]:
        drawn.add_row(*map(Text, row))  # brackets are no markup
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
