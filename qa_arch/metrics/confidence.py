"""Calibrated confidence in an answer, and curves of risk, coverage and reliability.

The calibrated confidence is the probability that an answer is right, comparable across passages: temperature
scaling (Guo et al. 2017, section 4.2) over the candidates of a question, "no answer" included:

    confidence = softmax(score / T), where the score of "no answer" is lowered by the null threshold

At the null threshold a span and "no answer" are equally good answers on the calibration split
(``metrics.threshold``), so both get the same confidence there, and the answer given is always the most
confident candidate. A temperature alone would keep the order of the raw scores, in which it often is not.
These functions take flat columns: the candidates of question q are rows ``[offsets[q], offsets[q + 1])`` of
the M rows, and each of the Q questions has at least one.

The curves take one array per column over N questions. ``odds`` are null odds: the system abstains if they
exceed the null threshold. ``value`` is the score (0..1) of the best span as the answer, NaN if unknown; a
curve ends before the first threshold that would need an unknown value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

POINTS = 120
"""Maximum number of points on a curve."""
BINS = 10
BOUNDS = 0.1, 10.0
"""Lowest and highest temperature: a small calibration split cannot claim certainty."""
_ROUNDS, _POINTS = 4, 21
"""Each round of the search is between the neighbours of the best point so far."""


def softmax(
    score: npt.NDArray, offsets: Ints, temperature: float = 1.0, counted: Bools | None = None
) -> Floats:
    """Softmax of ``score / temperature`` within each question, shape (M,); a score of +inf takes all mass.

    Candidates with ``counted`` false are left out of the denominator.
    """
    if not len(score):
        return np.zeros(0)
    weight = np.exp(-_distance(score, offsets) / temperature)
    total = np.add.reduceat(weight if counted is None else weight * counted, offsets[:-1])
    return weight / np.repeat(total, np.diff(offsets))


def confidences(
    score: npt.NDArray,
    null: Ints,
    offsets: Ints,
    *,
    threshold: float,
    temperature: float,
    counted: Bools | None = None,
) -> Floats:
    """Probability that each candidate is right, shape (M,); ``null`` (Q,) are the rows of "no answer".

    At threshold ``inf``, "no answer" has probability 0. ``counted`` as in ``softmax``.
    """
    return softmax(_shifted(score, null, threshold), offsets, temperature, counted)


def fit_temperature(
    score: npt.NDArray, null: Ints, offsets: Ints, right: Bools, *, threshold: float
) -> float:
    """Temperature that minimises the log loss of the confidence in the answers given.

    ``right`` (Q,): whether the answer given at ``threshold`` is right (a span that matches a gold answer
    exactly, "no answer" to an unanswerable question). The loss is that of this event, not the likelihood of
    the gold candidate (Guo et al. 2017, section 2): it fits the probability that users see, and it counts
    questions whose gold answer is not among the candidates (too long, or cut by the tokens), for which that
    likelihood is 0 at any temperature. The two agree where the answer given is right. A loss over all
    candidates would be dominated by the many wrong ones, and by near-duplicates that are right together but
    share one probability.

    Bounded grid search over log T, identical on every machine, to four decimals; 1 without questions or if
    the temperature makes no difference.
    """
    if not len(right):
        return 1.0
    distance = _distance(_shifted(score, null, threshold), offsets)
    first = np.flatnonzero(distance == 0)
    _, place = np.unique(np.repeat(np.arange(len(right)), np.diff(offsets))[first], return_index=True)
    distance[first[place]] = np.inf  # leaves the other candidates

    def loss(log_temperature: float) -> float:
        others = np.add.reduceat(np.exp(-distance / np.exp(log_temperature)), offsets[:-1])
        others = np.maximum(others, np.finfo(np.float64).tiny)
        return float(np.mean(np.log1p(others) - np.where(right, 0.0, np.log(others))))

    return round(float(np.exp(_minimise(loss, *np.log(BOUNDS)))), 4)


def _minimise(loss: Callable[[float], float], low: float, high: float) -> float:
    """Grid search for the minimum of ``loss`` between ``low`` and ``high``; on ties the point nearest 0."""
    best = 0.0
    for _ in range(_ROUNDS):
        points = sorted(np.linspace(low, high, _POINTS).tolist(), key=abs)
        best = min(points, key=loss)
        step = (high - low) / (_POINTS - 1)
        low, high = max(low, best - step), min(high, best + step)
    return best


def _shifted(score: npt.NDArray, null: Ints, threshold: float) -> Floats:
    """Scores with "no answer" lowered by the threshold: the answer given has the highest."""
    shifted = score.astype(np.float64)
    shifted[null] = shifted[null] - threshold if np.isfinite(threshold) else -threshold
    return shifted


def _distance(score: npt.NDArray, offsets: Ints) -> Floats:
    """Distance of each score below the highest of its question, shape (M,); 0 for the highest itself."""
    top = np.repeat(np.maximum.reduceat(score, offsets[:-1]).astype(np.float64), np.diff(offsets))
    with np.errstate(invalid="ignore"):  # inf - inf is the top itself
        return np.where(np.isinf(top), np.where(score == top, 0.0, np.inf), top - score)


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram: confidence and observed frequency in bins of equal width, without empty bins."""

    confidence: Floats
    observed: Floats
    count: npt.NDArray[np.int64]
    ece: float
    """Expected calibration error (Naeini et al. 2015): count-weighted mean gap between the two, 0..1."""


def thresholds(
    odds: Floats, value: Floats, answerable: Bools, *, points: int = POINTS
) -> tuple[dict[str, Floats], float | None]:
    """Curves over rising null thresholds, in percent, and the area under the risk-coverage curve (Geifman &
    El-Yaniv 2017), None if the curves end early.

    There is a point at every cut between distinct null odds, at most ``points`` of them, evenly spaced by
    rank. Questions with NaN odds are never abstained from. The curves:

    - ``margin``: the null threshold itself
    - ``coverage``: share of the questions that are answered
    - ``score``: mean over all questions of the value of the span, or 1 for a correct abstention
    - ``has_answer``, ``no_answer``: ``score`` over answerable and unanswerable questions; NaN without any
    - ``risk``: 100 minus the mean value of the answered questions; a false answer has value 0
    - ``precision``: share of the abstentions that are correct; 100 without abstentions
    - ``recall``: share of the unanswerable questions that are abstained from; NaN without any
    """
    odds = np.where(np.isnan(odds), -np.inf, odds)
    order = np.argsort(odds, kind="stable")
    odds, value, answerable = odds[order], value[order], answerable[order]
    n, unknown = len(odds), np.flatnonzero(np.isnan(value) & answerable)
    value = np.where(answerable, value, np.nan_to_num(value))
    cuts = np.flatnonzero(np.append(odds[1:] != odds[:-1], True)) + 1  # answered questions at each cut
    cuts = np.concatenate([[0], cuts])
    if len(unknown):
        cuts = cuts[cuts <= unknown[0]]
    answer_gain = _cumulative(np.where(answerable, value, 0.0))[cuts]
    chance_gain = _cumulative(np.where(answerable, 0.0, value))[cuts]  # e.g. "the", empty once normalised
    passed_unanswerable = _cumulative(~answerable)[cuts]
    total_answerable, total_unanswerable = int(answerable.sum()), int((~answerable).sum())
    abstained_unanswerable = total_unanswerable - passed_unanswerable
    abstained = n - cuts
    with np.errstate(invalid="ignore", divide="ignore"):
        risk = np.where(cuts > 0, 100 * (1 - answer_gain / np.maximum(cuts, 1)), np.nan)
        curves = {
            "margin": np.append(odds[0] - 1, odds[cuts[1:] - 1]),
            "coverage": 100 * cuts / n,
            "score": 100 * (answer_gain + chance_gain + abstained_unanswerable) / n,
            "has_answer": 100 * answer_gain / np.float64(total_answerable),
            "no_answer": 100 * (chance_gain + abstained_unanswerable) / np.float64(total_unanswerable),
            "risk": risk,
            "precision": np.where(
                abstained > 0, 100 * abstained_unanswerable / np.maximum(abstained, 1), 100.0
            ),
            "recall": 100 * abstained_unanswerable / np.float64(total_unanswerable),
        }
    area = None if len(unknown) else float(np.sum(risk[1:] * np.diff(cuts)) / n)
    evenly_spaced = np.linspace(0, len(cuts) - 1, min(len(cuts), points))
    selected = np.unique(evenly_spaced.round().astype(np.int64))
    return {name: curve[selected] for name, curve in curves.items()}, area


def reliability(confidence: Floats, true: Bools) -> Reliability:
    """Observed frequency of ``true`` by bins of ``confidence`` (0..1)."""
    finite = np.isfinite(confidence)
    confidence, true = confidence[finite], true[finite].astype(np.float64)
    bin_of = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    count = np.bincount(bin_of, minlength=BINS)
    nonempty = count > 0
    mean = np.bincount(bin_of, confidence, BINS)[nonempty] / count[nonempty]
    observed = np.bincount(bin_of, true, BINS)[nonempty] / count[nonempty]
    ece = float(np.sum(np.abs(mean - observed) * count[nonempty]) / max(len(confidence), 1))
    return Reliability(mean, observed, count[nonempty], ece)


def auroc(score: Floats, positive: Bools) -> float | None:
    """Area under the ROC curve, 0..1: how often a positive scores above a negative, ties counting half.

    A NaN score counts as the highest. By the ranks of Mann & Whitney 1947; None if either class is missing or
    no score is known.
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs or np.isnan(score).all():
        return None
    known = np.where(np.isnan(score), np.inf, score)
    _, place, count = np.unique(known, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    return float((mean_rank[place][positive].sum() - positives * (positives + 1) / 2) / pairs)


def auroc_values(score: Floats, positive: Bools) -> Floats | None:
    """Per-question values whose mean is the area under the ROC curve, shape (N,).

    A positive counts by the share of negatives below it, a negative by the share of positives above it, ties
    half (the placements of DeLong et al. 1988), so variances of areas and of their differences are those of
    means. None if either class is missing.
    """
    area = auroc(score, positive)
    if area is None:
        return None
    score, values = np.where(np.isnan(score), np.inf, score), np.empty(len(score))
    for own, sign in ((positive, 1), (~positive, -1)):
        others = np.sort(sign * score[~own])
        own_scores = sign * score[own]
        below = np.searchsorted(others, own_scores, "left") + np.searchsorted(others, own_scores, "right")
        values[own] = area + len(score) / own.sum() * (below / (2 * len(others)) - area)
    return values


def area_values(odds: Floats, value: Floats, answerable: Bools) -> Floats:
    """Per-question values whose mean is the area under the risk-coverage curve (0..1), shape (N,).

    With k_q questions answered no later than q, whose loss is l_q, the area is Σ_q l_q h_q / N, where h_q
    sums 1 / k over the cuts from k_q on. A question adds its own term and to the coverage of all later ones.
    """
    odds = np.where(np.isnan(odds), -np.inf, odds)
    _, place, size = np.unique(odds, return_inverse=True, return_counts=True)
    answered = np.cumsum(size)
    loss = 1 - np.where(answerable, value, 0.0)
    later = np.cumsum((size / answered)[::-1])[::-1]
    crowding = np.cumsum((np.bincount(place, loss) / answered)[::-1])[::-1]
    return loss * later[place] + loss.mean() - crowding[place]


def _cumulative(values: npt.NDArray) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
