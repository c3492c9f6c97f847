"""``qa-arch evaluate``: score any system's official prediction files with the official arithmetic.

With ``--run`` it scores a trained run instead: see ``evaluation.trained_runs``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from qa_arch.cli.evaluate_options import OF_FILES, add_run_arguments, first_given, refuse_options
from qa_arch.cli.runs import open_predictor
from qa_arch.config.files import write_json
from qa_arch.data.sources import open_passages, usage
from qa_arch.errors import ConfigError
from qa_arch.metrics.prediction_files import PredictionFile, read_nbest, read_null_scores, read_predictions
from qa_arch.metrics.scores import Scores
from qa_arch.metrics.squad import OFFICIAL_THRESHOLD, aggregate, extra_ids, missing_ids, score_questions
from qa_arch.results.record import read_record
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Protocol, QuestionSet

EXIT_MISSING = 3
"""Exit code where questions have no prediction."""

_NAMED = 20
"""How many extra ids are named: predictions for a whole set, scored on a part, have thousands."""

_NEARLY_ALL = 98.0
"""Percent of answers abstained from above which a system has probably not learned to answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--data",
        nargs="+",
        metavar="D",
        help=f"questions with gold answers: {usage()} (with --run: its dev set, or any set of its task)",
    )
    add("--predictions", metavar="P", help='JSON object: question id -> answer, "" = no answer')
    add("--na-prob", metavar="N", help="JSON object: question id -> no-answer probability or null odds (2.0)")
    add(
        "--null-threshold",
        type=float,
        metavar="T",
        help=f"a no-answer score above T makes the answer empty (official default: {OFFICIAL_THRESHOLD})",
    )
    add("--protocol", choices=("auto", "1.1", "2.0"), default="auto", help="default: what the data file says")
    add("--out", metavar="O", help="also write the scores to this file")
    add(
        "--text-metrics",
        action="store_true",
        help="add BLEU, ROUGE, METEOR and CIDEr of the answerable questions (needs the extra 'text')",
    )
    add(
        "--nbest",
        metavar="B",
        help="with --text-metrics: the predictions' nbest_predictions.json; adds their perplexity",
    )
    add("--strict", action="store_true", help="write no scores where a question has no prediction")
    add_run_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the scores as JSON on stdout and everything else on stderr.

    Exit code 3 where predictions are missing: with the official arithmetic for them, or, with
    ``--strict``, without any scores.
    """
    if args.run_folder:
        return _score_runs(args)
    refuse_options(args)
    if not args.data or not args.predictions:
        raise ConfigError("give --data and --predictions, or --run RUN to score a trained run")
    if args.nbest and not args.text_metrics:
        raise ConfigError("--nbest: is read for the perplexity among the text metrics; add --text-metrics")
    questions = open_passages(args.data if len(args.data) > 1 else args.data[0])
    protocol: Protocol = questions.protocol if args.protocol == "auto" else args.protocol
    _say(f"protocol: SQuAD {protocol} ({'from the data' if args.protocol == 'auto' else 'as asked'})")
    _check_options(args, protocol)
    predictions = read_predictions(args.predictions)
    null_scores = read_null_scores(args.na_prob) if args.na_prob else None
    missing = _report_ids(questions, predictions, null_scores)
    if missing and args.strict:
        _say("no scores are written (--strict)")
        return EXIT_MISSING
    threshold = OFFICIAL_THRESHOLD if args.null_threshold is None else args.null_threshold
    if null_scores and args.null_threshold is None:
        _warn_of_odds(null_scores)
    scores = aggregate(
        score_questions(questions, predictions.values, protocol),
        protocol,
        null_scores=null_scores.values if null_scores else None,
        threshold=threshold,
        missing=missing,
    )
    extra = {}
    if args.text_metrics:
        from qa_arch.metrics.generation import text_metrics

        odds = null_scores.values if null_scores else {}
        extra["text_metrics"] = text_metrics(
            questions,
            _answered(questions, predictions.values, odds, threshold, protocol),
            read_nbest(args.nbest) if args.nbest else None,
        )
    publish(scores, args.out, extra)
    return EXIT_MISSING if missing else 0


def _score_runs(args: argparse.Namespace) -> int:
    """Predict, score, write predictions and record into the run folder, print the scores as JSON."""
    if named := first_given(args, OF_FILES):
        raise ConfigError(
            f"{named} is for prediction files: a run scored with --run leaves its own (predictions.json) for"
            " --predictions; the null threshold of --run is --margin"
        )
    for folder in args.run_folder:
        read_record(folder)  # before torch is imported
    with gc_disabled():
        from qa_arch.cli.watch import watching
        from qa_arch.evaluation.trained_runs import Request, evaluate_runs

    request = Request(
        runs=args.run_folder,
        data=args.data,
        decode=args.decode,
        settings=_decoding(args.decode),
        record=args.record,
        null_threshold=args.margin,
        final=args.final,
        allow_overlap=args.allow_overlap,
        trust=args.trust,
    )
    points = evaluate_runs(
        request, lambda: open_predictor(args.run_folder, args), lambda: watching("predicting", "rows")
    )
    flat = {name: point.flat() for name, point in points.items()}
    if args.out:
        write_json(args.out, flat)
    print(json.dumps(flat, indent=2, ensure_ascii=False))
    return 0


def _decoding(name: str | None) -> dict[str, Any] | None:
    """The settings of ``conf/decode/NAME.yaml``; None for no name."""
    if name is None:
        return None
    from qa_arch.cli.compose import compose

    return compose([f"decode={name}"])["decode"]


def _answered(
    questions: QuestionSet,
    texts: Mapping[str, str],
    null_scores: Mapping[str, float],
    threshold: float,
    protocol: Protocol,
) -> dict[str, str]:
    """The texts as the protocol judges them: after the threshold, and in 1.1 "" for a missing one."""
    judged = {id_: "" if null_scores.get(id_, threshold) > threshold else text for id_, text in texts.items()}
    return {**dict.fromkeys(missing_ids(questions, texts), ""), **judged} if protocol == "1.1" else judged


def publish(scores: Scores, out: str | Path | None, extra: Mapping[str, Any] | None = None) -> None:
    """Official keys first, then ours, then ``extra``: JSON on stdout and, written atomically, in ``out``."""
    values = {**scores.flat(), **(extra or {})}
    answering = scores.answering
    silent = 100.0 * (answering.total - answering.answered) / answering.total
    if silent > _NEARLY_ALL and scores.has_answer:
        _say(f'warning: {silent:.1f}% of the answers are "no answer"; has the system learned to answer?')
    if out:
        write_json(out, values)
    print(json.dumps(values, indent=2))


def _check_options(args: argparse.Namespace, protocol: Protocol) -> None:
    if protocol == "1.1" and (args.na_prob or args.null_threshold is not None):
        raise ConfigError("protocol 1.1 has no no-answer: leave out --na-prob and --null-threshold")
    if args.null_threshold is not None and not args.na_prob:
        raise ConfigError("--null-threshold decides nothing without --na-prob; give both")
    if args.null_threshold is not None and args.null_threshold != args.null_threshold:
        raise ConfigError("--null-threshold is not a number")


def _report_ids(
    questions: QuestionSet, predictions: PredictionFile, null_scores: PredictionFile | None
) -> int:
    """Name missing, extra and duplicate ids on stderr; the number of missing predictions."""
    for file in (predictions, null_scores):
        if file:
            _name(f"{file.path}: duplicate ids, the last value counts", file.duplicates)
            _name(
                f"{file.path}: extra ids, of no question, ignored",
                extra_ids(questions, file.values),
                limit=_NAMED,
            )
    missing = missing_ids(questions, predictions.values)
    _name(f"{predictions.path}: questions without a prediction (of {len(questions)})", missing)
    return len(missing)


def _warn_of_odds(null_scores: PredictionFile) -> None:
    if any(not 0 <= value <= 1 for value in null_scores.values.values()):
        _say(
            f"warning: {null_scores.path}: values outside 0..1 look like odds, and the official threshold "
            f"{OFFICIAL_THRESHOLD} is applied to them; give --null-threshold (0 is neutral for odds)"
        )


def _name(what: str, ids: Collection[str], limit: int | None = None) -> None:
    if ids:
        shown = list(ids)[:limit]
        rest = f" and {len(ids) - len(shown)} more" if len(shown) < len(ids) else ""
        _say(f"{what}: {len(ids)}: {' '.join(shown)}{rest}")


def _say(line: str) -> None:
    print(line, file=sys.stderr)
