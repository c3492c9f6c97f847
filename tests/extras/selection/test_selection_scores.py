"""Top-1 accuracy and MRR by hand; a tie never helps."""

from __future__ import annotations

import math

import pytest

from qa_arch.extras.selection.scores import rank_of_right, selection_scores

NAN = math.nan


@pytest.mark.parametrize(
    ("scores", "right", "rank"),
    [
        ([0.9, 0.1, 0.5], {0}, 1),
        ([0.9, 0.1, 0.5], {2}, 2),
        ([0.9, 0.1, 0.5], {1}, 3),
        ([0.9, 0.1, 0.5], {1, 2}, 2),  # the best of several right ones
        ([0.5, 0.5, 0.5], {0}, 3),  # where all are equal the right one is last
        ([0.5, 0.5, 0.1], {1}, 2),
        ([0.5, 0.5, 0.1], {0, 1}, 1),  # a right one does not stand in the way of another
        ([-math.inf, -math.inf], {0}, 2),
        ([NAN, 0.1], {1}, 2),
        ([NAN, 0.1], {0}, 2),
        ([0.3, 0.1], set(), None),
    ],
)
def test_rank(scores, right, rank):
    assert rank_of_right(scores, right) == rank


def test_means():
    scores = selection_scores([1, 2, 4, None])
    assert scores.accuracy == 25.0
    assert scores.mrr == pytest.approx(100 * (1 + 1 / 2 + 1 / 4 + 0) / 4)
    assert scores.questions == 4
