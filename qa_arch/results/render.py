"""Tables for the terminal and for Markdown."""

from __future__ import annotations

import sys
from typing import Any

from qa_arch.results.comparison import Table


def cell(key: str, value: Any) -> str:
    """A number as readers of the field print it: scores to one decimal, counts with separators."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}" if key == "null_threshold" else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def markdown(table: Table) -> str:
    """The table as GitHub's Markdown, notes below it."""
    lines = [
        "| " + " | ".join(table.columns.values()) + " |",
        "|" + "|".join("---" for _ in table.columns) + "|",
    ]
    lines += [
        "| " + " | ".join(cell(key, row.get(key)) for key in table.columns) + " |" for row in table.rows
    ]
    return "\n".join([*lines, "", *(f"{note}." for note in table.notes)]) + "\n"


def print_table(table: Table) -> None:
    """On a terminal a drawn table, into a pipe the same without colour or folding."""
    from rich.console import Console
    from rich.table import Table as Drawn

    drawn = Drawn(title=table.title, caption="; ".join(table.notes), caption_justify="left")
    for key, heading in table.columns.items():
        drawn.add_column(heading, justify="left" if key == "model" else "right", no_wrap=True)
    for row in table.rows:
        drawn.add_row(*(cell(key, row.get(key)) for key in table.columns))
    Console(width=None if sys.stdout.isatty() else 120).print(drawn)
