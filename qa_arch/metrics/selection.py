"""Scores of answer selection: how often a right candidate comes first, and how far down it stands."""

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
    """Mean reciprocal rank of the first right candidate; 0 where none of the candidates is right."""
    questions: int

    def flat(self) -> dict[str, float | int]:
        return asdict(self)


def rank_of_right(scores: Sequence[float], right: Collection[int]) -> int | None:
    """Rank (from 1) of the best right candidate, or None where no candidate is right.

    ``right`` are places in ``scores``. Every wrong candidate of the same score stands before it, and so
    does one whose score is not a number, so that a model that scores all alike gains nothing. A right
    candidate whose score is not a number comes last.
    """
    best = max((_plain(scores[place]) for place in right), default=None)
    if best is None:
        return None
    wrong = (score for place, score in enumerate(scores) if place not in right)
    return 1 + sum(isnan(score) or score >= best for score in wrong)


def _plain(score: float) -> float:
    return float("-inf") if isnan(score) else score


def selection_scores(ranks: Sequence[int | None]) -> SelectionScores:
    """Top-1 accuracy and MRR of the ranks that ``rank_of_right`` gave; at least one question."""
    accuracy = fmean(rank == 1 for rank in ranks)
    mrr = fmean(1 / rank if rank else 0.0 for rank in ranks)
    return SelectionScores(100 * accuracy, 100 * mrr, len(ranks))
