"""Abstaining: the null threshold, and the probability that a question is answerable.

The null threshold is the margin by which the null score must exceed the best span's for "no answer". Scores
at threshold 0 (``margin_0`` in records), at one fitted on a calibration split without shared articles
(``calibrated``) and at one fitted on the scored set itself (``oracle``: a bound, not a result) are not
comparable.

A fit weights the unanswerable questions by their share of the split, or to a stated ``prior``: the best
threshold depends on that share, which rarely equals that of the set scored later (Elkan 2001, section 2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite, nextafter

import numpy as np

from qa_arch.errors import DataError
from qa_arch.metrics.confidence import Bools, Floats
from qa_arch.metrics.squad import QuestionScore, Scores, aggregate, require_predictions, score_questions
from qa_arch.records import CALIBRATED, MARGIN_0, NEVER_NULL, ORACLE
from qa_arch.types.text import Prediction, QuestionSet

_TIE = 1e-9
"""Rounding tolerance: sums of F1 that differ by less count as equal."""


def class_weights(answerable: Sequence[bool], prior: float | None) -> tuple[float, float]:
    """Weights of an unanswerable and an answerable question that give the former the share ``prior``.

    Their mean over the questions is 1. Both are 1 without a prior or if one kind is missing.
    """
    positives = sum(answerable)
    negatives = len(answerable) - positives
    if prior is None or not positives or not negatives:
        return 1.0, 1.0
    return prior * len(answerable) / negatives, (1 - prior) * len(answerable) / positives


def fit_threshold(
    null_odds: Sequence[float],
    f1: Sequence[float],
    answerable: Sequence[bool],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    """Null threshold with the highest mean F1, abstaining where ``null_odds > threshold``.

    Args:
        null_odds: null score minus best span score, per question.
        f1: F1 of the best span as the answer, in 0..1.
        answerable: whether the question has an answer; if not, abstaining is right.
        prior: share that the unanswerable questions are weighted to; None: their own share.
        width: None, or the width of the smoothing in standard deviations of the finite null odds.

    Only cuts between distinct odds are considered. The threshold lies midway between the odds on its two
    sides, or 1 beyond the outermost. On ties the threshold nearest 0 wins, and of two equally near the
    negative one. Questions with NaN or infinite odds behave the same at every threshold and are left out; if
    no other questions remain, the threshold is 0.

    F1 is a step function of the threshold t, whose highest step depends on single questions: a jackknife over
    articles then overstates the variance of its argmax. With ``width`` the function is smoothed, and the
    threshold is that of the highest Σ_i gain_i σ((t - odds_i) / h), h = width times the standard deviation.
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
    if width is not None and ranked[0][0] < ranked[-1][0]:
        return _smooth_argmax(np.array(ranked), width)
    gain = best_gain = 0.0  # from answering the questions so far, over abstaining everywhere
    lowest = ranked[0][0]
    best = min(lowest - 1, nextafter(lowest, -inf))
    following = [odds for odds, _ in ranked[1:]] + [None]
    for (odds, change), above in zip(ranked, following, strict=True):
        gain += change
        if above == odds:
            continue
        cut = odds + 1 if above is None else _between(odds, above)
        nearer = (abs(cut), cut) < (abs(best), best)
        if gain > best_gain + _TIE or (gain > best_gain - _TIE and nearer):
            best, best_gain = cut, max(gain, best_gain)
    return best


def _smooth_argmax(ranked: Floats, width: float) -> float:
    """Threshold of the highest sum of gains (of answering), each smoothed around its null odds; ``ranked``
    holds pairs of the two, shape (N, 2), by increasing odds."""
    from scipy.optimize import minimize_scalar
    from scipy.special import expit

    odds, gains = ranked.T
    scale = width * float(odds.std())

    def lost(threshold: float) -> float:
        return -float(gains @ expit((threshold - odds) / scale))

    step = scale / 4  # finer than anything that the smoothing leaves
    grid = np.arange(odds[0] - 4 * scale, odds[-1] + 4 * scale + step, step)
    start = float(min(grid, key=lost))
    return float(minimize_scalar(lost, bounds=(start - step, start + step), method="bounded").x)


def calibrate(
    questions: QuestionSet,
    answers: Sequence[Prediction],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    """Null threshold fitted on a calibration split: ``questions`` and the model's ``answers``.

    Raises DataError if a question has no answer record, or several.
    """
    return _fit(*_score(questions, answers), prior, width)


def at_thresholds(
    questions: QuestionSet, answers: Sequence[Prediction], calibrated: float
) -> dict[str, Scores]:
    """Scores of the answers by operating point: threshold 0, ``calibrated``, the oracle's, never null.

    The texts are scored only once. Raises DataError if a question has no answer record, or several.
    """
    scored, odds = _score(questions, answers)
    thresholds = {MARGIN_0: 0.0, CALIBRATED: calibrated, ORACLE: _fit(scored, odds)}
    points = {
        name: aggregate(scored, "2.0", null_scores=odds, threshold=threshold)
        for name, threshold in thresholds.items()
    }
    return {**points, NEVER_NULL: aggregate(scored, "2.0")}


def best_texts(answers: Sequence[Prediction]) -> dict[str, str]:
    """Id -> text of the best span, regardless of the null score; "" if no span had a finite score.

    Raises DataError if two answers have the same id.
    """
    texts = {answer.id: answer.best.text if answer.best else "" for answer in answers}
    if len(texts) < len(answers):
        raise DataError(f"{len(answers)} answers to {len(texts)} questions; give one answer per question")
    return texts


def _score(
    questions: QuestionSet, answers: Sequence[Prediction]
) -> tuple[tuple[QuestionScore, ...], dict[str, float]]:
    """Scores of the best spans, and id -> null odds."""
    texts = best_texts(answers)
    require_predictions(questions, texts)
    return score_questions(questions, texts, "2.0"), {answer.id: answer.null_odds for answer in answers}


def _fit(
    scored: Sequence[QuestionScore],
    odds: Mapping[str, float],
    prior: float | None = None,
    width: float | None = None,
) -> float:
    columns = [odds[s.id] for s in scored], [s.f1 for s in scored], [s.answerable for s in scored]
    return fit_threshold(*columns, prior, width)


def _between(low: float, high: float) -> float:
    """A float in ``[low, high)``: the midpoint, if representable."""
    middle = low + (high - low) / 2
    if not isfinite(middle):
        middle = low / 2 + high / 2
    return middle if low <= middle < high else nextafter(high, low)


def answerable_probability(odds: Floats, slope: float, intercept: float) -> Floats:
    """P(answerable) = 1 / (1 + exp(-(intercept + slope * odds))) of each question from its null odds; 0 or 1
    for infinite odds, NaN for NaN."""
    with np.errstate(invalid="ignore"):  # infinite odds and a slope of 0
        logit = np.nan_to_num(intercept + slope * odds, nan=intercept)
    probability = 1 / (1 + np.exp(-np.clip(logit, -700, 700)))
    return np.where(np.isnan(odds), np.nan, probability)


def fit_answerability(
    odds: Floats, answerable: Bools, prior: float | None = None
) -> tuple[float, float] | None:
    """Slope and intercept of the logistic regression of ``answerable`` on the null odds, with the classes
    weighted by ``class_weights``.

    The targets are (N+ + 1) / (N+ + 2) and 1 / (N- + 2) (Platt 1999), so the slope stays finite even if a
    threshold separates the classes. Fitted by BFGS on standardised odds. Questions with non-finite odds are
    left out; None without both kinds.
    """
    from scipy.optimize import minimize
    from scipy.special import expit

    finite = np.isfinite(odds)
    odds, answerable = odds[finite], answerable[finite]
    positives = int(answerable.sum())
    negatives = len(answerable) - positives
    if not positives or not negatives:
        return None
    # The standard deviation of equal odds is often not 0 but a rounding error.
    centre, scale = float(odds.mean()), float(odds.std()) if np.ptp(odds) else 1.0
    inputs = np.stack([(odds - centre) / scale, np.ones(len(odds))])
    target = np.where(answerable, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    negative_weight, positive_weight = class_weights(answerable.tolist(), prior)
    weight = np.where(answerable, positive_weight, negative_weight)

    def cross_entropy(coefficients: Floats) -> tuple[float, Floats]:
        """Weighted mean loss and its gradient."""
        logit = coefficients @ inputs
        loss = weight * (np.logaddexp(0, logit) - target * logit)
        return loss.mean(), inputs @ (weight * (expit(logit) - target)) / len(odds)

    fitted = minimize(cross_entropy, np.zeros(2), jac=True, method="BFGS", options={"gtol": 1e-10})
    slope, intercept = fitted.x.tolist()
    return slope / scale, intercept - slope * centre / scale
