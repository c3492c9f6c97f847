"""``qa-arch report``: runs as one self-contained HTML page, from their records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qa_arch.cli.runs import split_columns
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError, RunError
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
    add(
        "--questions",
        nargs="+",
        default=[],
        metavar="RUN",
        help="runs whose single questions are kept first where the page would grow beyond --limit",
    )
    add("--limit", type=float, default=30.0, metavar="MB", help="default: 30")
    add("--title", help="default: the experiments' names")


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path; what could not be used is said on stderr and in the page."""
    from qa_arch.results.report.page import write_report

    if args.limit <= 0:
        raise ConfigError(f"--limit: {args.limit:g} is out of range, it must be > 0")
    problems: list[str] = []
    runs = find_runs(args.runs or ["runs"], unreadable=problems)
    named = [Path(path) for path in args.questions]
    if unknown := [str(p) for p in named if p.resolve() not in {folder.resolve() for folder, _ in runs}]:
        raise RunError(f"--questions: {', '.join(unknown)}: not among the runs of this report")
    report = write_report(
        runs,
        args.out,
        questions=open_passages(args.data) if args.data else None,
        baseline=args.baseline,
        types=read_types(args.types) if args.types else None,
        columns=args.columns,
        named=named,
        title=args.title,
        limit=int(args.limit * 1e6),
        problems=problems,
    )
    for problem in report.problems:
        print(f"not used: {problem}", file=sys.stderr)
    if report.left_out:
        print(
            f"left out: single questions of {len(report.left_out)} runs, to stay below {args.limit:g} MB;"
            " --questions RUN keeps those of the runs named",
            file=sys.stderr,
        )
    print(f"{report.path}: {report.runs} run{'s' * (report.runs != 1)}, {report.bytes / 1e6:.1f} MB")
    return 0
