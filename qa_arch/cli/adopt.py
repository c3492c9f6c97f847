"""``qa-arch adopt``: make a run of the answers of any other system, so that tables and tests can hold it."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from qa_arch.cli.runs import add_questions
from qa_arch.data.answer_files import FORMATS, read_answers
from qa_arch.data.sources import open_passages
from qa_arch.errors import ConfigError
from qa_arch.records import ADOPTED, DEV
from qa_arch.system.garbage import gc_disabled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch adopt --predictions answers.json --data dev-v2.0.json --name gpt-x"
    add = parser.add_argument
    add("--predictions", required=True, metavar="P", help=f"the answers: {FORMATS}")
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    add_questions(parser)
    add("--name", required=True, metavar="X", help="the name of the system in tables")
    add("--seed", type=int, default=0, metavar="S", help="which of several runs of that system (default: 0)")
    add("--folder", metavar="RUN", help=f"the run folder (default: runs/{ADOPTED}/NAME-sSEED)")
    missing = "questions missing from the file: an error (default), or an empty answer"
    add("--missing", choices=("error", "empty"), default="error", help=missing)


def run(args: argparse.Namespace) -> int:
    """Write the run folder, and print scores and counts."""
    file, name = Path(args.predictions), re.sub(r"[^\w.+-]+", "_", args.name).strip("._")
    if not name:
        raise ConfigError("--name: needs a letter or a digit, as it names the system and its folder")
    folder = Path(args.folder or f"runs/{ADOPTED}/{name}-s{args.seed}")
    questions = open_passages(args.data, name=DEV)
    if questions.protocol == "1.1" and args.na_prob:
        raise ConfigError("--na-prob: SQuAD 1.1 has no unanswerable questions; leave it out")
    answers = read_answers(file, questions, na_prob=args.na_prob, empty=args.missing == "empty")
    with gc_disabled():
        from qa_arch.evaluation.adoption import adopt

    record = adopt(questions, answers, folder, name=args.name, seed=args.seed, file=file.name)
    point = record.compared_point(DEV)
    assert point is not None
    counts = [f"{count:,} {key.replace('_', ' ')}" for key, count in record.facts(DEV).counts.items()]
    others = [f"{answers.others:,} answers to other questions left out"] if answers.others else []
    about = "; ".join([f"{len(questions):,} questions", *counts, *others, answers.form])
    print(f"EM {point.exact:.2f} F1 {point.f1:.2f}: {folder} ({about})")
    return 0
