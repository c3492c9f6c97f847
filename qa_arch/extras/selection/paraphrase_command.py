"""``qa-arch paraphrase``: cosine similarity of the questions of each pair, by a trained QA-LSTM."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from qa_arch.cli.runs import add_device_options, open_predictor, require_runs
from qa_arch.config.files import write_atomic
from qa_arch.config.schema import reads_corpus
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.scores import paraphrase_scores
from qa_arch.extras.selection.sets import read_pairs
from qa_arch.system.garbage import gc_disabled

if TYPE_CHECKING:
    from qa_arch.extras.selection.predictor import SelectionPredictor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run_folder", metavar="RUN", help="a run of task selection (model=qa_lstm/...)")
    add(
        "--pairs",
        required=True,
        metavar="F.tsv",
        help="one pair per line: first question, tab, second question, and if known tab and 1 or 0",
    )
    add("--out", metavar="F.tsv", help="write the cosine of each pair here (default: print them)")
    add(
        "--threshold",
        type=float,
        default=0.5,
        metavar="T",
        help="minimal cosine of a paraphrase (default: 0.5)",
    )
    add_device_options(parser)


def run(args: argparse.Namespace) -> int:
    """The cosine and the two questions of each pair, a line each; with labels then the scores as JSON."""
    if not -1 <= args.threshold <= 1:
        raise ConfigError(f"--threshold: {args.threshold:g} is no cosine, it must be from -1 to 1")
    pairs = read_pairs(args.pairs)
    predictor = open_selection(args.run_folder, args)
    similarities = predictor.similarities([(pair.first, pair.second) for pair in pairs])
    lines = [f"{value:.6f}\t{p.first}\t{p.second}\n" for value, p in zip(similarities, pairs, strict=True)]
    if args.out:
        write_atomic(args.out, "".join(lines))
    else:
        print("".join(lines), end="")
    labels = [pair.paraphrase for pair in pairs if pair.paraphrase is not None]
    if labels:
        print(json.dumps(paraphrase_scores(similarities, labels, args.threshold).flat(), indent=2))
    return 0


def open_selection(folder: str, args: argparse.Namespace) -> SelectionPredictor:
    """``open_predictor`` for commands on selection; RunError for a run of another task."""
    require_runs([folder])
    with gc_disabled():
        from qa_arch.extras.selection.predictor import SelectionPredictor

    predictor = open_predictor([folder], args)
    if not isinstance(predictor, SelectionPredictor):
        does = "was pre-trained" if reads_corpus(predictor.config.model) else "answers with spans"
        raise RunError(f"{folder}: this run {does}; name a run of task selection")
    return predictor
