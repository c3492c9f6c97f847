"""The null threshold: by how much the null score must exceed the best span for "no answer".

Scores are reported at three operating points, which are not comparable with each other: ``margin_0``
(nothing fitted), ``calibrated`` (fitted on a calibration split that shares no article with the scored set)
and ``oracle`` (fitted on the scored set itself: an upper bound, not a result).

A fit counts the unanswerable questions as the share that they have in the split, or as a stated ``prior``:
the best threshold depends on that share, and the split's is rarely that of the set that is scored later
(Elkan 2001, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nextafter

from qa_arch.errors import DataError
from qa_arch.metrics.scores import Scores
from qa_arch.metrics.squad import QuestionScore, aggregate, missing_ids, score_questions
from qa_arch.types.text import Prediction, QuestionSet

_TIE = 1e-9
"""Rounding tolerance: sums of F1 that differ by less count as equal."""


@dataclass(frozen=True, slots=True)
class AtMargins:
    """Scores of the same answers at the three operating points, and without a margin."""

    margin_0: Scores
    calibrated: Scores
    oracle: Scores
    """``threshold`` of these three is their margin."""
    never_null: Scores
    """The best span is always the answer."""


def class_weights(answerable: Sequence[bool], prior: float | None) -> tuple[float, float]:
    """Weights of an unanswerable and of an answerable question under which the share of the former is
    ``prior``; their mean over the questions is 1. Both are 1 without a prior, and where one kind is missing.
    """
    positives = sum(answerable)
    negatives = len(answerable) - positives
    if prior is None or not positives or not negatives:
        return 1.0, 1.0
    return prior * len(answerable) / negatives, (1 - prior) * len(answerable) / positives


def fit_margin(
    null_odds: Sequence[float],
    f1: Sequence[float],
    answerable: Sequence[bool],
    prior: float | None = None,
) -> float:
    """Margin of highest mean F1, when a question is abstained from where ``null_odds > margin``.

    Args:
        null_odds: null score minus best span score, per question.
        f1: F1 of the best span as the answer, in 0..1.
        answerable: whether the question has an answer; else abstaining is right.
        prior: the share that unanswerable questions are to count as; None: that which they have.

    Only cuts between different odds are considered. The margin lies midway between the odds on its
    two sides, or 1 beyond the outermost. Of cuts with the same score, the margin nearest 0 is taken, and
    of two equally near ones the negative one. Questions with NaN or infinite odds behave the same at every
    margin and are left out; without any other question the margin is 0.
    """
    rows = zip(null_odds, f1, answerable, strict=True)
    weights = class_weights(answerable, prior)
    ranked = sorted(
        (odds, weights[has_answer] * (value - (not has_answer)))
        for odds, value, has_answer in rows
        if isfinite(odds)
    )
    if not ranked:
        return 0.0
    gain = best_gain = 0.0  # over abstaining everywhere, from answering the questions so far
    lowest = ranked[0][0]
    best = min(lowest - 1, nextafter(lowest, -inf))
    following = [odds for odds, _ in ranked[1:]] + [None]
    for (odds, change), above in zip(ranked, following, strict=True):
        gain += change
        if above == odds:
            continue
        margin = odds + 1 if above is None else _between(odds, above)
        nearer = (abs(margin), margin) < (abs(best), best)
        if gain > best_gain + _TIE or (gain > best_gain - _TIE and nearer):
            best, best_gain = margin, max(gain, best_gain)
    return best


def calibrate(questions: QuestionSet, answers: Sequence[Prediction], prior: float | None = None) -> float:
    """Margin of highest F1 on a calibration split: ``questions`` and the model's ``answers``.

    Raises DataError if a question has no answer record, or several.
    """
    return _fit(*_score(questions, answers), prior)


def at_margins(questions: QuestionSet, answers: Sequence[Prediction], calibrated: float) -> AtMargins:
    """Scores of ``answers`` at margin 0, at margin ``calibrated``, at the oracle margin and never null.

    The texts are scored only once. Raises DataError if a question has no answer record, or several.
    """
    scored, odds = _score(questions, answers)
    margin_0, fitted, oracle = (
        aggregate(scored, "2.0", null_scores=odds, threshold=margin)
        for margin in (0.0, calibrated, _fit(scored, odds))
    )
    return AtMargins(margin_0, fitted, oracle, never_null=aggregate(scored, "2.0"))


def best_texts(answers: Sequence[Prediction]) -> dict[str, str]:
    """Id -> text of the best span, whatever the null score; "" if no span had a finite score.

    Raises DataError if two answers have the same id.
    """
    texts = {answer.id: answer.best.text if answer.best else "" for answer in answers}
    if len(texts) < len(answers):
        raise DataError(f"{len(answers)} answers to {len(texts)} questions: each question is answered once")
    return texts


def _score(
    questions: QuestionSet, answers: Sequence[Prediction]
) -> tuple[tuple[QuestionScore, ...], dict[str, float]]:
    """Scores of the best spans, and id -> null odds."""
    texts = best_texts(answers)
    if absent := missing_ids(questions, texts):
        named = ", ".join(absent[:5])
        raise DataError(f"{len(absent)} of {len(questions)} questions were not predicted: {named}")
    return score_questions(questions, texts, "2.0"), {answer.id: answer.null_odds for answer in answers}


def _fit(scored: Sequence[QuestionScore], odds: Mapping[str, float], prior: float | None = None) -> float:
    columns = [odds[s.id] for s in scored], [s.f1 for s in scored], [s.answerable for s in scored]
    return fit_margin(*columns, prior)


def _between(low: float, high: float) -> float:
    """A float in ``[low, high)``, midway where there is one."""
    middle = low + (high - low) / 2
    if not isfinite(middle):
        middle = low / 2 + high / 2
    return middle if low <= middle < high else nextafter(high, low)
