"""Masks: the softmax family against plain arithmetic, and rows in which nothing is real."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from qa_arch.nn.masking import masked_logsumexp, masked_softmax, scored

MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def plain_softmax(row: list[float]) -> list[float]:
    total = math.fsum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def test_softmax_equals_plain_arithmetic_over_the_real_entries():
    scores = torch.randn(3, 4, dtype=torch.float64) * 3
    weights = masked_softmax(scores, MASK)
    total = masked_logsumexp(scores, MASK)
    for row in (0, 2):
        expected = torch.tensor(plain_softmax(scores[row][MASK[row]].tolist()), dtype=torch.float64)
        torch.testing.assert_close(weights[row][MASK[row]], expected)
        assert total[row].item() == pytest.approx(
            math.log(sum(map(math.exp, scores[row][MASK[row]].tolist())))
        )
    assert not weights[~MASK].any()
    assert total[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [masked_softmax, masked_logsumexp])
def test_a_row_of_padding_is_zero_with_finite_gradient(function, dtype):
    scores = torch.randn(3, 4).to(dtype).requires_grad_()
    out = function(scores, MASK)
    assert not out[1].any()
    (out * torch.randn(out.shape)).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert not scores.grad[~MASK].any()


def test_hostile_values_on_padding_do_not_leak():
    scores = torch.tensor([[1.0, math.nan, 2.0, -math.inf]], requires_grad=True)
    mask = torch.tensor([[True, False, True, False]])
    weights = masked_softmax(scores, mask)
    torch.testing.assert_close(weights, torch.tensor([[1 / (1 + math.e), 0, math.e / (1 + math.e), 0]]))
    weights[0, 0].backward()
    assert torch.isfinite(scores.grad).all()


def test_scores_keep_their_precision_under_autocast() -> None:
    """Two inputs that bfloat16 rounds to one score must be told apart."""
    linear = nn.Linear(8, 1, bias=False)
    nn.init.ones_(linear.weight)
    x = torch.full((2, 8), 0.5)
    x[1, 0] += 1 / 256
    with torch.autocast("cpu", torch.bfloat16):
        rounded, exact = linear(x), scored(linear, x)
    assert exact.dtype == torch.float32
    assert rounded[0] == rounded[1]
    assert exact[0] != exact[1]
