"""Scoring of published predictions, in one process and as whole processes."""

from __future__ import annotations

import json
import sys

from benchmarks import inputs, official
from benchmarks.processes import QA_ARCH, output_of
from benchmarks.targets import DEV_FILE, PUBLISHED_FILE, Measure, Measurement, cost, real, speedup
from benchmarks.timing import alternate
from qa_arch.data.squad import write
from qa_arch.metrics.squad import score


def in_process(quick: bool) -> Measurement:
    """Data and predictions in memory; the scores must be bit-equal."""
    questions, predictions = inputs.questions(quick), inputs.published_predictions(quick)
    articles = write(questions)["data"]
    if score(questions, predictions).official != official.evaluate(articles, predictions):
        raise RuntimeError("the scores differ from the peer's")
    pairs = alternate(
        lambda: score(questions, predictions).official, lambda: official.evaluate(articles, predictions), 9
    )
    return speedup(pairs, f"{len(questions)} questions")


def whole_process(quick: bool) -> Measurement:
    """From files to JSON on standard output, including interpreter and imports."""
    data, answers = str(real(DEV_FILE)), str(real(PUBLISHED_FILE))
    ours = [QA_ARCH, "evaluate", "--data", data, "--predictions", answers]
    theirs = [sys.executable, official.__file__, data, answers]
    own_scores, peer_scores = _scores(ours), _scores(theirs)
    if {key: own_scores[key] for key in peer_scores} != peer_scores:
        raise RuntimeError("the scores differ from the peer's")
    pairs = alternate(lambda: _scores(ours), lambda: _scores(theirs), 3 if quick else 7, warm=False)
    return cost(pairs, f"{peer_scores['total']:,} questions")


def _scores(command: list[str]) -> dict[str, float]:
    return json.loads(output_of(command))


ROWS: dict[str, Measure] = {"score-in-process": in_process, "evaluate-process": whole_process}
