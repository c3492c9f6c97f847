"""Scores of answer selection: top-1 accuracy and mean reciprocal rank."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from statistics import fmean

METRIC_VERSION = "selection-1"


@dataclass(frozen=True, slots=True)
class SelectionScores:
    """Means over the questions, in percent."""

    accuracy: float
    """Top-1 accuracy: the share of questions whose first candidate is right."""
    mrr: float
    """Mean reciprocal rank of the first right candidate; 0 if no candidate is right."""
    questions: int

    def flat(self) -> dict[str, float | int]:
        return asdict(self)


def rank_of_right(scores: Sequence[float], right: Collection[int]) -> int | None:
    """Rank (from 1) of the best right candidate, or None if no candidate is right.

    ``right`` holds indices into ``scores``. Wrong candidates of the same score, and those with a NaN score,
    rank before it, so that a constant score gains nothing. A right candidate with a NaN score ranks last.
    """
    best = max((_nan_last(scores[i]) for i in right), default=None)
    if best is None:
        return None
    wrong = (score for i, score in enumerate(scores) if i not in right)
    return 1 + sum(isnan(score) or score >= best for score in wrong)


def _nan_last(score: float) -> float:
    return float("-inf") if isnan(score) else score


def selection_scores(ranks: Sequence[int | None]) -> SelectionScores:
    """Top-1 accuracy and MRR from the ranks of ``rank_of_right``; at least one question."""
    accuracy = fmean(rank == 1 for rank in ranks)
    mrr = fmean(1 / rank if rank else 0.0 for rank in ranks)
    return SelectionScores(100 * accuracy, 100 * mrr, len(ranks))
