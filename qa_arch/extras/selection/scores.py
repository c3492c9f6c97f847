"""Metrics of ranked candidates, and of question pairs by similarity."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isnan
from statistics import fmean

import numpy as np

from qa_arch.metrics.confidence import auroc
from qa_arch.records import RANKED, Point
from qa_arch.types.text import SelectionSet

METRIC_VERSION = "selection-1"
Scored = Mapping[int, Sequence[float]]
"""Row of the question -> scores of its candidates, in order."""


def rank_of_right(scores: Sequence[float], right: Collection[int]) -> int | None:
    """Rank (from 1) of the best right candidate, or None if no candidate is right.

    ``right`` holds indices into ``scores``. Wrong candidates with an equal or NaN score rank before it, so a
    constant score gains nothing. A right candidate with a NaN score ranks last.
    """
    if not right:
        return None
    best = max(float("-inf") if isnan(scores[i]) else scores[i] for i in right)
    wrong = (score for i, score in enumerate(scores) if i not in right)
    return 1 + sum(isnan(score) or score >= best for score in wrong)


def selection_scores(ranks: Sequence[int | None]) -> dict[str, float | int]:
    """Means over at least one question, in percent, from the ranks of ``rank_of_right``.

    ``accuracy`` is the share of questions whose top candidate is right, ``mrr`` the mean reciprocal rank of
    the best right candidate, 0 if none is right.
    """
    return {
        "accuracy": 100 * fmean(rank == 1 for rank in ranks),
        "mrr": 100 * fmean(1 / rank if rank else 0.0 for rank in ranks),
        "questions": len(ranks),
    }


def ranks(questions: SelectionSet, scored: Scored, *, main: bool = False) -> list[int | None]:
    """Rank of the best right candidate of each question, in order; see ``rank_of_right``.

    With ``main``, candidates are sub classes and all those of a right main class are right.
    """
    result = []
    for row, question in enumerate(questions.questions):
        right = set(question.right)
        if main:
            mains = {questions.main[answer] for answer in right}
            right = {answer for answer in question.candidates if questions.main[answer] in mains}
        indices = {index for index, answer in enumerate(question.candidates) if answer in right}
        result.append(rank_of_right(scored[row], indices))
    return result


def score_points(questions: SelectionSet, scored: Scored) -> dict[str, Point]:
    """Top-1 accuracy and MRR for the record; for classes also the accuracy over main classes."""
    scores = selection_scores(ranks(questions, scored))
    if questions.main:
        scores["main_accuracy"] = selection_scores(ranks(questions, scored, main=True))["accuracy"]
    return {RANKED: Point(protocol=questions.protocol, metric_version=METRIC_VERSION, metrics=scores)}


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> dict[str, float | int | None]:
    """Scores in percent of N > 0 pairs; ``labels`` are True for paraphrases.

    ``accuracy`` predicts a paraphrase if the similarity is at least ``threshold``. ``oracle_accuracy`` uses
    the best threshold for these labels: an upper bound, not a result. ``auroc`` is None unless both labels
    occur.
    """
    scores, positive = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    area = auroc(scores, positive)
    _, level = np.unique(scores, return_inverse=True)
    negatives, positives = np.bincount(level, ~positive), np.bincount(level, positive)
    # Per threshold, at each distinct similarity or above all: negatives below it plus positives from it on.
    correct = np.r_[0, np.cumsum(negatives)] + np.r_[np.cumsum(positives[::-1])[::-1], 0]
    return {
        "pairs": len(scores),
        "paraphrases": int(positive.sum()),
        "threshold": threshold,
        "accuracy": 100 * float(((scores >= threshold) == positive).mean()),
        "oracle_accuracy": 100 * float(correct.max()) / len(scores),
        "auroc": None if area is None else 100 * area,
    }
