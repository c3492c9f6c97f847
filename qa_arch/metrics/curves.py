"""Scores as a function of the null threshold (risk-coverage curve), and calibration of the confidence.

All functions take one array per column over N questions. ``odds`` are null odds: a question is abstained
from if they exceed the margin. ``value`` is the score (0..1) of the best span if it is given as the answer,
NaN where it is unknown; a curve ends before the first margin that would need an unknown value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

POINTS = 120
"""Maximal number of points of a curve."""
BINS = 10


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Scores at rising margins, percent; all arrays have the same length."""

    margin: Floats
    coverage: Floats
    """Share of the questions that are answered."""
    score: Floats
    """Mean over all questions: the value of the span, or 1 for a correct abstention."""
    has_answer: Floats
    """The same over answerable questions; NaN where there are none."""
    no_answer: Floats
    """The same over unanswerable ones."""
    risk: Floats
    """100 minus the mean value of the answered questions; a false answer has value 0."""
    precision: Floats
    """Share of the abstentions that are correct; 100 without abstentions."""
    recall: Floats
    """Share of the unanswerable questions that are abstained from; NaN where there are none."""
    area: float | None
    """Area under risk over coverage (Geifman & El-Yaniv 2017), all cuts; None if the curve ends early."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """Reliability diagram: confidence and observed frequency in bins of equal width, without empty bins."""

    confidence: Floats
    observed: Floats
    count: npt.NDArray[np.int64]
    ece: float
    """Expected calibration error (Naeini et al. 2015): mean difference of the two by count; 0..1."""


def thresholds(odds: Floats, value: Floats, answerable: Bools, *, points: int = POINTS) -> Thresholds:
    """Scores at every cut between different null odds, at most ``points`` of them, evenly spaced by rank.

    Questions with NaN odds are never abstained from.
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
    chance_gain = _cumulative(np.where(answerable, 0.0, value))[cuts]  # "the" for an unanswerable question
    passed_unanswerable = _cumulative(~answerable)[cuts]
    total_answerable, total_unanswerable = int(answerable.sum()), int((~answerable).sum())
    abstained_unanswerable = total_unanswerable - passed_unanswerable
    abstained = n - cuts
    with np.errstate(invalid="ignore", divide="ignore"):
        risk = np.where(cuts > 0, 100 * (1 - answer_gain / np.maximum(cuts, 1)), np.nan)
        curves = {
            "coverage": 100 * cuts / max(n, 1),
            "score": 100 * (answer_gain + chance_gain + abstained_unanswerable) / max(n, 1),
            "has_answer": 100 * answer_gain / np.float64(total_answerable),
            "no_answer": 100 * (chance_gain + abstained_unanswerable) / np.float64(total_unanswerable),
            "risk": risk,
            "precision": np.where(
                abstained > 0, 100 * abstained_unanswerable / np.maximum(abstained, 1), 100.0
            ),
            "recall": 100 * abstained_unanswerable / np.float64(total_unanswerable),
        }
    complete = not len(unknown)
    area = float(np.sum(risk[1:] * np.diff(cuts)) / n) if complete and n else None
    selected = _evenly_spaced(len(cuts), points)
    margin = np.append(odds[0] - 1 if n else 0.0, odds[cuts[1:] - 1])
    return Thresholds(
        margin[selected], **{name: curve[selected] for name, curve in curves.items()}, area=area
    )


def reliability(confidence: Floats, true: Bools, *, bins: int = BINS) -> Reliability:
    """How often a prediction of a given ``confidence`` (0..1) is ``true``, by bins of confidence."""
    finite = np.isfinite(confidence)
    confidence, true = confidence[finite], true[finite].astype(np.float64)
    bin_of = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    nonempty = count > 0
    mean = np.bincount(bin_of, confidence, bins)[nonempty] / count[nonempty]
    observed = np.bincount(bin_of, true, bins)[nonempty] / count[nonempty]
    ece = float(np.sum(np.abs(mean - observed) * count[nonempty]) / max(len(confidence), 1))
    return Reliability(mean, observed, count[nonempty], ece)


def answerable_confidence(odds: Floats) -> Floats:
    """Probability that the question is answerable: softmax of the best span score against the null score."""
    return 1 / (1 + np.exp(np.clip(odds, -700, 700)))


def auroc(score: Floats, positive: Bools) -> float | None:
    """Area under the ROC curve, 0..1: how often a positive scores above a negative, ties counting half.

    By the ranks of Mann & Whitney 1947; None where one of the two is missing.
    """
    positives = int(positive.sum())
    pairs = positives * (len(positive) - positives)
    if not pairs:
        return None
    _, place, count = np.unique(score, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(count) - (count - 1) / 2
    return float((mean_rank[place][positive].sum() - positives * (positives + 1) / 2) / pairs)


def _cumulative(values: npt.NDArray) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _evenly_spaced(count: int, points: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(np.int64))
