"""Ranking by no-answer probability, the best threshold and the average precision, by hand."""

from __future__ import annotations

import pytest

from qa_arch.metrics.squad import average_precision, best_threshold


def test_best_threshold_may_stop_inside_a_tie():
    # One unanswerable question (score 1), then +1, -1 at the same probability: 2 of 3 after the first.
    got = best_threshold([1, 0, 1], [True, False, True], [False, False, False], [0.3, 0.3, 0.3])
    assert got == (pytest.approx(200 / 3), 0.3)
    # In the other order: 0, 1, 2 of 3, reached at the last.
    got = best_threshold([0, 1, 1], [False, True, True], [False, False, False], [0.2, 0.3, 0.4])
    assert got == (pytest.approx(200 / 3), 0.4)


def test_best_threshold_where_silence_is_best():
    # An answer to an unanswerable question costs 1, an empty prediction costs nothing.
    assert best_threshold([0, 1], [False, False], [False, True], [0.2, 0.3]) == (100.0, 0.0)


def test_average_precision_joins_ties():
    # Apart: 1/1 * 1/2 + 2/3 * 1/2. Joined, the first two are one step: 1/2 * 1/2 + 2/3 * 1/2.
    values, answerable = [1, 0, 1], [True, False, True]
    assert average_precision(values, answerable, [0.1, 0.2, 0.3]) == pytest.approx(100 * (1 / 2 + 1 / 3))
    assert average_precision(values, answerable, [0.2, 0.2, 0.3]) == pytest.approx(100 * (1 / 4 + 1 / 3))
