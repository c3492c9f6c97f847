"""Masked reductions against plain arithmetic, and span heads against Wang & Jiang's equations 7-11."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from qa_arch.nn.heads import LinearHead, neutral_null
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
from qa_arch.nn.pointer import AnswerPointer, PointerHead

MASK = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4])


def test_masked_softmax_equals_plain_arithmetic():
    scores = torch.randn(3, 4, dtype=torch.float64) * 3
    weights, total = masked_softmax(scores, MASK), neutral_null(scores, MASK)
    for row in (0, 2):
        powers = [math.exp(score) for score in scores[row][MASK[row]].tolist()]
        assert weights[row][MASK[row]].tolist() == pytest.approx([power / sum(powers) for power in powers])
        assert total[row].item() == pytest.approx(math.log(sum(powers)))
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
    row = st.lists(st.booleans(), min_size=T, max_size=T)
    mask = torch.tensor(draw(st.lists(row, min_size=B, max_size=B)))
    word = torch.full((B, T), -1)
    for b in range(B):
        number = draw(st.integers(0, 5))
        for t in range(T):
            if mask[b, t]:
                word[b, t] = number = number + draw(st.integers(0, 1))
    return mask, word


@settings(max_examples=30, deadline=None)
@given(windows())
def test_put_inverts_take(window):
    mask, _ = window
    x = torch.arange(mask.numel() * 2, dtype=torch.float64).view(*mask.shape, 2) + 1
    packed, packed_mask = take(x, mask)
    counts = mask.sum(1)
    assert packed.shape[1] == max(1, int(counts.max()))
    assert torch.equal(packed_mask, torch.arange(packed.shape[1]) < counts[:, None])
    for row in range(len(mask)):
        assert torch.equal(packed[row][packed_mask[row]], x[row][mask[row]])
    assert not packed[~packed_mask].any()
    back = put(packed[..., 0], mask, -math.inf)
    assert torch.equal(back, x[..., 0].masked_fill(~mask, -math.inf))


@settings(max_examples=30, deadline=None)
@given(windows())
def test_pooled_words_are_means_of_their_pieces(window):
    mask, word = window
    x = torch.randn(*mask.shape, 3, dtype=torch.float64)
    pooled, pooled_mask = pool_words(x, mask, word)
    first, last = first_pieces(mask, word), last_pieces(mask, word)
    for row in range(len(mask)):
        pieces: dict[int, list[int]] = {}
        for t in mask[row].nonzero()[:, 0].tolist():
            pieces.setdefault(int(word[row, t]), []).append(t)
        expected = [x[row, ts].mean(0) for ts in pieces.values()]
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


LENGTHS = [6, 2, 4]
"""Context length of each window of the batch."""


def random_head(kind: type, **options: Any) -> tuple[Any, Tensor, Tensor]:
    """A head, context ``(3, 6, 8)`` and mask ``(3, 6)``, all in double precision."""
    torch.manual_seed(1)
    head = kind(8, 5, **options).double()
    for parameter in head.parameters():
        parameter.data.normal_(0.0, 0.5)
    context = torch.randn(3, 6, 8, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    return head, context, mask


def reference(
    pointer: AnswerPointer, rows: list[Tensor], added: tuple[Tensor, ...] | None = None
) -> tuple[Tensor, Tensor]:
    """Start and end scores over ``rows`` by the equations, plus ``added`` at each step."""
    h = c = torch.zeros(pointer.state.in_features, dtype=torch.float64)
    scores = []
    for k in range(2):
        step = [pointer.score(torch.tanh(pointer.memory(row) + pointer.state(h))) for row in rows]
        if added is not None:
            step = [score + more for score, more in zip(step, added[k], strict=True)]
        scores.append(torch.cat(step))
        weights = [score.exp() / sum(s.exp() for s in step) for score in step]
        read = sum(weight * row for weight, row in zip(weights, rows, strict=True))
        cell = pointer.cell
        gates = cell.weight_ih @ read + cell.bias_ih + cell.weight_hh @ h + cell.bias_hh
        i, f, g, o = gates.chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return scores[0], scores[1]


@pytest.mark.parametrize("null", ["zeros", "given", "neutral"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shortcut", [False, True])
def test_scores_and_sentinel_follow_the_equations(bidirectional, null, shortcut):
    """Without a sentinel the null is neutral."""
    options = {"bidirectional": bidirectional, "shortcut": shortcut}
    head, context, mask = random_head(PointerHead, sentinel=null != "neutral", **options)
    nothing = torch.randn(3, 8, dtype=torch.float64) if null == "given" else None
    scores = head(context.masked_fill(~mask[..., None], 1e3), mask, nothing)
    for i, length in enumerate(LENGTHS):
        last = [] if null == "neutral" else [torch.zeros(8).double() if nothing is None else nothing[i]]
        rows = [*context[i, :length], *last]
        linear = tuple(head.shortcut(torch.stack(rows)).T) if shortcut else None
        start, end = reference(head.forwards, rows, linear)
        if bidirectional:
            end_first, start_second = reference(head.backwards, rows, linear and linear[::-1])
            start, end = (start + start_second) / 2, (end + end_first) / 2
        expected = torch.stack([start, end])
        expected_null = expected[:, -1] if last else expected.logsumexp(1)
        actual = torch.stack([scores.start[i, :length], scores.end[i, :length]])
        torch.testing.assert_close(actual, expected[:, :length], rtol=0, atol=1e-10)
        actual_null = torch.stack([scores.null_start[i], scores.null_end[i]])
        torch.testing.assert_close(actual_null, expected_null, rtol=0, atol=1e-10)
        assert (scores.start[i, length:] == -math.inf).all()
        assert (scores.end[i, length:] == -math.inf).all()


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sentinel", [False, True])
def test_initial_pointer_with_shortcut_equals_linear_head(bidirectional, sentinel):
    torch.manual_seed(3)
    head = PointerHead(8, 5, sentinel=sentinel, bidirectional=bidirectional, shortcut=True)
    linear = LinearHead(8, sentinel=sentinel)
    linear.score.load_state_dict(head.shortcut.state_dict())
    context, nothing = torch.randn(3, 6, 8), torch.randn(3, 8)
    mask = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    for actual, expected in zip(head(context, mask, nothing), linear(context, mask, nothing), strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0.05)


def test_neutral_null_leaves_gradients_unchanged():
    scores = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    real = scores.masked_fill(~mask, -math.inf)
    with_null = torch.cat([real, neutral_null(scores, mask)[:, None]], dim=1)
    gold = torch.tensor([4, 1])
    losses = [torch.nn.functional.cross_entropy(x, gold) for x in (real, with_null)]
    torch.testing.assert_close(losses[1], losses[0] + math.log(2))
    expected, actual = (torch.autograd.grad(x, scores, retain_graph=True)[0] for x in losses)
    torch.testing.assert_close(actual, expected)
    unanswerable = torch.nn.functional.cross_entropy(with_null, torch.tensor([5, 5]))
    torch.testing.assert_close(unanswerable, torch.tensor(math.log(2)))
    assert torch.autograd.grad(unanswerable, scores)[0].abs().max() < 1e-6


@pytest.mark.parametrize(
    "head", [PointerHead(8, 5, sentinel=False), LinearHead(8, sentinel=False), PointerHead(8, 5)]
)
def test_window_without_context_is_finite(head):
    context = torch.randn(2, 4, 8, requires_grad=True)
    mask = torch.tensor([[True] * 4, [False] * 4])
    scores = head(context, mask)
    assert torch.isfinite(scores.null_start).all()
    assert (scores.start[1] == -math.inf).all()
    (scores.start[0].sum() + scores.end[0].sum() + scores.null_start.sum() + scores.null_end.sum()).backward()
    assert torch.isfinite(context.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in head.parameters())
