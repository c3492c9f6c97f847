"""``qa-arch predict``: answer every question of a file, as the official files or as JSON lines."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.cli import runs
from qa_arch.cli.runs import DEVICE, RUN_HELP, add_options
from qa_arch.config.target import require_packages
from qa_arch.data.sources import open_listed
from qa_arch.errors import ConfigError, RunError
from qa_arch.files import hold
from qa_arch.qa.answers import Query
from qa_arch.serving.lines import AnsweredPart, Answering, Part, answer_file, answer_part
from qa_arch.serving.ray import actors
from qa_arch.terminal import counted, watching

log = logging.getLogger(__name__)
SETTINGS = ("precision", "batch_size", "max_question")
"""Options that change answers in JSON lines, besides those of a query."""
FILES = (".json", ".jsonl", ".ndjson", ".gz", ".txt", ".csv", ".tsv")
"""Endings of files, in lower case, that name no folder."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch predict runs/squad2/bert-s13 --data questions.jsonl --out answers.jsonl"
    add = parser.add_argument
    add("run_folder", metavar="RUN", nargs="+", help=f"{RUN_HELP}; several runs are an ensemble")
    runs.add_questions(parser)
    out = (
        "folder for predictions, n-best and null odds; or FILE.jsonl, or - for standard output, with one"
        " answer per line, if --data is a file of JSON lines or - (docs/asking.md)"
    )
    add("--out", required=True, metavar="PATH", help=out)
    add("--batch-size", type=int, metavar="N", help="windows in one forward pass (default: the run's)")
    add_options(parser, "--on-error", "--null-threshold", "--max-question", *DEVICE)
    group = parser.add_argument_group("JSON lines", "options for --out FILE.jsonl")
    runs.add_answer_options(group)
    add = group.add_argument
    if_exists = (
        "what to do if FILE.jsonl or a part of it exists (default: resume, which continues an unfinished file"
        " and leaves a finished one unchanged), or predictions in the folder (default: fail)"
    )
    add("--if-exists", choices=("resume", "replace", "fail"), help=if_exists)
    add("--on", choices=("ray",), help="answer on the Ray cluster at RAY_ADDRESS, else on all local devices")
    actors = "processes on Ray (default: one per GPU, or one per CPU without GPUs)"
    add("--actors", type=int, metavar="N", help=actors)


def run(args: argparse.Namespace) -> int:
    """Write the official files into the folder ``--out``, or answers as JSON lines into the file."""
    if args.batch_size is not None and args.batch_size < 1:
        raise ConfigError(f"--batch-size: {args.batch_size} is out of range, it must be >= 1")
    options = {
        "top_k": 1 if args.top_k is None else args.top_k,
        "max_answer_tokens": args.max_answer_tokens,
        "null_threshold": args.null_threshold,
    }
    Query("question", ("text",), **options)  # rejects options out of range before anything is read
    if args.on == "ray":
        require_packages("ray", "--on ray")
    runs.require_runs(args.run_folder)
    if args.out == "-" or args.out.endswith((".jsonl", ".ndjson")):
        return _json_lines(args, options)
    if Path(args.out).suffix.lower() in FILES:
        raise ConfigError(f"--out: {args.out}: give FILE.jsonl, or a folder for the official files")
    if args.if_exists == "resume":
        raise ConfigError("--if-exists resume is for JSON lines; a folder takes replace or fail")
    json_options = ("top_k", "max_answer_tokens", "on", "actors")
    runs.refuse_options(args, json_options, "is for JSON lines: give --out FILE.jsonl")
    return _official_files(args)


def _official_files(args: argparse.Namespace) -> int:
    """Write predictions.json, nbest_predictions.json and null_odds.json."""
    from qa_arch.metrics.squad import abstention_warning
    from qa_arch.qa.files import PREDICTIONS, threshold_on, write_parts
    from qa_arch.records import RECORD

    if (Path(args.out) / RECORD).exists():
        raise ConfigError(f"--out {args.out}: is a run, whose own predictions stay; name another folder")
    if (Path(args.out) / PREDICTIONS).exists() and args.if_exists != "replace":
        raise RunError(
            f"{args.out}: holds predictions already; --if-exists replace replaces them, or name another --out"
        )
    questions = open_listed(args.data, on_error=args.on_error, use="answering")
    predictor = runs.open_reader(args.run_folder, args)
    threshold = args.null_threshold
    if threshold is None:
        threshold = threshold_on(questions, predictor.null_threshold)
    with watching("predicting", "questions") as watch:
        # Lazy: the model runs while the files are written, below.
        parts = predictor.rank_parts(questions, batch_size=args.batch_size, watch=watch)
        with hold(Path(args.out), "folder"):
            abstained = write_parts(args.out, parts, threshold)
    if fact := abstention_warning([example.answerable for example in questions.examples], abstained):
        log.warning("%s: %s; does the null threshold suit these questions?", questions.name, fact)
    written = Path(args.out) / PREDICTIONS
    print(f"{written}: {counted(len(questions), 'question')} answered at null threshold {threshold:g}")
    return 0


def _json_lines(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Answer a file or stream of JSON lines, here or on a Ray cluster."""
    if len(args.data) > 1:
        raise ConfigError("--data: give one file of JSON lines; join several: cat A B | ... --data -")
    if args.actors is not None and args.on != "ray":
        raise ConfigError("--actors is for --on ray")
    load = partial(load_answering, args, options)
    with watching("predicting", "questions") as watch:
        summary = answer_file(
            args.data[0],
            args.out,
            partial(actors, load, args.actors) if args.on == "ray" else partial(_in_this_process, load),
            models=args.run_folder,
            settings={**options, **{name: getattr(args, name) for name in SETTINGS}},
            on_error=args.on_error,
            if_exists=args.if_exists or "resume",
            watch=watch,
        )
    if summary is None:
        print(f"{args.out}: all questions are already answered; --if-exists replace starts again")
        return 0
    parts = [f"{args.out}: {counted(summary.lines, 'line')}"]
    parts += [f"{summary.before:,} of them from an earlier call"] if summary.before else []
    parts += [f'{summary.problems:,} left out (see their "error")'] if summary.problems else []
    parts += [f'{counted(summary.cut, "question")} cut (see their "question_cut")'] if summary.cut else []
    print(", ".join(parts), file=sys.stderr if args.out == "-" else sys.stdout)  # not among the answers
    return 0


def load_answering(args: argparse.Namespace, options: dict[str, Any]) -> Callable[[Part], AnsweredPart]:
    """Load the model in this process and return a function that answers a part with it."""
    reader = runs.open_reader(args.run_folder, args)
    if args.batch_size is not None:
        config = reader.config
        trainer = replace(config.trainer, eval_batch_size=args.batch_size)
        reader.config = replace(config, trainer=trainer)
    return partial(answer_part, answer_queries=reader.answer, file=args.data[0], options=options)


@contextmanager
def _in_this_process(load: Callable[[], Callable[[Part], AnsweredPart]]) -> Iterator[Answering]:
    answering = load()
    yield lambda parts: map(answering, parts)
