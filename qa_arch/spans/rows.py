"""Scores of answers: operating points and the rows of ``questions.parquet``. No torch here.

``answers`` are one per question, in the order of the set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.confidence import auroc
from qa_arch.metrics.squad import METRIC_VERSION, aggregate, apply_threshold, score_questions
from qa_arch.metrics.threshold import at_thresholds, best_texts
from qa_arch.records import NEVER_NULL, Point
from qa_arch.types.text import Prediction, QuestionSet, question_word

ALWAYS_ANSWER = math.inf
"""Null threshold at which "no answer" is never predicted."""


def threshold_on(questions: QuestionSet, fitted: float) -> float:
    """The null threshold ``fitted``, but on SQuAD 1.1 a model always answers."""
    return ALWAYS_ANSWER if questions.protocol == "1.1" else fitted


def question_rows(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float
) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: scores at ``threshold``, offsets, null odds, question word; no text.

    ``start``, ``end``, ``span_exact``, ``span_f1`` and ``probability`` describe the best span, so that the
    record alone suffices to score other thresholds and to check calibration. Without a span, start and end
    are -1 and null_odds is +inf. ``article`` numbers the articles of the questions.
    """
    spans = score_questions(questions, best_texts(answers))
    # As in the points: scored as a text, "no answer" would match a gold answer of articles and punctuation.
    scored = apply_threshold(spans, {answer.id: answer.null_odds for answer in answers}, threshold)
    return {
        "id": [answer.id for answer in answers],
        "start": [answer.best.start if answer.best else -1 for answer in answers],
        "end": [answer.best.end if answer.best else -1 for answer in answers],
        "null_odds": [answer.null_odds for answer in answers],
        "windows": [answer.windows for answer in answers],
        "article": questions.article_numbers,
        "kind": [s.kind for s in scored],
        "word": [question_word(example.question) for example in questions.examples],
        **{key: [getattr(s, key) for s in scored] for key in ("answerable", "abstained", "exact", "f1")},
        "span_exact": [s.exact for s in spans],
        "span_f1": [s.f1 for s in spans],
        "probability": [round(answer.best.probability, 4) if answer.best else 0.0 for answer in answers],
    }


def answerable_auroc(questions: QuestionSet, answers: Sequence[Prediction]) -> float | None:
    """Area under the ROC curve of "answerable" by null odds, percent; None unless both classes occur."""
    odds, answerable = odds_and_truth(questions, answers)
    area = auroc(-odds, answerable)
    return None if area is None else 100 * area


def odds_and_truth(
    questions: QuestionSet, answers: Sequence[Prediction]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """(N,) null odds of the answers, and (N,) whether their questions are answerable."""
    odds = np.array([answer.null_odds for answer in answers], dtype=np.float64)
    return odds, np.array([example.answerable for example in questions.examples], dtype=np.bool_)


def operating_points(
    questions: QuestionSet, answers: Sequence[Prediction], threshold: float
) -> dict[str, Point]:
    """Operating point -> scores, with threshold, protocol and metric version.

    ``margin_0``, ``calibrated`` (at ``threshold``) and ``oracle`` (fitted on the scored set: a bound)
    for SQuAD 2.0, and ``never_null`` for both protocols.
    """
    if questions.protocol == "2.0":
        points = at_thresholds(questions, answers, threshold)
    else:
        spans = score_questions(questions, best_texts(answers))
        points = {NEVER_NULL: aggregate(spans, questions.protocol)}
    return {
        name: Point(
            threshold=scores.threshold if math.isfinite(scores.threshold) and name != NEVER_NULL else None,
            protocol=scores.protocol,
            metric_version=METRIC_VERSION,
            metrics=scores.flat(),
        )
        for name, scores in points.items()
    }
