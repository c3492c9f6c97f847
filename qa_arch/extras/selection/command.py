"""``qa-arch types``: the class of every question of a file, by a trained classifier of questions."""

from __future__ import annotations

import argparse
from collections import Counter

from qa_arch.cli.runs import add_device_options, add_questions, open_predictor, require_runs
from qa_arch.config.files import write_json
from qa_arch.data.sources import open_passages
from qa_arch.errors import RunError
from qa_arch.system.garbage import gc_disabled


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN", help="a run of model=question_types")
    add_questions(parser)
    parser.add_argument(
        "--out",
        required=True,
        metavar="F",
        help="JSON: question id -> class; for report --types",
    )
    add_device_options(parser)


def run(args: argparse.Namespace) -> int:
    """Write the class of every question, print the number of questions per main class."""
    require_runs([args.run_folder])
    questions = open_passages(args.data)
    with gc_disabled():
        from qa_arch.cli.watch import watching
        from qa_arch.extras.selection.predictor import SelectionPredictor

    predictor = open_predictor([args.run_folder], args)
    if not isinstance(predictor, SelectionPredictor):
        raise RunError(f"{args.run_folder}: does not classify questions; name a run of model=question_types")
    with watching("classifying", "questions") as watch:
        labels = predictor.classify([example.question for example in questions.examples], watch=watch)
    ids = (example.id for example in questions.examples)
    path = write_json(args.out, dict(zip(ids, labels, strict=True)), indent=None)
    counts = Counter(label.partition(":")[0] for label in labels)
    listed = ", ".join(f"{main} {count:,}" for main, count in counts.most_common())
    print(f"{path}: {len(questions):,} questions: {listed}")
    return 0
