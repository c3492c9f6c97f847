"""``qa-arch tables``: comparisons of recorded runs, from their records and nothing else."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from qa_arch.config.files import write_atomic, write_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.results.comparison import Table, by_measure, comparison
from qa_arch.results.openings import openings_note, read_openings
from qa_arch.results.published import SPEC, experiment_tables
from qa_arch.results.record import RECORD, find_records
from qa_arch.results.render import FORMATS, markdown, render

EXPERIMENTS = Path("experiments")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUNS",
        help="run folders, or folders of runs (default: runs); one table for each set they were scored on",
    )
    add("--format", choices=FORMATS, default="text", help="default: text")
    add("--out", metavar="F", help="write to this file instead of standard output")
    add(
        "--all",
        action="store_true",
        help=f"write table.md and table.json beside every {EXPERIMENTS}/*/{SPEC}, from the committed records",
    )


def run(args: argparse.Namespace) -> int:
    """Print the tables, write them to ``--out``, or with ``--all`` write those of every experiment."""
    if args.all:
        if args.runs or args.out:
            raise ConfigError("--all writes the tables of experiments/; it takes no RUNS and no --out")
        return _write_all()
    roots = args.runs or ["runs"]
    runs = find_records(roots)
    if not runs:
        raise RunError(f"{', '.join(roots)}: no {RECORD} below; train a model first (qa-arch train)")
    page = render(
        [_with_openings(comparison(group), group[0][1].name) for group in by_measure(runs)], args.format
    )
    if args.out:
        write_atomic(args.out, page)
    else:
        sys.stdout.write(page)
    return 0


def _with_openings(table: Table, experiment: str) -> Table:
    """The table with every opening of the experiment's closed dev set told below it."""
    openings = read_openings(EXPERIMENTS / experiment)
    return replace(table, notes=[*table.notes, openings_note(openings)]) if openings else table


def _write_all() -> int:
    specs = sorted(EXPERIMENTS.glob(f"*/{SPEC}"))
    if not specs:
        raise RunError(f"{EXPERIMENTS}/*/{SPEC}: there is none; call this in the root of a checkout")
    for spec in specs:
        tables = experiment_tables(spec.parent)
        page = "\n".join(markdown(table) for table in tables)
        path = write_atomic(spec.with_suffix(".md"), page)
        write_json(spec.with_suffix(".json"), [table.as_dict() for table in tables])
        print(path)
    return 0
