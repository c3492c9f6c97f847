"""Scores of paraphrase detection by similarity: accuracy at a threshold, and AUC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class ParaphraseScores:
    """Accuracy and AUC in percent."""

    pairs: int
    paraphrases: int
    threshold: float
    """Two questions of at least this similarity count as paraphrases."""
    accuracy: float
    auc: float | None
    """P(a paraphrase is more similar than another pair), ties counted half; None without both kinds."""
    oracle_accuracy: float
    """Accuracy at the best threshold for these labels: an upper bound, not a result."""

    def flat(self) -> dict[str, float | int | None]:
        return asdict(self)


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> ParaphraseScores:
    """Accuracy, oracle accuracy and AUC of at least one pair; ``labels`` are True for paraphrases."""
    scores, positive = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    order = np.argsort(scores, kind="stable")
    ordered, negatives_below = scores[order], np.cumsum(~positive[order])
    # Cuts: below all similarities, between two different ones, above all.
    cuts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1, len(ordered)]
    negatives, paraphrases = np.r_[0, negatives_below][cuts], np.r_[0, np.cumsum(positive[order])][cuts]
    correct = negatives + positive.sum() - paraphrases
    return ParaphraseScores(
        pairs=len(scores),
        paraphrases=int(positive.sum()),
        threshold=threshold,
        accuracy=100 * float(((scores >= threshold) == positive).mean()),
        auc=_auc(scores, positive),
        oracle_accuracy=100 * float(correct.max()) / len(scores),
    )


def _auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """The Mann-Whitney statistic (Hanley & McNeil 1982)."""
    if positive.all() or not positive.any():
        return None
    _, group, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[group]  # ties share their mean rank
    positives = int(positive.sum())
    above = rank[positive].sum() - positives * (positives + 1) / 2
    return 100 * float(above) / (positives * (len(scores) - positives))
