"""Span search in the logits of a window."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from qa.synthetic_windows import make_logits

from qa_arch.qa.ranking import SpanCandidates
from qa_arch.qa.search import best_spans
from qa_arch.tensors import SpanLogits

INF = float("inf")
few_values = st.sampled_from([-INF, -2.0, -0.5, 0.0, 0.25, 0.5, 3.0])  # many ties
any_values = st.floats(-50, 50, width=32) | st.just(-INF)


def listed(result: SpanCandidates, row: int = 0) -> list[tuple[int, int]]:
    filled = result.score[row] > -INF
    return list(zip(result.start[row][filled].tolist(), result.end[row][filled].tolist(), strict=True))


def all_pairs(start, end, limit):
    """Every valid pair, best first; ties by start, then by length."""
    start, end = np.float32(start), np.float32(end)
    pairs = [
        (-(start[s] + end[e]), s, e)
        for s, e in itertools.product(range(len(start)), repeat=2)
        if 0 <= e - s < limit and start[s] + end[e] > -INF
    ]
    return [(s, e) for _, s, e in sorted(pairs)]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(1, 9).flatmap(
        lambda T: st.lists(
            st.tuples(*[st.lists(v, min_size=T, max_size=T) for v in (few_values | any_values,) * 2]),
            min_size=1,
            max_size=3,
        )
    ),
    limit=st.integers(1, 11),
    k=st.integers(1, 30),
)
def test_band_is_exact(rows, limit, k):
    start, end = (torch.tensor(list(x)) for x in zip(*rows, strict=True))
    zero = torch.zeros(len(rows))
    result = best_spans(SpanLogits(start, end, zero, zero), max_answer_tokens=limit, n_best=k)
    assert result.start.shape == (len(rows), k)
    for row, (s, e) in enumerate(rows):
        assert listed(result, row) == all_pairs(s, e, limit)[:k]


def test_tied_logits_give_the_same_spans_alone_and_in_a_batch():
    """bfloat16 logits have many ties: their order must not depend on the batch."""
    generator = torch.Generator().manual_seed(2)
    start, end = (torch.randn(2, 16, 60, generator=generator) * 2).round() / 2
    for search in ("band", "grid"):
        batch = best_spans(make_logits(start, end), search=search)
        for row in range(16):
            alone = best_spans(make_logits(start[row : row + 1], end[row : row + 1]), search=search)
            assert listed(alone) == listed(batch, row)


@pytest.mark.parametrize("search", ["band", "grid", "greedy"])
@pytest.mark.parametrize(("limit", "expected"), [(4, (2, 5)), (3, (2, 3))])
def test_length_limit_counts_tokens(search, limit, expected):
    """The best pair, tokens 2 to 5, has 4 tokens: a limit of 4 allows it, 3 does not."""
    start, end = torch.full((2, 1, 8), -9.0)
    start[0, 2], end[0, 5], end[0, 3] = 5.0, 5.0, 2.0
    result = best_spans(make_logits(start, end), search=search, max_answer_tokens=limit)
    assert listed(result)[0] == expected


@pytest.mark.parametrize("search", ["band", "grid", "greedy"])
def test_end_before_start_is_never_chosen(search):
    start, end = torch.zeros(2, 1, 6)
    start[0, 4], end[0, 1] = 9.0, 9.0
    result = best_spans(make_logits(start, end), search=search)
    assert all(s <= e for s, e in listed(result))


def test_greedy_keeps_the_best_start():
    """Joint search prefers (0, 1); greedy takes start 3, the best on its own."""
    start, end = torch.tensor([[4.0, 0, 0, 5, 0]]), torch.tensor([[0.0, 9, 0, 1, 2]])
    assert listed(best_spans(make_logits(start, end)))[0] == (0, 1)
    result = best_spans(make_logits(start, end), search="greedy", n_best=7)
    assert listed(result) == [(3, 4)]


@pytest.mark.parametrize(
    ("null_start", "null_end", "expected"),
    [
        (-5.0, -5.0, [(0, 3), (1, 3)]),
        (2.75, -5.0, [(0, 3), (0, 2)]),
        (-5.0, 2.75, [(0, 3), (1, 3)]),
        (2.5, -5.0, [(0, 3), (1, 3)]),
    ],
)
def test_null_takes_a_slot_in_the_grid(null_start, null_end, expected):
    """With n_best=2, a null above the second start (or end) takes its slot; an equal one does not."""
    start, end = torch.tensor([[3.0, 2.5, 1, 0]]), torch.tensor([[0.0, 1, 2, 3]])
    result = best_spans(make_logits(start, end, [null_start], [null_end]), search="grid", n_best=2)
    assert listed(result) == expected


@pytest.mark.parametrize("search", ["band", "grid", "greedy"])
def test_nan_is_never_chosen(search):
    start, end = torch.zeros(2, 2, 5)
    start[0, 2], end[0, 3], start[1] = float("nan"), INF, float("nan")
    result = best_spans(make_logits(start, end), search=search)
    assert all(s != 2 and e != 3 for s, e in listed(result, 0))
    assert listed(result, 0)
    assert listed(result, 1) == []
    assert result.invalid.tolist() == [2, 5]


def test_null_comes_from_the_logits():
    logits = make_logits(
        torch.zeros(2, 3),
        torch.zeros(2, 3),
        [1.0, 2.0],
        [0.5, -4.0],
        verifier=torch.tensor([3.0, 8.0]),
        verifier_weight=0.5,
    )
    np.testing.assert_allclose(best_spans(logits).null, logits.null)


def test_nan_null_is_ignored():
    result = best_spans(make_logits(torch.zeros(2, 3), torch.zeros(2, 3), [float("nan"), 1.0]))
    assert result.null.tolist() == [INF, 1.0]
