"""``qa-arch report``: runs as one self-contained HTML page, from their records."""

from __future__ import annotations

import argparse
import sys

from qa_arch.cli.runs import split_columns
from qa_arch.data.sources import open_passages, usage
from qa_arch.metrics.prediction_files import read_types
from qa_arch.records import find_runs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUNS", help="run folders, folders of runs or globs (default: runs)")
    add("-o", "--out", default="report.html", metavar="F.html", help="default: report.html")
    add(
        "--data",
        nargs="+",
        metavar="FILE",
        help=f"the questions that runs were scored on, for texts: {usage()}",
    )
    add(
        "--types",
        metavar="FILE",
        help="classes of the questions (qa-arch types) to break scores down by",
    )
    add(
        "--columns",
        type=split_columns,
        default=[],
        metavar="KEY,...",
        help="further columns of the table, as those of qa-arch tables --columns",
    )
    add("--baseline", metavar="NAME", help="test every system against this one")


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path; what could not be used is said on stderr and in the page."""
    from qa_arch.results.report.page import LIMIT, write_report

    problems: list[str] = []
    runs = find_runs(args.runs or ["runs"], unreadable=problems)
    report = write_report(
        runs,
        args.out,
        questions=open_passages(args.data) if args.data else None,
        baseline=args.baseline,
        types=read_types(args.types) if args.types else None,
        columns=args.columns,
        problems=problems,
    )
    for problem in report.problems:
        print(f"not used: {problem}", file=sys.stderr)
    if report.left_out:
        said = f"left out: single questions of {len(report.left_out)} runs, to stay below {LIMIT / 1e6:g} MB"
        print(f"{said}; name fewer runs", file=sys.stderr)
    print(f"{report.path}: {report.runs} run{'s' * (report.runs != 1)}, {report.bytes / 1e6:.1f} MB")
    return 0
