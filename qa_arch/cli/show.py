"""``qa-arch show``: one run on one screen, from its record, and its mistakes beside the data."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qa_arch.data.sources import usage
from qa_arch.metrics.prediction_files import read_types
from qa_arch.results.mistakes import BOUNDARIES, LEGEND, NAMES, Mistakes
from qa_arch.results.question_rows import open_scored
from qa_arch.results.record import RECORD, read_record
from qa_arch.results.render import drawn
from qa_arch.results.summary import Summary, summarise
from qa_arch.results.width import terminal_console, terminal_width

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"ok": "bold green", "running": "bold blue"}
_WIDE = 120
_SIDE_BY_SIDE = 100
"""Characters of a line from which on two sections share it."""
_MORE = "--data FILE, the file that the run was scored on, adds where spans went wrong, and articles"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    parser.add_argument("--split", default="dev", help="the set whose errors are split up (default: dev)")
    parser.add_argument(
        "--types", metavar="FILE", help="classes of the questions (qa-arch types), to split the errors up by"
    )
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="FILE",
        help="the questions that the run was scored on, to split its errors by article and to see where spans"
        f" went wrong: {usage()}",
    )
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the run's settings, curves, scores, errors and provenance."""
    folder = Path(args.run_folder)
    record = read_record(folder)
    questions = open_scored(args.data, record, args.split) if args.data else None
    run_folder = folder.parent if folder.name == RECORD else folder
    types = read_types(args.types) if args.types else None
    summary = summarise(run_folder, record, args.split, questions, types=types)
    if args.json:
        print(json.dumps(summary.as_dict(), indent=2, ensure_ascii=False))
        return 0
    _print(summary)
    return 0


def _print(summary: Summary) -> None:
    from rich.text import Text

    console = terminal_console(terminal_width() or _WIDE)
    style = _STYLES.get(summary.status, "bold red")
    console.print(Text.assemble((summary.title, "bold"), "   ", (summary.status, style)))
    if summary.error:
        console.print(Text(summary.error.strip().splitlines()[-1], style="red"))
    if summary.scores.rows:
        console.print(drawn(summary.scores, console.width))
    facts = _facts("run", summary.facts["run"]), _facts("settings", summary.facts["settings"])
    _print_sections(console, [facts, (_curves(summary), _errors(summary.mistakes))])
    if summary.mistakes is not None:
        for table in summary.mistakes.tables():
            console.print(drawn(table, console.width))
        missing = "" if summary.mistakes.texts else f"; {_MORE}"
        console.print(Text(f"{LEGEND}{missing}\n", style="dim"))
    if summary.types is not None:
        console.print(drawn(summary.types, console.width))
    console.print(_facts("provenance", summary.facts["provenance"]))
    if summary.note:
        console.print(Text(summary.note, style="dim"))


def _print_sections(console: Console, rows: Sequence[tuple[Any, Any]]) -> None:
    """Rows of two sections each, side by side where there is room for it, else all below each other."""
    from rich.table import Table

    if console.width >= _SIDE_BY_SIDE:
        page = Table.grid(padding=(0, 4))
        for row in rows:
            page.add_row(*row)
            page.add_row()
        console.print(page)
        return
    for section in filter(None, chain.from_iterable(rows)):
        console.print(section)
        console.print()


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
    chosen = "" if best is None else f", number {best + 1} kept"
    return _grid(f"{epochs} epoch{'s' if epochs > 1 else ''}{chosen}", rows)


def _errors(mistakes: Mistakes | None) -> Any:
    if mistakes is None:
        return ""
    counts = mistakes.counts
    rows: list[tuple[str, int]] = []
    for outcome, number in mistakes.outcomes(counts).items():
        rows.append((NAMES[outcome], number))
        if outcome == "wrong_span":
            rows += [("  boundary error", counts.overlapping), ("  near miss", counts.near_misses)]
            if mistakes.texts:
                rows += [(f"  {BOUNDARIES[kind]}", n) for kind, n in counts.boundaries.items() if n]
        if outcome == "undue_answer" and counts.with_plausible:
            rows.append((f"  plausible, of {counts.with_plausible:,}", counts.plausible))
    shares = ((name, number, 100 * number / max(counts.total, 1)) for name, number in rows)
    return _grid("questions", [(name, f"{number:,}", f"{share:.1f}%") for name, number, share in shares])
