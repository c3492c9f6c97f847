"""``qa-arch tables``: comparisons of recorded runs, from their records and nothing else."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qa_arch.cli.runs import split_columns
from qa_arch.config.files import write_atomic, write_json
from qa_arch.errors import ConfigError, RunError
from qa_arch.results.columns import Table
from qa_arch.results.comparison import by_measure, comparison
from qa_arch.results.dev_access_log import EXPERIMENTS, dev_access_note
from qa_arch.results.experiment_scripts import TABLES, experiment_figures, experiment_tables
from qa_arch.results.publish import publish
from qa_arch.results.record import RECORD, RECORDS, Runs, find_runs
from qa_arch.results.render import FORMATS, fill, render
from qa_arch.results.systems import labelled
from qa_arch.results.width import terminal_width

log = logging.getLogger(__name__)
README = Path("README.md")
"""Shows the first table of an experiment where it names it between marks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "runs",
        nargs="*",
        metavar="RUNS",
        help="run folders, or folders of runs (default: runs), one table for each set they were scored on;"
        f" or folders of experiments, whose {TABLES} says what they show",
    )
    add("--format", choices=FORMATS, default="text", help="default: text")
    add(
        "--columns",
        type=split_columns,
        metavar="KEY,...",
        help="the columns of tables of runs, such as model,f1,auroc,ece (qa_arch/results/columns.py has all)",
    )
    add("--out", metavar="F", help="write to this file instead of standard output")
    add("--figure", metavar="F.svg", help="also draw the runs, which must make one table, as .svg and .png")
    add("--publish", metavar="DIR", help="copy the runs' records, without machine paths, below experiments/")
    add(
        "--all",
        action="store_true",
        help=f"write table.md, .tex, .csv and .json and the figures beside every {EXPERIMENTS}/*/{TABLES},"
        " from the committed records",
    )


def run(args: argparse.Namespace) -> int:
    """Print the tables, write them to ``--out``, or with ``--all`` write those of every experiment."""
    if args.all:
        if args.runs or args.out or args.figure or args.publish:
            raise ConfigError(
                "--all writes the tables of experiments/ and takes neither RUNS nor other options"
            )
        return _write_all()
    roots = args.runs or ["runs"]
    if args.publish:
        for folder, _ in find_runs(roots):
            print(publish(folder, Path(args.publish)))
        return 0
    page = render(_tables(roots, args.columns), args.format, None if args.out else terminal_width())
    if args.figure:
        _draw(by_measure(find_runs(roots)), args.figure)
    if args.out:
        write_atomic(args.out, page)
    else:
        sys.stdout.write(page)
    return 0


def _tables(roots: Sequence[str], columns: Sequence[str] | None) -> list[Table]:
    """Those of experiments as their ``tables.py`` says, then one for each set that runs were scored on.

    ``tables.py`` is executed in the folders of ``experiments/`` alone: no folder of records brings code.
    """
    here = EXPERIMENTS.resolve()
    experiments = [
        root for root in roots if (Path(root) / TABLES).is_file() and Path(root).resolve().parent == here
    ]
    if experiments and columns is not None:
        raise ConfigError(f"--columns: {experiments[0]}/{TABLES} says what its tables show; name runs")
    tables = [table for root in experiments for table in experiment_tables(Path(root))]
    if others := [root for root in roots if root not in experiments]:
        compared = ((comparison(runs, columns=columns), runs) for runs in by_measure(find_runs(others)))
        tables += [_with_accesses(labelled(table, runs), runs) for table, runs in compared]
    if not tables:
        raise RunError(f"{', '.join(experiments)}: no {RECORD} below {RECORDS}/ yet, so no table")
    return tables


def _draw(groups: Sequence[Runs], path: str) -> None:
    from qa_arch.results.plots import DRAWN, comparison_figure

    if len(groups) > 1:
        raise ConfigError(f"--figure: these runs make {len(groups)} tables; name the runs of one of them")
    for file in comparison_figure(labelled(comparison(groups[0], columns=DRAWN), groups[0]), path):
        log.info("%s: written", file)


def _with_accesses(table: Table, runs: Runs) -> Table:
    """The table with every access to the runs' closed dev set listed below it."""
    fingerprints = {record.fingerprint("dev") for _, record in runs}
    note = dev_access_note(EXPERIMENTS / runs[0][1].name, fingerprints)
    return replace(table, notes=[*table.notes, note]) if note else table


def _write_all() -> int:
    scripts = sorted(EXPERIMENTS.glob(f"*/{TABLES}"))
    if not scripts:
        raise RunError(f"{EXPERIMENTS}/*/{TABLES}: there is none; call this in the root of a checkout")
    for script in scripts:
        tables = experiment_tables(script.parent)
        if not tables:
            log.warning("%s: no %s below it yet, so no table", script.parent / RECORDS, RECORD)
            continue
        for suffix, form in ((".md", "markdown"), (".tex", "latex"), (".csv", "csv")):
            write_atomic(script.with_name(f"table{suffix}"), render(tables, form))
        write_json(script.with_name("table.json"), [table.as_dict() for table in tables])
        print(script.with_name("table.md"))
        for figure in experiment_figures(script.parent):
            print(figure)
        for page in filter(Path.is_file, (README, script.with_name(README.name))):
            write_atomic(page, fill(page.read_text(encoding="utf-8"), script.parent.name, tables))
    return 0
