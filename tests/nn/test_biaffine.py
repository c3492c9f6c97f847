"""The biaffine head against its equations, one span at a time."""

from __future__ import annotations

import math

import pytest
import torch
from heads import LENGTHS, random_head

from qa_arch.nn.biaffine import SLOPE, BiaffineHead


def rectified(x):
    return torch.where(x > 0, x, SLOPE * x)


def by_hand(head, first, last):
    """The three terms of one span."""
    p, q = rectified(head.as_start(first)), rectified(head.as_end(last))
    return head.start.weight[0] @ p, head.end.weight[0] @ q, p @ head.pair @ q


@pytest.mark.parametrize("row", ["zeros", "given"])
def test_spans_and_the_null_follow_the_equations(row):
    head, context, mask = random_head(BiaffineHead)
    nothing = torch.randn(3, 8, dtype=torch.float64) if row == "given" else None
    scores = head(context.masked_fill(~mask[..., None], 1e3), mask, nothing)
    for i, length in enumerate(LENGTHS):
        for s in range(length):
            for e in range(length):
                actual = scores.start[i, s], scores.end[i, e], scores.pair[i, s, e]
                torch.testing.assert_close(actual, by_hand(head, context[i, s], context[i, e]))
        sentinel = torch.zeros(8, dtype=torch.float64) if nothing is None else nothing[i]
        expected = sum(by_hand(head, sentinel, sentinel))
        torch.testing.assert_close(scores.null_start[i] + scores.null_end[i], expected)
        assert (scores.start[i, length:] == -math.inf).all()
        assert (scores.end[i, length:] == -math.inf).all()


def test_without_sentinel_the_null_has_half_of_the_probability():
    head, context, mask = random_head(BiaffineHead, sentinel=False)
    scores = head(context, mask)
    for i, length in enumerate(LENGTHS):
        spans = [
            sum(by_hand(head, context[i, s], context[i, e])) for s in range(length) for e in range(s, length)
        ]
        torch.testing.assert_close(scores.null_start[i] + scores.null_end[i], torch.stack(spans).logsumexp(0))


def test_start_and_end_begin_as_independent():
    scores = BiaffineHead(8, 5)(torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.bool))
    assert not scores.pair.any()
    assert scores.start.std() > 0


@pytest.mark.parametrize("sentinel", [False, True])
def test_a_window_without_context_stays_finite(sentinel):
    head = BiaffineHead(8, 5, sentinel=sentinel)
    context = torch.randn(2, 4, 8, requires_grad=True)
    scores = head(context, torch.tensor([[True] * 4, [False] * 4]))
    assert torch.isfinite(scores.null_start + scores.null_end).all()
    assert (scores.start[1] == -math.inf).all()
    (scores.pair[0].sum() + scores.start[0].sum() + scores.null_end.sum()).backward()
    assert torch.isfinite(context.grad).all()


def test_half_precision_comes_in_and_scores_stay_fp32():
    head = BiaffineHead(8, 5)
    context, mask = torch.randn(2, 4, 8), torch.ones(2, 4, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        scores = head(context.bfloat16(), mask)
    assert {scores.start.dtype, scores.pair.dtype, scores.null_end.dtype} == {torch.float32}


def test_parameters_are_those_of_the_equations():
    assert sum(p.numel() for p in BiaffineHead(300, 150).parameters()) == 2 * (300 * 150 + 150) + 300 + 150**2
