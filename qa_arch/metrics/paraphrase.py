"""How well similarities tell paraphrases from other pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ParaphraseScores:
    """In percent, but for the threshold."""

    pairs: int
    paraphrases: int
    threshold: float
    """From this similarity on, two questions are taken for paraphrases."""
    accuracy: float
    auc: float | None
    """How often a paraphrase is more alike than another pair, ties counted half; None for one kind alone."""
    oracle_accuracy: float
    """At the threshold that fits these labels best: a bound, not a result."""

    def flat(self) -> dict[str, float | int | None]:
        return asdict(self)


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> ParaphraseScores:
    """``labels`` are True for paraphrases; at least one pair."""
    scores, right = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    order = np.argsort(scores, kind="stable")
    ordered, below = scores[order], np.cumsum(~right[order])
    # A threshold lies below all, or between two different similarities, or above all.
    cuts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1, len(ordered)]
    others, paraphrases = np.r_[0, below][cuts], np.r_[0, np.cumsum(right[order])][cuts]
    correct = others + right.sum() - paraphrases
    return ParaphraseScores(
        pairs=len(scores),
        paraphrases=int(right.sum()),
        threshold=threshold,
        accuracy=100 * float(((scores >= threshold) == right).mean()),
        auc=_auc(scores, right),
        oracle_accuracy=100 * float(correct.max()) / len(scores),
    )


def _auc(scores: np.ndarray, right: np.ndarray) -> float | None:
    """The Mann-Whitney statistic (Hanley & McNeil 1982)."""
    if right.all() or not right.any():
        return None
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]  # equal ones share their mean rank
    positive = int(right.sum())
    above = rank[right].sum() - positive * (positive + 1) / 2
    return 100 * float(above) / (positive * (len(scores) - positive))
