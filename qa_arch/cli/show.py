"""``qa-arch show``: one run on one screen, from its record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.metrics.files import read_types
from qa_arch.results.record import RECORD, read_record
from qa_arch.results.render import drawn
from qa_arch.results.summary import Summary, summarise

_STYLES = {"ok": "bold green", "running": "bold blue"}
_WIDE = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument("--split", default="dev", help="the set whose errors are split up (default: dev)")
    parser.add_argument(
        "--types", metavar="FILE", help="classes of the questions (qa-arch types), to split the errors up by"
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the run's settings, curves, scores, errors and provenance."""
    folder = Path(args.run_folder)
    summary = summarise(
        folder.parent if folder.name == RECORD else folder,
        read_record(folder),
        args.split,
        types=read_types(args.types) if args.types else None,
    )
    if args.json:
        print(json.dumps(summary.as_dict(), indent=2, ensure_ascii=False))
        return 0
    _print(summary)
    return 0


def _print(summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    style = _STYLES.get(summary.status, "bold red")
    console.print(Text.assemble((summary.title, "bold"), "   ", (summary.status, style)))
    if summary.error:
        console.print(Text(summary.error.strip().splitlines()[-1], style="red"))
    if summary.scores.rows:
        console.print(drawn(summary.scores))
    page = Table.grid(padding=(0, 4))
    page.add_row(_facts("run", summary.facts["run"]), _facts("settings", summary.facts["settings"]))
    page.add_row()
    page.add_row(_curves(summary), _errors(summary.errors))
    page.add_row()
    console.print(page)
    if summary.types is not None:
        console.print(drawn(summary.types))
    console.print(_facts("provenance", summary.facts["provenance"]))
    if summary.note:
        console.print(Text(summary.note, style="dim"))


def _grid(head: str, rows: Sequence[Sequence[Any]]) -> Any:
    from rich.table import Table

    grid = Table(
        title=head, title_justify="left", title_style="bold", box=None, show_header=False, pad_edge=False
    )
    for column in range(len(rows[0]) if rows else 0):
        grid.add_column(style="dim" if column == 0 else "", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _facts(head: str, pairs: Sequence[tuple[str, str]]) -> Any:
    from rich.text import Text

    return _grid(head, [(name, Text(value)) for name, value in pairs])


def _curves(summary: Summary) -> Any:
    if not summary.curves:
        return ""
    rows = []
    for name, bars, values in summary.curves:
        known = [f"{value:.2f}" for value in values if value is not None]
        rows.append((name, bars, " → ".join(dict.fromkeys((known[0], known[-1])))))
    epochs, best = len(summary.curves[0][2]), summary.best_epoch
    kept = "" if best is None else f", number {best + 1} kept"
    return _grid(f"{epochs} epoch{'s' if epochs > 1 else ''}{kept}", rows)


def _errors(errors: Mapping[str, int] | None) -> Any:
    if errors is None:
        return ""
    total = sum(errors.values())
    rows = [(name, f"{count:,}", f"{100 * count / max(total, 1):.1f}%") for name, count in errors.items()]
    return _grid("questions", rows)
