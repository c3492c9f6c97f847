"""Masked reductions against plain arithmetic; packing, unpacking and word pooling against plain loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from qa_arch.nn.heads import neutral_null
from qa_arch.nn.masking import (
    first_pieces,
    last_pieces,
    linear_fp32,
    masked_softmax,
    pool_words,
    put,
    reverse,
    take,
)

MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def plain_softmax(row: list[float]) -> list[float]:
    total = math.fsum(math.exp(x) for x in row)
    return [math.exp(x) / total for x in row]


def test_masked_softmax_equals_plain_arithmetic():
    scores = torch.randn(3, 4, dtype=torch.float64) * 3
    weights = masked_softmax(scores, MASK)
    total = neutral_null(scores, MASK)
    for row in (0, 2):
        expected = torch.tensor(plain_softmax(scores[row][MASK[row]].tolist()), dtype=torch.float64)
        torch.testing.assert_close(weights[row][MASK[row]], expected)
        assert total[row].item() == pytest.approx(
            math.log(sum(map(math.exp, scores[row][MASK[row]].tolist())))
        )
    assert not weights[~MASK].any()
    assert total[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [masked_softmax, neutral_null])
def test_row_of_padding_is_zero_with_finite_gradient(function, dtype):
    scores = torch.randn(3, 4).to(dtype).requires_grad_()
    out = function(scores, MASK)
    assert not out[1].any()
    (out * torch.randn(out.shape)).sum().backward()
    assert torch.isfinite(scores.grad).all()
    assert not scores.grad[~MASK].any()


def test_scores_keep_their_precision_under_autocast() -> None:
    """Inputs that bfloat16 rounds to the same score must keep different scores."""
    linear = nn.Linear(8, 1, bias=False)
    nn.init.ones_(linear.weight)
    x = torch.full((2, 8), 0.5)
    x[1, 0] += 1 / 256
    with torch.autocast("cpu", torch.bfloat16):
        rounded, exact = linear(x), linear_fp32(linear, x)
    assert exact.dtype == torch.float32
    assert rounded[0] == rounded[1]
    assert exact[0] != exact[1]


@st.composite
def windows(draw):
    """A mask with gaps and rising word numbers along it (the first as if after an earlier window)."""
    B, T = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    mask = torch.tensor(
        draw(st.lists(st.lists(st.booleans(), min_size=T, max_size=T), min_size=B, max_size=B))
    )
    word = torch.full((B, T), -1)
    for b in range(B):
        number = draw(st.integers(0, 5))
        for t in range(T):
            if mask[b, t]:
                word[b, t] = number = number + draw(st.integers(0, 1))
    return mask, word


@settings(max_examples=60, deadline=None)
@given(windows())
def test_put_inverts_take(window):
    mask, _ = window
    x = torch.arange(mask.numel() * 2, dtype=torch.float64).view(*mask.shape, 2) + 1
    packed, packed_mask = take(x, mask)
    assert packed.shape[1] == max(1, int(mask.sum(1).max()))
    for row in range(len(mask)):
        expected = [x[row, t].tolist() for t in range(mask.shape[1]) if mask[row, t]]
        assert packed[row][packed_mask[row]].tolist() == expected
        assert packed_mask[row].tolist() == [True] * len(expected) + [False] * (
            packed.shape[1] - len(expected)
        )
    assert not packed[~packed_mask].any()
    back = put(packed[..., 0], mask, -math.inf)
    assert torch.equal(back, x[..., 0].masked_fill(~mask, -math.inf))


@settings(max_examples=60, deadline=None)
@given(windows())
def test_pooled_words_are_means_of_their_pieces(window):
    mask, word = window
    x = torch.randn(*mask.shape, 3, dtype=torch.float64)
    pooled, pooled_mask = pool_words(x, mask, word)
    first, last = first_pieces(mask, word), last_pieces(mask, word)
    for row in range(len(mask)):
        pieces: dict[int, list[int]] = {}
        for t in range(mask.shape[1]):
            if mask[row, t]:
                pieces.setdefault(int(word[row, t]), []).append(t)
        expected = [torch.stack([x[row, t] for t in ts]).mean(0) for ts in pieces.values()]
        assert int(pooled_mask[row].sum()) == len(expected)
        if expected:
            torch.testing.assert_close(pooled[row, : len(expected)], torch.stack(expected))
        assert first[row].nonzero()[:, 0].tolist() == [ts[0] for ts in pieces.values()]
        assert last[row].nonzero()[:, 0].tolist() == [ts[-1] for ts in pieces.values()]
    assert not pooled[~pooled_mask].any()


def test_reverse_keeps_padding_last_and_is_its_own_inverse():
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    x = torch.arange(12.0).view(3, 4, 1)
    assert reverse(x, mask)[..., 0].tolist() == [[3, 2, 1, 0], [5, 4, 6, 7], [8, 9, 10, 11]]
    assert torch.equal(reverse(reverse(x, mask), mask), x)


def test_gradients_reach_only_real_positions():
    mask = torch.tensor([[False, True, True], [True, False, False]])
    for pack in (take, lambda x, m: pool_words(x, m, torch.tensor([[-1, 0, 0], [3, -1, -1]]))):
        x = torch.randn(2, 3, 2, requires_grad=True)
        pack(x, mask)[0].sum().backward()
        assert (x.grad[mask] > 0).all()
        assert not x.grad[~mask].any()
