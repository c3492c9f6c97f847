"""The losses of span and sequence models, against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from qa_arch.nn.losses import ChoiceLoss, SequenceLoss, SpanLoss, snap_outward
from qa_arch.types.tensors import SpanLabels, SpanLogits, StepLogits

NO = -math.inf
span_loss, sequence_loss, choice_loss = SpanLoss(), SequenceLoss(), ChoiceLoss()


def labels(start: int, end: int, answerable: bool = True, weight: float = 1.0) -> SpanLabels:
    return SpanLabels(
        torch.tensor([start]), torch.tensor([end]), torch.tensor([answerable]), torch.tensor([weight])
    )


# exp of the start scores: 2 + 6 on tokens 1 and 2, 2 for the null; of the end scores: 1 + 3, 4.
LOGITS = SpanLogits(
    start=torch.tensor([[NO, math.log(2), math.log(6), NO]]),
    end=torch.tensor([[NO, math.log(1), math.log(3), NO]]),
    null_start=torch.tensor([math.log(2)]),
    null_end=torch.tensor([math.log(4)]),
)


@pytest.mark.parametrize(
    ("gold", "start_share", "end_share"),
    [
        (labels(1, 2), 2 / 10, 3 / 8),
        (labels(2, 2), 6 / 10, 3 / 8),
        (labels(1, 1), 2 / 10, 1 / 8),
        (labels(0, 0, answerable=False), 2 / 10, 4 / 8),
        (labels(2, 2, answerable=False), 2 / 10, 4 / 8),  # the position means nothing then
    ],
)
def test_cross_entropy_with_the_null_beside_the_tokens(gold, start_share, end_share):
    expected = -(math.log(start_share) + math.log(end_share)) / 2
    assert span_loss(LOGITS, gold).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("answerable", "sign"), [(False, -1), (True, 1)])
def test_the_verifier_adds_its_own_term(answerable, sign):
    """Its log-odds are of "no answer", so a positive one is cheap where there is none."""
    judged = replace(LOGITS, verifier=torch.tensor([1.5]), verifier_weight=3.0)
    gold = labels(1, 2, answerable=answerable)
    added = span_loss(judged, gold) - span_loss(LOGITS, gold)
    # The weight is of decoding alone.
    assert added.item() == pytest.approx(math.log1p(math.exp(sign * 1.5)), rel=1e-5)


def test_the_loss_is_one_number_a_window_and_never_infinite():
    nulls = LOGITS.null_start.repeat(2), LOGITS.null_end.repeat(2)
    both = SpanLogits(LOGITS.start.repeat(2, 1), LOGITS.end.repeat(2, 1), *nulls)
    gold = SpanLabels(
        torch.tensor([1, 0]), torch.tensor([2, 3]), torch.tensor([True, True]), torch.tensor([1.0, 0.0])
    )
    found = span_loss(both, gold)
    assert found.shape == (2,)
    assert found[0] == span_loss(LOGITS, labels(1, 2))[0]
    assert found.isfinite().all()  # a gold on closed tokens counts as no answer


def test_a_model_that_scores_words_learns_the_whole_word():
    """Starts are open on tokens 1 and 3, ends on 2 and 4; a gold inside a word is widened to it."""
    scores = torch.zeros(1, 6)
    start = scores.masked_fill(torch.tensor([[1, 0, 1, 0, 1, 1]]).bool(), NO)
    end = scores.masked_fill(torch.tensor([[1, 1, 0, 1, 0, 1]]).bool(), NO)
    start[0, 1], end[0, 4] = 2.0, 3.0
    logits = SpanLogits(start, end, torch.zeros(1), torch.zeros(1))
    wide = span_loss(logits, labels(1, 4))
    assert torch.equal(span_loss(logits, labels(2, 3)), wide)
    assert not torch.equal(span_loss(logits, labels(3, 3)), wide)
    assert not torch.equal(span_loss(logits, labels(2, 2)), wide)


@pytest.mark.parametrize(
    ("gold", "before", "position", "found"),
    [(1, True, 1, True), (2, True, 1, True), (0, True, 0, False), (4, True, 3, True),
     (1, False, 1, True), (2, False, 3, True), (4, False, 0, False), (0, False, 1, True)],
)  # fmt: skip
def test_the_nearest_open_position_on_the_right_side(gold, before, position, found):
    open_positions = torch.tensor([[False, True, False, True, False]])
    where, there = snap_outward(torch.tensor([gold]), open_positions, before=before)
    assert (where.item(), there.item()) == (position, found)


# exp of the scores at each of three steps: tokens 1 and 2 (0 and 3 are no words), and the stop.
STEPS = StepLogits(
    token=torch.tensor([[[NO, math.log(a), math.log(b), NO] for a, b in ((2, 3), (1, 5), (6, 2))]]),
    stop=torch.tensor([[math.log(5), math.log(4), math.log(2)]]),
)


@pytest.mark.parametrize(
    ("gold", "shares"),
    [
        (labels(1, 2), (2 / 10, 5 / 10, 2 / 10)),  # token 1, token 2, stop
        (labels(2, 2), (3 / 10, 4 / 10)),  # token 2, stop
        (labels(0, 0, answerable=False), (5 / 10,)),  # stop at once
        (labels(2, 2, answerable=False), (5 / 10,)),
        (labels(1, 3), (2 / 10, 5 / 10)),  # token 3 is none: passed over, and no step is left for the stop
        (labels(2, 3), (3 / 10, 2 / 10)),
    ],
)
def test_a_sequence_is_its_tokens_in_order_and_the_stop(gold, shares):
    expected = -sum(math.log(share) for share in shares)
    assert sequence_loss(STEPS, gold).item() == pytest.approx(expected, rel=1e-6)


def test_an_answer_beyond_the_last_step_is_learned_as_far_as_it_goes():
    short = StepLogits(STEPS.token[:, :1], STEPS.stop[:, :1])
    assert sequence_loss(short, labels(1, 2)).item() == pytest.approx(-math.log(2 / 10))


def test_the_gradient_of_a_sequence_is_finite_where_scores_are_not():
    token = STEPS.token.clone().requires_grad_()
    sequence_loss(StepLogits(token, STEPS.stop), labels(1, 3)).sum().backward()
    assert torch.isfinite(token.grad).all()


@pytest.mark.parametrize(
    ("right", "offered", "share"),
    [
        ([0, 1, 0, 0], [1, 1, 1, 1], 3 / 10),
        ([0, 1, 0, 0], [1, 1, 1, 0], 3 / 6),
        ([1, 1, 0, 0], [1, 1, 1, 1], 4 / 10),  # two right ones have their probability together
        ([0, 0, 0, 0], [1, 1, 1, 1], 1),  # nothing right, nothing to learn
    ],
)
def test_a_choice_is_a_softmax_over_what_is_offered(right, offered, share):
    scores = torch.tensor(
        [[math.log(n) if yes else NO for n, yes in zip((1, 3, 2, 4), offered, strict=True)]]
    )
    scores.requires_grad_()
    labels = SimpleNamespace(right=torch.tensor([right]).bool(), offered=torch.tensor([offered]).bool())
    found = choice_loss(scores, labels)
    assert found.item() == pytest.approx(-math.log(share), abs=1e-6)
    found.sum().backward()
    assert torch.isfinite(scores.grad).all()
