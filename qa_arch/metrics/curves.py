"""What answers are worth at every null margin, and how far confidence can be believed.

All take one array per column over N questions. ``odds`` are null odds: the question is abstained
from where they exceed a margin. ``value`` is the score (0..1) of the best span if it is given, NaN
where it is not known; a curve ends before the first margin that would need an unknown value.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

POINTS = 120
"""At most so many points of a curve are kept."""
BINS = 10


@dataclass(frozen=True, eq=False)
class Thresholds:
    """Scores at rising margins, percent; the arrays have one length."""

    margin: Floats
    coverage: Floats
    """Share of the questions that are answered."""
    score: Floats
    """Mean over all questions: the span's value, or 1 for abstaining rightly."""
    has_answer: Floats
    """The same over answerable questions; NaN where there are none."""
    no_answer: Floats
    """The same over unanswerable ones."""
    risk: Floats
    """100 less the mean value of the answered questions; an unanswerable one that is answered is worth 0."""
    precision: Floats
    """Of the abstained questions, how many have no answer; 100 where none is abstained from."""
    recall: Floats
    """Of the questions without an answer, how many are abstained from; NaN where there are none."""
    area: float | None
    """Area under risk over coverage (Geifman & El-Yaniv 2017), from every cut; None where it is cut short."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """Confidence against truth in ``BINS`` bins of equal width; empty bins are left out."""

    confidence: Floats
    observed: Floats
    count: npt.NDArray[np.int64]
    ece: float
    """Expected calibration error (Naeini et al. 2015): mean distance of the two, by count; 0..1."""


def thresholds(odds: Floats, value: Floats, answerable: Bools, *, points: int = POINTS) -> Thresholds:
    """The curves over every cut between different odds, thinned to ``points`` of even rank.

    Questions with NaN odds count as never abstained from.
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
    gained = _running(np.where(answerable, value, 0.0))[cuts]
    by_chance = _running(np.where(answerable, 0.0, value))[cuts]  # "the" for an unanswerable question
    silent = _running(~answerable)[cuts]
    all_answerable, all_silent = int(answerable.sum()), int((~answerable).sum())
    left_silent = all_silent - silent
    abstained = n - cuts
    with np.errstate(invalid="ignore", divide="ignore"):
        risk = np.where(cuts > 0, 100 * (1 - gained / np.maximum(cuts, 1)), np.nan)
        curves = {
            "coverage": 100 * cuts / max(n, 1),
            "score": 100 * (gained + by_chance + left_silent) / max(n, 1),
            "has_answer": 100 * gained / np.float64(all_answerable),
            "no_answer": 100 * (by_chance + left_silent) / np.float64(all_silent),
            "risk": risk,
            "precision": np.where(abstained > 0, 100 * left_silent / np.maximum(abstained, 1), 100.0),
            "recall": 100 * left_silent / np.float64(all_silent),
        }
    whole = not len(unknown)
    area = float(np.sum(risk[1:] * np.diff(cuts)) / n) if whole and n else None
    kept = _thin(len(cuts), points)
    margin = np.append(odds[0] - 1 if n else 0.0, odds[cuts[1:] - 1])
    return Thresholds(margin[kept], **{name: curve[kept] for name, curve in curves.items()}, area=area)


def reliability(confidence: Floats, true: Bools, *, bins: int = BINS) -> Reliability:
    """How often what is claimed with some ``confidence`` (0..1) is ``true``."""
    known = np.isfinite(confidence)
    confidence, true = confidence[known], true[known].astype(np.float64)
    at = np.minimum((confidence * bins).astype(np.int64), bins - 1)
    count = np.bincount(at, minlength=bins)
    filled = count > 0
    mean = np.bincount(at, confidence, bins)[filled] / count[filled]
    observed = np.bincount(at, true, bins)[filled] / count[filled]
    ece = float(np.sum(np.abs(mean - observed) * count[filled]) / max(len(confidence), 1))
    return Reliability(mean, observed, count[filled], ece)


def answerable_confidence(odds: Floats) -> Floats:
    """The probability of an answer that null odds stand for: softmax of best span against no answer."""
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


def _running(values: npt.NDArray) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])


def _thin(count: int, points: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(np.int64))
