"""Commands that only read the records of runs: ``tables``, ``compare``, ``power``, ``show``, ``report``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qa_arch import terminal
from qa_arch.cli.runs import add_options, keep_inputs, page_file, refuse_options
from qa_arch.data.answer_files import read_types
from qa_arch.data.files import OnError
from qa_arch.data.sources import usage
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import plain_json, write_atomic, write_json
from qa_arch.metrics.squad import ENGLISH
from qa_arch.provenance import EXPERIMENTS, dev_access_note
from qa_arch.records import DEV, RECORD, RECORDS, RunRecord, find_runs, is_squad, read_scored
from qa_arch.results import compare, errors, experiments, notebooks
from qa_arch.results.columns import by_measure, runs_table
from qa_arch.results.effects import MEASURES, samples_of
from qa_arch.results.experiments import METADATA, TABLES
from qa_arch.results.publish import publish
from qa_arch.results.systems import (
    find_system,
    group_by_system,
    labelled,
    load_questions,
    open_scored,
    open_to_score,
    two_systems,
)
from qa_arch.results.tables import Table, fill, print_table, render, text
from qa_arch.terminal import counted

log = logging.getLogger(__name__)
README = Path("README.md")
"""Page that includes an experiment's tables between the marks of ``results.tables.fill``."""


def _figure(text: str) -> Path:
    if Path(text).suffix not in METADATA:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(METADATA)}")
    return Path(text)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} names nothing")
    return names


def add_tables_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch tables runs/squad2 --format markdown"
    add = parser.add_argument
    runs = (
        "run folders, or folders of runs (default: runs), for one table per set they were scored on; or"
        f" folders of experiments, for the tables of their {TABLES}"
    )
    add("runs", nargs="*", metavar="RUNS", help=runs)
    add_options(parser, "--format", "--json")
    columns = "columns of tables of runs, such as model,f1,auroc,ece (qa-arch list columns)"
    add("--columns", type=_names, metavar="KEY,...", help=columns)
    budget = "for each model, the best calibration score that n of its runs are expected to find"
    add("--expected-best", action="store_true", help=budget)
    per_run = "a row for each run, not the mean over the seeds of a system; so do --columns with seed or run"
    add("--per-run", action="store_true", help=per_run)
    add("--publish", metavar="DIR", help="copy the runs' records, without machine paths, below experiments/")
    written = f"write tables and figures beside every {EXPERIMENTS}/*/{TABLES}, from the committed records"
    add("--all", action="store_true", help=written)


def run_tables(args: argparse.Namespace) -> int:
    """Print the tables, or with ``--all`` write those of every experiment."""
    if args.all:
        others = (args.runs, args.publish, args.columns, args.expected_best, args.per_run)
        if any(others) or args.format != "text":
            raise ConfigError("--all: writes the tables of experiments/; leave out RUNS and other options")
        return _write_all()
    roots = args.runs or ["runs"]
    if args.publish:
        not_printed = "is for tables, which --publish does not print; leave it out"
        refuse_options(args, ("columns", "expected_best", "per_run"), not_printed)
        if args.format != "text":
            raise ConfigError(f"--format {not_printed}")
        for folder, _ in find_runs(roots):
            print(publish(folder, Path(args.publish)))
        return 0
    if args.expected_best:
        refuse_options(args, ("columns", "per_run"), "is for tables of runs; leave it out of --expected-best")
        print_table(compare.expected_best_table(find_runs(roots)), form=args.format)
        return 0
    per_run = args.per_run or not {"seed", "run"}.isdisjoint(args.columns or ())
    tables = _recorded_tables(roots, args.columns, per_run)
    # These two print every key of a row, not only those of the columns.
    if args.columns and args.format in ("csv", "json"):
        for place, table in enumerate(tables):
            keys = [key for column in table.columns for key in column.parts or (column.key,)]
            tables[place] = replace(table, rows=[{key: row.get(key) for key in keys} for row in table.rows])
    print_table(*tables, form=args.format)
    return 0


def _recorded_tables(roots: Sequence[str], columns: Sequence[str] | None, per_run: bool) -> list[Table]:
    """Tables of experiments as defined by ``tables.py``, then one per set that runs were scored on, by system
    where one has several seeds unless ``per_run``, with any access to a held-out dev set noted below it.

    ``tables.py`` is executed only in folders of ``experiments/``: code in other folders is not trusted.
    """
    trusted = EXPERIMENTS.resolve()
    folders = [
        root for root in roots if (Path(root) / TABLES).is_file() and Path(root).resolve().parent == trusted
    ]
    if folders and (columns is not None or per_run):
        given = "--per-run" if columns is None else "--columns"
        raise ConfigError(f"{given}: {folders[0]}/{TABLES} defines its own rows and columns; name runs")
    tables = [table for root in folders for table in experiments.experiment_tables(Path(root))]
    others = [root for root in roots if root not in folders]
    for runs in by_measure(find_runs(others)) if others else ():
        table, systems = runs_table(runs, columns=columns), group_by_system(runs)
        seeds = max(len({record.seed for _, record in system.runs}) for system in systems)
        table = labelled(table, systems) if per_run or seeds == 1 else compare.means_table(table, systems)
        fingerprints = {record.fingerprint(DEV) for _, record in runs}
        note = dev_access_note(EXPERIMENTS / runs[0][1].name, fingerprints)
        tables.append(replace(table, notes=[*table.notes, note]) if note else table)
    if not tables:
        raise RunError(f"{', '.join(folders)}: no {RECORD} below {RECORDS}/ yet, so no table")
    return tables


def _write_all() -> int:
    scripts = sorted(EXPERIMENTS.glob(f"*/{TABLES}"))
    if not scripts:
        raise RunError(f"{EXPERIMENTS}/*/{TABLES}: not found; run this in the root of a checkout")
    for script in scripts:
        tables = experiments.experiment_tables(script.parent)
        if not tables:
            log.warning("%s: no %s below it yet, so no table", script.parent / RECORDS, RECORD)
            continue
        for suffix, form in ((".md", "markdown"), (".tex", "latex"), (".csv", "csv")):
            write_atomic(script.with_name(f"table{suffix}"), render(tables, form))
        write_json(script.with_name("table.json"), [table.as_dict() for table in tables])
        print(script.with_name("table.md"))
        for figure in experiments.experiment_figures(script.parent):
            print(figure)
        for page in filter(Path.is_file, (README, script.with_name(README.name))):
            write_atomic(page, fill(page.read_text(encoding="utf-8"), script.parent.name, tables))
    return 0


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch compare runs/squad2 --baseline bert"
    add = parser.add_argument
    runs = (
        "A and B, each a run, or a folder or quoted glob of one system's seeds; with --baseline: all runs to"
        " compare (default: runs)"
    )
    add("runs", nargs="*", metavar="RUN", help=runs)
    add("--baseline", metavar="NAME", help="compare every system in RUN with this one")
    add("--split", default=DEV, help="the scored set (default: dev)")
    measure = (
        "with --baseline: measure to compare (default: f1); forced_f1: answerable F1 (forced answer);"
        " auroc: no-answer detection; aurc: area under the risk-coverage curve"
    )
    either = parser.add_mutually_exclusive_group().add_argument
    either("--measure", choices=tuple(MEASURES), default="f1", help=measure)
    short = "short for --measure forced_f1"
    either("--forced-f1", dest="measure", action="store_const", const="forced_f1", help=short)
    order = (
        "with --baseline: test these systems in this pre-specified order, each only if all earlier ones are"
        " significant, then the others with Holm's correction (default: Holm over all)"
    )
    add("--order", type=_names, default=(), metavar="NAME,...", help=order)
    equivalence = "with --baseline: also test equivalence within this many points (two one-sided tests)"
    add("--equivalence", type=float, metavar="POINTS", help=equivalence)
    components = "with --baseline: also show the standard error of each difference by source"
    add("--components", action="store_true", help=components)
    plot = f"with --baseline: also draw the differences with their intervals, as {', '.join(METADATA)}"
    add("--plot", type=_figure, metavar="FILE", help=plot)
    pooled = (
        "RUN are pairs A B A B ..., one for each experiment on articles of its own: pool their differences"
    )
    add("--pool", action="store_true", help=pooled)
    texts = "the scored questions, to show their texts and group untagged ones by question word"
    add("--data", nargs="+", metavar="FILE", help=f"{texts}: {usage()}")
    add_options(parser, "--unit")
    add("--top", type=int, metavar="N", help="maximum questions to show (default: 20)")
    add_options(parser, "--format", "--json")


def run_compare(args: argparse.Namespace) -> int:
    """Compare two systems, or every system with a baseline, and print the tables."""
    if args.top is not None and args.top < 0:
        raise ConfigError(f"--top: {args.top} is out of range, it must be >= 0")
    if args.baseline is not None:
        refuse_options(
            args, ("data", "top", "pool"), "is for two systems; leave it out, or leave out --baseline"
        )
        table = notebooks.effects(
            args.runs or "runs",
            args.baseline,
            split=args.split,
            measure=args.measure,
            unit=args.unit,
            order=args.order,
            equivalence=args.equivalence,
            components=args.components,
        )
        print_table(table, form=args.format)
        if args.plot:
            _plot(table, args)
        return 0
    if args.measure != "f1" or args.order or args.equivalence is not None or args.components or args.plot:
        raise ConfigError(
            "--measure, --forced-f1, --order, --equivalence, --components and --plot need --baseline; a"
            " comparison of two systems shows every measure"
        )
    if args.pool:
        return _print_pooled(args)
    if len(args.runs) != 2:
        raise ConfigError(
            "name two runs, or two quoted globs of seeds (qa-arch compare A B), or a folder of runs with"
            " --baseline NAME"
        )
    (runs_a, notes_a), (runs_b, notes_b) = (
        compare.finished(find_runs([side]), args.split) for side in args.runs
    )
    a, b = two_systems(runs_a, runs_b)
    questions = open_scored(args.data, a.record, args.split) if args.data else None
    compared = compare.pair_table(a, b, split=args.split, questions=questions, unit=args.unit)
    top = 20 if args.top is None else args.top
    tables = [
        replace(compared, notes=[*compared.notes, *notes_a, *notes_b]),
        compare.settings_table(a, b),
        compare.changed_table(a, b, split=args.split, top=top, questions=questions),
    ]
    print_table(*(table for table in tables if table.rows), form=args.format)  # settings may be equal
    return 0


def _plot(table: Table, args: argparse.Namespace) -> None:
    """Draw the differences of a table against the baseline."""
    panels, title = {MEASURES[args.measure]: table}, f"Differences from {args.baseline}: {args.split}"
    caption = experiments.DIFFERENCES
    if args.order:
        caption = caption.replace("Holm's correction", "the tests in order")
    experiments.save_figure(lambda: experiments.draw_differences(panels, title, caption, {}), args.plot)
    print(f"{args.plot}: differences of {MEASURES[args.measure]}", file=sys.stderr)


def _print_pooled(args: argparse.Namespace) -> int:
    if len(args.runs) < 4 or len(args.runs) % 2:
        raise ConfigError(
            "--pool: name A and B of each of several experiments: qa-arch compare A B A B --pool"
        )
    refuse_options(args, ("data", "top"), "shows questions, which --pool does not; leave it out")
    named, notes = [], []
    for side in args.runs:
        runs, left_out = compare.finished(find_runs([side]), args.split)
        named.append(runs)
        notes += left_out
    pairs = [two_systems(a, b) for a, b in zip(named[::2], named[1::2], strict=True)]
    table = compare.pooled_table(pairs, split=args.split, unit=args.unit)
    print_table(replace(table, notes=[*table.notes, *notes]), form=args.format)
    return 0


def add_power_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch power runs/squad2 --baseline bert --seeds 5,10"
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUNS", help="run folders, or folders of runs (default: runs)")
    add("--baseline", required=True, metavar="NAME", help="system to compare the others with")
    add("--measure", choices=tuple(MEASURES), default="f1", help="measure to compare (default: f1)")
    add("--split", default=DEV, help="the scored set (default: dev)")
    add("--seeds", type=_counts, default=(), metavar="N,...", help="runs of each system (default: 3, 5, 10)")
    articles = "articles of the test set (default: as in the set, and twice as many)"
    add("--articles", type=_counts, default=(), metavar="N,...", help=articles)
    calibration = "articles that null thresholds are fitted on (default: as for the runs)"
    add("--calibration-articles", type=_count, metavar="N", help=calibration)
    add_options(parser, "--format", "--json")


def run_power(args: argparse.Namespace) -> int:
    """Print the power of the planned experiments."""
    systems, left_out = compare.comparable(find_runs(args.runs or ["runs"]), args.split)
    table = compare.power_table(
        samples_of(systems, args.split),
        find_system(systems, args.baseline).label,
        args.measure,
        runs=args.seeds or (3, 5, 10),
        units=args.articles,
        calibration=args.calibration_articles,
    )
    print_table(replace(table, notes=[*table.notes, *left_out]), form=args.format)
    return 0


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers >= 2 (one has no variance), such as 5,10")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


_STYLES = {"ok": "bold green", "running": "bold blue"}


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch show runs/squad2/bert-s13 --data dev-v2.0.json"
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run folder")
    split = "scored set whose errors are broken down (default: dev, or calibration before dev is scored)"
    add("--split", help=split)
    texts = "the scored questions, to break errors down by article and show where spans went wrong"
    add("--data", nargs="+", metavar="FILE", help=f"{texts}: {usage()}")
    add("--json", action="store_true", help="print everything as JSON")


def run_show(args: argparse.Namespace) -> int:
    """Print the run's settings, curves, scores, errors and provenance."""
    folder = Path(args.run_folder)
    record = read_scored(folder)
    if args.split is not None and args.split not in record.scores:
        known = ", ".join(record.scores) or "nothing"
        raise RunError(f"--split: {folder} was not scored on '{args.split}' (scored: {known})")
    split = args.split or record.shown_split
    questions = open_scored(args.data, record, split) if args.data else None
    run_folder = folder.parent if folder.name == RECORD else folder  # RUN may name the record
    result, note, measure = None, None, record.measure(split)
    if measure is not None and is_squad(measure.protocol):
        try:
            result = errors.mistakes(load_questions(run_folder, record, split), questions)
        except RunError as error:  # the run is shown without the outcomes of its questions
            note = str(error)
    title = f"{record.name} / {run_folder.resolve().name}"
    facts = {
        "settings": errors.run_settings(record),
        "run": errors.run_facts(record),
        "provenance": errors.provenance(record),
    }
    scores, curves = errors.scores_table(record), errors.epoch_curves(record.epochs)
    if args.json:
        outcomes = {} if result is None else result.figures()["outcomes"]
        page = {
            "title": title,
            "status": record.status,
            "error": record.error,
            "facts": {head: dict(pairs) for head, pairs in facts.items()},
            "scores": scores.as_dict()["rows"],
            "curves": curves,
            "best_epoch": record.best_epoch,
            "errors": {errors.OUTCOMES[outcome]: number for outcome, number in outcomes.items()} or None,
            "mistakes": None if result is None else result.as_dict(),
            "note": note,
        }
        print(plain_json(page))
        return 0
    run, settings, origin = (_facts_table(head, facts[head]) for head in ("run", "settings", "provenance"))
    error_tables = [] if result is None else result.tables(split)
    tables = [scores, run, settings, errors.curves_table(record, curves), *error_tables, origin]
    _print_title(title, record)
    print_table(*(table for table in tables if table.rows))
    if note:
        print(note)
    return 0


def _facts_table(heading: str, facts: Sequence[tuple[str, str]]) -> Table:
    rows = [{"name": name, "value": value} for name, value in facts]
    return Table("", [text("name", heading), text("value", "value")], rows)


def _print_title(title: str, record: RunRecord) -> None:
    from rich.text import Text

    console = terminal.console()
    style = _STYLES.get(record.status, "bold red")
    console.print(Text.assemble((title, "bold"), "   ", (record.status, style)), soft_wrap=True)
    if record.error:
        console.print(Text(record.error, style="red"), soft_wrap=True)


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch report runs/squad2 -o report.html --data dev-v2.0.json"
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUNS", help="run folders, folders of runs or globs (default: runs)")
    add("-o", "--out", type=page_file, default="report.html", metavar="F.html", help="default: report.html")
    add("--data", nargs="+", metavar="FILE", help=f"the scored questions, to show their texts: {usage()}")
    add("--types", metavar="FILE", help="question classes (qa-arch types) to break scores down by")
    add("--baseline", metavar="NAME", help="test every system against this one")
    add_options(parser, "--language", "--unit")
    forced = "show answerable F1 (forced answer) in the figures"
    add("--forced-f1", dest="measure", action="store_const", const="forced_f1", default="f1", help=forced)


def run_report(args: argparse.Namespace) -> int:
    """Write the page and print its path; unusable inputs are reported on stderr and on the page."""
    from qa_arch.results.report import write_report

    problems: list[str] = []
    runs = find_runs(args.runs or ["runs"], unreadable=problems)
    facts = [facts for _, record in runs for facts in record.data.values()]
    # A set whose faulty records a run has left out is opened as that run did.
    on_error: OnError = "skip" if any(split.skipped for split in facts) else "raise"
    if not args.data:
        refuse_options(args, ("language",), "is that of --data; recorded scores keep theirs")
    keep_inputs(args, args.types)
    known, language = {split.fingerprint for split in facts}, args.language or ENGLISH
    questions = open_to_score(args.data, on_error, known, language=language) if args.data else None
    report = write_report(
        runs,
        args.out,
        questions=questions,
        baseline=args.baseline,
        measure=args.measure,
        unit=args.unit,
        types=read_types(args.types) if args.types else None,
        problems=problems,
    )
    for problem in report.problems:
        print(f"not used: {problem}", file=sys.stderr)
    print(f"{report.path}: {counted(report.runs, 'run')}, {report.bytes / 1e6:.1f} MB")
    print(f"open it in a browser: {report.path.resolve().as_uri()}")
    return 0
