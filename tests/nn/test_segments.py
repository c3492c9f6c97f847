"""Packing one text of a window and back, against plain loops."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qa_arch.nn.segments import first_pieces, last_pieces, pool_words, put, reverse, take


@st.composite
def windows(draw):
    """A mask with gaps, and word numbers that rise along it (from where an earlier window ended)."""
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
def test_take_and_put_are_each_others_reverse(window):
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
def test_words_are_the_means_of_their_pieces(window):
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


def test_reverse_keeps_padding_behind_and_is_its_own_inverse():
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    x = torch.arange(12.0).view(3, 4, 1)
    assert reverse(x, mask)[..., 0].tolist() == [[3, 2, 1, 0], [5, 4, 6, 7], [8, 9, 10, 11]]
    assert torch.equal(reverse(reverse(x, mask), mask), x)


def test_gradients_reach_the_real_positions_only():
    mask = torch.tensor([[False, True, True], [True, False, False]])
    for pack in (take, lambda x, m: pool_words(x, m, torch.tensor([[-1, 0, 0], [3, -1, -1]]))):
        x = torch.randn(2, 3, 2, requires_grad=True)
        pack(x, mask)[0].sum().backward()
        assert (x.grad[mask] > 0).all()
        assert not x.grad[~mask].any()
