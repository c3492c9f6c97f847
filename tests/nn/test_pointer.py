"""The answer pointer against Wang & Jiang's equations 7-11 written out, one example at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from qa_arch.nn.heads import LinearHead, neutral_null
from qa_arch.nn.pointer import AnswerPointer, PointerHead

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
    width = pointer.state.in_features
    h = c = torch.zeros(width, dtype=torch.float64)
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


@pytest.mark.parametrize("row", ["zeros", "given"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("shortcut", [False, True])
def test_scores_and_sentinel_follow_the_equations(bidirectional, row, shortcut):
    head, context, mask = random_head(
        PointerHead, sentinel=True, bidirectional=bidirectional, shortcut=shortcut
    )
    nothing = torch.randn(3, 8, dtype=torch.float64) if row == "given" else None
    scores = head(context.masked_fill(~mask[..., None], 1e3), mask, nothing)
    for i, length in enumerate(LENGTHS):
        last = torch.zeros(8, dtype=torch.float64) if nothing is None else nothing[i]
        rows = [*context[i, :length], last]
        linear = tuple(head.shortcut(torch.stack(rows)).T) if shortcut else None
        start, end = reference(head.forwards, rows, linear)
        if bidirectional:
            end_first, start_second = reference(head.backwards, rows, linear and linear[::-1])
            start, end = (start + start_second) / 2, (end + end_first) / 2
        expected = torch.stack([start, end])
        actual = torch.stack([scores.start[i, :length], scores.end[i, :length]])
        torch.testing.assert_close(actual, expected[:, :-1], rtol=0, atol=1e-10)
        torch.testing.assert_close(
            torch.stack([scores.null_start[i], scores.null_end[i]]), expected[:, -1], rtol=0, atol=1e-10
        )
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


def test_without_sentinel_the_null_is_neutral():
    head, context, mask = random_head(PointerHead, sentinel=False)
    scores = head(context, mask)
    for i, length in enumerate(LENGTHS):
        start, end = reference(head.forwards, list(context[i, :length]))
        torch.testing.assert_close(scores.start[i, :length], start, rtol=0, atol=1e-10)
        torch.testing.assert_close(scores.end[i, :length], end, rtol=0, atol=1e-10)
        torch.testing.assert_close(scores.null_end[i], end.logsumexp(0), rtol=0, atol=1e-10)


def test_neutral_null_leaves_gradients_unchanged():
    scores = torch.randn(2, 5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    real = scores.masked_fill(~mask, -math.inf)
    with_null = torch.cat([real, neutral_null(scores, mask)[:, None]], dim=1)
    gold = torch.tensor([4, 1])
    plain_loss = torch.nn.functional.cross_entropy(real, gold)
    with_null_loss = torch.nn.functional.cross_entropy(with_null, gold)
    torch.testing.assert_close(with_null_loss, plain_loss + math.log(2))
    expected, actual = (
        torch.autograd.grad(x, scores, retain_graph=True)[0] for x in (plain_loss, with_null_loss)
    )
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


def test_linear_head_scores_the_null_row_like_a_token():
    head = LinearHead(8)
    context, mask = torch.randn(2, 4, 8), torch.tensor([[True] * 4, [True, True, False, False]])
    nothing = torch.randn(2, 8)
    scores = head(context, mask, nothing)
    torch.testing.assert_close(torch.stack([scores.null_start, scores.null_end], -1), head.score(nothing))
    torch.testing.assert_close(scores.end[0], head.score(context[0])[:, 1])
    assert (scores.end[1, 2:] == -math.inf).all()
