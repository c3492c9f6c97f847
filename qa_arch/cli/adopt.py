"""``qa-arch adopt``: turn another system's answers into a run, for tables, tests and reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from qa_arch.cli.runs import add_options, add_questions, open_questions, system_folder
from qa_arch.data.answer_files import FORMATS, read_answers
from qa_arch.errors import ConfigError
from qa_arch.records import ADOPTED, CALIBRATION, DEV
from qa_arch.system.garbage import gc_disabled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch adopt --predictions answers.json --data dev-v2.0.json --name gpt-x"
    add = parser.add_argument
    add("--predictions", required=True, metavar="P", help=f"answers: {FORMATS}")
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    add_questions(parser)
    add_options(parser, "--on-error", "--language")
    add("--name", required=True, metavar="X", help="name of the system in tables")
    seed = "seed, to distinguish runs of the same system (default: 0)"
    add("--seed", type=int, default=0, metavar="S", help=seed)
    add("--folder", metavar="RUN", help=f"run folder (default: runs/{ADOPTED}/NAME-sSEED)")
    missing = "treat questions missing from the file as an error (default), or as empty answers"
    add("--missing", choices=("error", "empty"), default="error", help=missing)
    add = parser.add_argument_group(
        "calibration",
        "fit null threshold and confidence on the system's answers to a calibration set, as for a model; both"
        " files need the best span and the null odds of every question (an empty text abstains at any"
        " threshold)",
    ).add_argument
    add("--calibration", nargs="+", metavar="SOURCE", help="calibration set, of other articles")
    add("--calibration-predictions", metavar="P", help="answers to the calibration set")
    add("--calibration-na-prob", metavar="N", help="like --na-prob, for these answers")


def run(args: argparse.Namespace) -> int:
    """Write the run folder, and print scores and counts."""
    file = Path(args.predictions)
    default_folder = system_folder(ADOPTED, args.name, args.seed)  # also checks the name
    folder = Path(args.folder or default_folder)
    questions = open_questions(args.data, args.on_error, DEV, "scoring", args.language)
    if questions.protocol == "1.1" and args.na_prob and not args.calibration:
        raise ConfigError("--na-prob: SQuAD 1.1 has no unanswerable questions; leave it out")
    if bool(args.calibration) != bool(args.calibration_predictions):
        raise ConfigError("--calibration and --calibration-predictions must be given together")
    if args.calibration_na_prob and not args.calibration:
        raise ConfigError("--calibration-na-prob needs --calibration")
    answers = read_answers(file, questions, na_prob=args.na_prob, empty=args.missing == "empty")
    calibration = None
    if args.calibration:
        fitted_on = open_questions(args.calibration, args.on_error, CALIBRATION, "scoring", args.language)
        path = Path(args.calibration_predictions)
        calibration = fitted_on, read_answers(path, fitted_on, na_prob=args.calibration_na_prob)
    with gc_disabled():
        from qa_arch.evaluation.adoption import adopt

    system = {"name": args.name, "seed": args.seed, "file": file.name}
    record = adopt(questions, answers, folder, **system, calibration=calibration)
    point = record.compared_point(DEV)
    assert point is not None
    counts = [f"{count:,} {key.replace('_', ' ')}" for key, count in record.facts(DEV).counts.items()]
    if args.calibration:
        empty = sum(not text for text in answers.texts.values())
        counts += [f"{empty:,} empty answers, which abstain at any threshold"] if empty else []
        counts.append(f"null threshold {record.null_threshold:.4g}, fitted on {len(fitted_on):,} questions")
    others = [f"{answers.others:,} answers to other questions left out"] if answers.others else []
    summary = "; ".join([f"{len(questions):,} questions", *counts, *others, answers.form])
    print(f"EM {point.exact:.2f} F1 {point.f1:.2f}: {folder} ({summary})")
    return 0
