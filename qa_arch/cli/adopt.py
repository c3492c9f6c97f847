"""``qa-arch adopt``: make a run of the answers of any other system, so that tables and tests can hold it."""

from __future__ import annotations

import argparse
from pathlib import Path

from qa_arch.cli.runs import add_on_error, add_questions, system_folder
from qa_arch.data.answer_files import FORMATS, read_answers
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError
from qa_arch.records import ADOPTED, CALIBRATION, DEV
from qa_arch.system.garbage import gc_disabled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch adopt --predictions answers.json --data dev-v2.0.json --name gpt-x"
    add = parser.add_argument
    add("--predictions", required=True, metavar="P", help=f"the answers: {FORMATS}")
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    add_questions(parser)
    add_on_error(parser)
    add("--name", required=True, metavar="X", help="the name of the system in tables")
    add("--seed", type=int, default=0, metavar="S", help="which of several runs of that system (default: 0)")
    add("--folder", metavar="RUN", help=f"the run folder (default: runs/{ADOPTED}/NAME-sSEED)")
    missing = "questions missing from the file: an error (default), or an empty answer"
    add("--missing", choices=("error", "empty"), default="error", help=missing)
    group = parser.add_argument_group(
        "calibration",
        "fit null threshold and confidence on the system's answers to another set, as those of a model are"
        " fitted; both files need the best span and the null odds of every question, and an empty text means"
        ' "no answer" at any threshold',
    )
    group.add_argument("--calibration", nargs="+", metavar="SOURCE", help="the set, with other articles")
    group.add_argument("--calibration-predictions", metavar="P", help="the answers to it")
    group.add_argument("--calibration-na-prob", metavar="N", help="as --na-prob, for these answers")


def run(args: argparse.Namespace) -> int:
    """Write the run folder, and print scores and counts."""
    file = Path(args.predictions)
    default = system_folder(ADOPTED, args.name, args.seed)
    folder = Path(args.folder or default)
    questions = open_passages(args.data, name=DEV, on_error=args.on_error)
    if questions.protocol == "1.1" and args.na_prob and not args.calibration:
        raise ConfigError("--na-prob: SQuAD 1.1 has no unanswerable questions; leave it out")
    if bool(args.calibration) != bool(args.calibration_predictions):
        raise ConfigError("--calibration: give the set and --calibration-predictions, the answers to it")
    if args.calibration_na_prob and not args.calibration:
        raise ConfigError("--calibration-na-prob: is for --calibration, which names the set")
    answers = read_answers(file, questions, na_prob=args.na_prob, empty=args.missing == "empty")
    calibration = None
    if args.calibration:
        fitted_on = open_passages(args.calibration, name=CALIBRATION, on_error=args.on_error)
        own = Path(args.calibration_predictions)
        calibration = fitted_on, read_answers(own, fitted_on, na_prob=args.calibration_na_prob)
    with gc_disabled():
        from qa_arch.evaluation.adoption import adopt

    about = {"name": args.name, "seed": args.seed, "file": file.name}
    record = adopt(questions, answers, folder, **about, calibration=calibration)
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
