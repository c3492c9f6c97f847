"""Tables for the terminal, for Markdown and for programs."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from qa_arch.results.comparison import Drawn, Table
from qa_arch.results.latex import latex_table

FORMATS = ("text", "markdown", "latex", "json", "csv")
NOTHING = "–"
_TEXT_COLUMNS = ("model", "run", "block", "set", "name", "kind", "gold", "a_answer", "b_answer", "worst")
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


def cell(key: str, row: Mapping[str, Any]) -> str:
    """A value as readers of the field print it: scores to one decimal, counts with separators.

    Where a run did not end well, its EM or accuracy says how it ended.
    """
    value = row.get(key)
    if key in ("exact", "accuracy") and row.get("status", "ok") != "ok":
        return str(row["status"]).upper()
    if value is None:
        return NOTHING
    if isinstance(value, float):
        return f"{value:.2f}" if key == "null_threshold" else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) and key != "seed" else str(value)


def markdown(table: Table, *, titled: bool = True) -> str:
    """The table as GitHub's Markdown below its title, the notes below it."""
    head = [f"## {table.title}", ""] if titled else []
    rows = ([one.replace("|", r"\|") for one in _cells(table, row)] for row in table.rows)
    lines = [
        "| " + " | ".join(table.columns.values()) + " |",
        "|" + "|".join("---" if key in _TEXT_COLUMNS else "---:" for key in table.columns) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join([*head, *lines, "", *(f"- {note}" for note in table.notes)]).rstrip() + "\n"


def latex(table: Table) -> str:
    """The table as LaTeX, its title as caption, its notes below it."""
    sides = "".join("l" if key in _TEXT_COLUMNS else "r" for key in table.columns)
    rows = [list(table.columns.values()), *(_cells(table, row) for row in table.rows)]
    return latex_table(table.title, sides, rows, table.notes)


def _cells(table: Table, row: Mapping[str, Any]) -> list[str]:
    """What people read of a row, a text a column."""
    return [_drawn(one, row) if (one := table.drawn.get(key)) else cell(key, row) for key in table.columns]


def _drawn(column: Drawn, row: Mapping[str, Any]) -> str:
    values = [row.get(key) for key in column.keys]
    return NOTHING if values[0] is None else column.text(*values)


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

    drawn = Drawn(title=table.title or None, title_justify="left")
    for key, heading in table.columns.items():
        text = key in _TEXT_COLUMNS
        drawn.add_column(heading, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in table.rows:
        drawn.add_row(*_cells(table, row))
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
