"""``qa-arch stats``: what is in a question set, one column a set."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from qa_arch.data.squad import open_set
from qa_arch.data.stats import Lengths, Statistics, statistics

_COUNTS = ("examples", "negatives", "articles", "articles_with_negatives", "paragraphs")
_LENGTHS = ("context_words", "question_words", "answer_words")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        nargs="+",
        required=True,
        metavar="F",
        help="SQuAD JSON: a file, a folder or a quoted glob (one set each), or hub:NAME:SPLIT",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: an object, or one a set by its name")
    parser.add_argument(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="stop at the first faulty record, or leave such records out and list them (default: raise)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the statistics of every set named; records left out are listed on stderr."""
    found: dict[str, Statistics] = {}
    for source in args.data:
        questions = open_set(source, on_error=args.on_error)
        found[source] = statistics(questions)
        for problem in questions.skipped:
            print(f"left out: {problem}", file=sys.stderr)
    if args.json:
        plain = {source: figures.as_dict() for source, figures in found.items()}
        print(json.dumps(plain if len(plain) > 1 else plain.popitem()[1], indent=2, ensure_ascii=False))
    else:
        _print_table(found)
    return 0


def _print_table(found: Mapping[str, Statistics]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", title="Question sets", caption="lengths: mean / median / 95% / max")
    for source in found:
        table.add_column(Path(source).name.removesuffix(".json"), justify="right", overflow="fold")
    for label, *cells in _rows(list(found.values())):
        table.add_row(label, *cells)
    Console().print(table)


def _rows(figures: list[Statistics]) -> list[list[str]]:
    rows = [["protocol", *(one.protocol for one in figures)]]
    rows += [[name.replace("_", " "), *(f"{getattr(one, name):,}" for one in figures)] for name in _COUNTS]
    rows.append(["answers per answerable", *(f"{one.answers_per_question:.2f}" for one in figures)])
    for name in _LENGTHS:
        rows.append([name.replace("_", " "), *(_lengths(getattr(one, name)) for one in figures)])
    for kind in sorted({kind for one in figures for kind, _ in one.kinds}):
        rows.append([f"kind: {kind}", *(f"{dict(one.kinds).get(kind, 0):,}" for one in figures)])
    if any(one.skipped for one in figures):
        rows.append(["left out", *(f"{one.skipped:,}" for one in figures)])
    return rows


def _lengths(lengths: Lengths) -> str:
    return f"{lengths.mean:.1f} / {lengths.median:g} / {lengths.p95} / {lengths.max}"
