"""Calibrated confidence: the probability that an answer is right, which compares across passages.

Temperature scaling (Guo et al. 2017, section 4.2) over the candidates of a question, "no answer" among them:

    confidence = softmax(score / T), where the score of "no answer" is lowered by the null threshold

The null threshold is the cut at which a span and "no answer" are equally good answers on the calibration
split (``metrics.threshold``), so both have the same confidence there, and the answer given is always the most
confident candidate. A temperature alone keeps the order of the scores, by which the answer given is often not
the first.

All functions take flat columns: the candidates of question q are rows ``[offsets[q], offsets[q + 1])`` of the
M rows, and none of the Q questions is without a candidate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

BOUNDS = 0.1, 10.0
"""Lowest and highest temperature: a small calibration split cannot claim certainty."""
_ROUNDS, _POINTS = 4, 21
"""Each round searches between the neighbours of the best point of the round before."""


def softmax(
    score: npt.NDArray, offsets: Ints, temperature: float = 1.0, counted: Bools | None = None
) -> Floats:
    """(M,) softmax of ``score / temperature`` within each question; a score of +inf gets all of it.

    Where ``counted`` is false a candidate has no part in the sum that it is divided by.
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
    """(M,) probability that each candidate is the right answer; (Q,) ``null`` are the rows of "no answer".

    With the threshold ``inf``, "no answer" is never right. ``counted`` is that of ``softmax``.
    """
    return softmax(_shifted(score, null, threshold), offsets, temperature, counted)


def fit_temperature(
    score: npt.NDArray, null: Ints, offsets: Ints, right: Bools, *, threshold: float
) -> float:
    """Temperature at which the confidence in the answers given has the lowest log loss.

    ``right`` (Q,): whether the answer given at ``threshold`` is (a span that matches a gold answer exactly,
    "no answer" to an unanswerable question). The loss is that of this event, not the likelihood of the gold
    candidate (Guo et al. 2017, section 2): the probability that users are shown is then the one that is
    fitted, and questions count whose gold answer is no candidate (it is too long, or cut by the tokens),
    for which that likelihood is 0 at any temperature. Both agree where the answer given is right. The loss of
    all candidates would be led by the many that are wrong, and by near-duplicates that are right together
    though they share one probability.

    A bounded search over log T, the same on every machine, to four decimals; 1 without questions or where
    the temperature makes no difference.
    """
    if not len(right):
        return 1.0
    distance = _distance(_shifted(score, null, threshold), offsets)
    first = np.flatnonzero(distance == 0)
    _, place = np.unique(np.repeat(np.arange(len(right)), np.diff(offsets))[first], return_index=True)
    distance[first[place]] = np.inf  # what remains are the others

    def loss(log_temperature: float) -> float:
        others = np.add.reduceat(np.exp(-distance / np.exp(log_temperature)), offsets[:-1])
        others = np.maximum(others, np.finfo(np.float64).tiny)
        return float(np.mean(np.log1p(others) - np.where(right, 0.0, np.log(others))))

    return round(float(np.exp(_lowest(loss, *np.log(BOUNDS)))), 4)


def _lowest(loss: Callable[[float], float], low: float, high: float) -> float:
    """Where ``loss`` is lowest between ``low`` and ``high``, nearest 0 of equal ones."""
    best = 0.0
    for _ in range(_ROUNDS):
        points = sorted(np.linspace(low, high, _POINTS).tolist(), key=abs)
        best = min(points, key=loss)
        step = (high - low) / (_POINTS - 1)
        low, high = max(low, best - step), min(high, best + step)
    return best


def _shifted(score: npt.NDArray, null: Ints, threshold: float) -> Floats:
    """The scores, those of "no answer" lowered by the threshold: the highest is that of the answer given."""
    shifted = score.astype(np.float64)
    shifted[null] = shifted[null] - threshold if np.isfinite(threshold) else -threshold
    return shifted


def _distance(score: npt.NDArray, offsets: Ints) -> Floats:
    """(M,) by how much each score is below the highest of its question; 0 for that itself."""
    top = np.repeat(np.maximum.reduceat(score, offsets[:-1]).astype(np.float64), np.diff(offsets))
    with np.errstate(invalid="ignore"):  # inf - inf is the top itself
        return np.where(np.isinf(top), np.where(score == top, 0.0, np.inf), top - score)
