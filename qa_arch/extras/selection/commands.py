"""``qa-arch selection evaluate`` scores a run on another set, ``types`` classifies the questions of a file,
``paraphrase`` compares pairs of them."""

from __future__ import annotations

import argparse
from collections import Counter

from qa_arch.cli.evaluate import add_evaluate
from qa_arch.cli.runs import DEVICE, add_options, add_questions, keep_inputs, open_predictor
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.sets import read_pairs
from qa_arch.files import write_atomic, write_json
from qa_arch.records import read_trained
from qa_arch.results.tables import Column, Table, number, plain, print_table, text, two_decimals
from qa_arch.terminal import counted, watching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="selection_command", metavar="COMMAND", required=True)
    data = "questions with candidates, classes or passages, as the run was trained on"
    add_evaluate(commands, "a run of model=qa_lstm/... or model=question_types", data)


def run(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    return args.action(args)


def add_types_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run of model=question_types")
    add_questions(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="F",
        help="JSON file to write: question id -> class (for report --types)",
    )
    add_options(parser, *DEVICE)


def run_types(args: argparse.Namespace) -> int:
    """Write the class of every question and print the counts per main class."""
    if read_trained(args.run_folder).setting("model", "task") != "classification":
        raise RunError(f"{args.run_folder}: does not classify questions; name a run of model=question_types")
    keep_inputs(args)
    questions = open_passages(args.data, use="answering")
    predictor = open_predictor([args.run_folder], args)
    with watching("classifying", "questions") as watch:
        labels = predictor.classify([example.question for example in questions.examples], watch=watch)
    ids = (example.id for example in questions.examples)
    path = write_json(args.out, dict(zip(ids, labels, strict=True)), indent=None)
    counts = Counter(label.partition(":")[0] for label in labels)
    summary = ", ".join(f"{main} {count:,}" for main, count in counts.most_common())
    print(f"{path}: {counted(len(questions), 'question')}: {summary}")
    return 0


def add_paraphrase_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run of model=qa_lstm/...")
    add(
        "--pairs",
        required=True,
        metavar="F.tsv",
        help="two tab-separated questions per line, and optionally a third field: 1 (paraphrase) or 0",
    )
    add("--out", metavar="F.tsv", help="write cosine and questions of each pair here (default: print them)")
    add(
        "--threshold",
        type=float,
        metavar="T",
        help="minimum cosine of a paraphrase, in the scores of labelled pairs (default: 0.5)",
    )
    add_options(parser, *DEVICE, "--format", "--json")


def run_paraphrase(args: argparse.Namespace) -> int:
    """Print or write the cosine of each pair; with labels, print the scores."""
    threshold = 0.5 if args.threshold is None else args.threshold
    if not -1 <= threshold <= 1:
        raise ConfigError(f"--threshold {args.threshold:g}: a cosine is from -1 to 1")
    if read_trained(args.run_folder).setting("model", "task") != "selection":
        raise RunError(f"{args.run_folder}: does not compare questions; name a run of model=qa_lstm/...")
    keep_inputs(args, args.pairs)
    pairs = read_pairs(args.pairs)
    labels = [pair.paraphrase for pair in pairs if pair.paraphrase is not None]
    if args.threshold is not None and not labels:
        raise ConfigError(f"--threshold: {args.pairs} has no labels to score; leave it out, or add 0 or 1")
    if args.format != "text" and args.out and not labels:
        raise ConfigError(f"--format: no table is printed, as {args.pairs} has no labels; leave it out")
    predictor = open_predictor([args.run_folder], args)
    with watching("comparing", "questions") as watch:
        cosines = predictor.similarities([(p.first, p.second) for p in pairs], watch=watch)
    rows = [{"cosine": cosine, **pair._asdict()} for cosine, pair in zip(cosines, pairs, strict=True)]
    tables = []
    if args.out:
        lines = (f"{row['cosine']:.6f}\t{row['first']}\t{row['second']}\n" for row in rows)
        write_atomic(args.out, "".join(lines))
    else:
        cosine = number("cosine", "cosine", "{:.3f}".format)
        tables.append(Table("Pairs", [cosine, text("first", "first"), text("second", "second")], rows))
    if labels:
        from qa_arch.extras.selection.recipe import paraphrase_scores

        scores = paraphrase_scores(cosines, labels, threshold)
        formats = {"threshold": two_decimals}
        columns = [Column(key, key.replace("_", " "), format=formats.get(key, plain)) for key in scores]
        note = "in percent; oracle accuracy: at the threshold that is best for these labels, an upper bound"
        tables.append(Table("Scores", columns, [scores], [note]))
    if not tables:
        print(f"{args.out}: {counted(len(pairs), 'pair')}")
        return 0
    print_table(*tables, form=args.format)
    return 0
