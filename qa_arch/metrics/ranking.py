"""Threshold search and average precision of the SQuAD 2.0 evaluation, over questions by null score.

All functions take parallel sequences over the questions, sorted by ``rank``: most likely answerable
first. Ties keep the order of the probability file, as the official script does; its best
threshold depends on that order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan
from operator import itemgetter


def rank(probabilities: Mapping[str, float], ids: Iterable[str]) -> list[tuple[str, float]]:
    """(id, probability) of those ``ids`` that have a probability, lowest first.

    NaN becomes minus infinity, so that it lies above no threshold.
    """
    wanted_ids = set(ids)
    pairs = [(id_, -inf if isnan(p) else p) for id_, p in probabilities.items() if id_ in wanted_ids]
    return sorted(pairs, key=itemgetter(1))


def best_threshold(
    values: Sequence[float],
    answerable: Sequence[bool],
    abstained: Sequence[bool],
    probabilities: Sequence[float],
) -> tuple[float, float]:
    """Highest mean score (percent) over all thresholds, and its threshold.

    Starts with abstaining everywhere and answers the questions one after another; the best cut may lie
    within a group of equal probabilities, which no threshold can realise: the official figure is an oracle.
    """
    score: float = len(answerable) - sum(answerable)
    best, threshold = score, 0.0
    for value, has_answer, no_answer, probability in zip(
        values, answerable, abstained, probabilities, strict=True
    ):
        if has_answer:
            score += value
        elif not no_answer:
            score -= 1
        if score > best:
            best, threshold = score, probability
    return 100.0 * best / len(values), threshold


def average_precision(
    values: Sequence[float], answerable: Sequence[bool], probabilities: Sequence[float]
) -> float:
    """Area under the precision-recall curve in percent, over thresholds between distinct values.

    A true positive counts as much as its score; at least one question must be answerable.
    """
    positives = float(sum(answerable))
    last = len(values) - 1
    true_positive = area = recall_before = 0.0
    for i, value in enumerate(values):
        if answerable[i]:
            true_positive += value
        if i == last or probabilities[i] != probabilities[i + 1]:
            recall = true_positive / positives
            area += true_positive / (i + 1) * (recall - recall_before)
            recall_before = recall
    return 100.0 * area
