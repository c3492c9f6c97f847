"""The losses over candidates against numbers worked out by hand, and how a config chooses them."""

from __future__ import annotations

import math
import re
from dataclasses import asdict

import pytest
import torch

from qa_arch.cli.compose import compose
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.errors import ConfigError
from qa_arch.extras.selection.models import ChoiceLoss, HingeLoss
from qa_arch.nn.losses import build_loss
from qa_arch.types.tensors import SelectionBatch

NO = -math.inf


def batch_of(right: list[int], offered: list[int]) -> SelectionBatch:
    """One question of one word; the losses read ``right`` and ``offered`` alone."""
    word, mask = torch.ones(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    return SelectionBatch(
        index=torch.zeros(1, dtype=torch.int64),
        question=word,
        question_mask=mask,
        answer=word,
        answer_mask=mask,
        candidate=torch.zeros(1, len(right), dtype=torch.int64),
        offered=torch.tensor([offered]).bool(),
        right=torch.tensor([right]).bool(),
        weight=torch.ones(1),
    )


@pytest.mark.parametrize(
    ("scores", "right", "offered", "loss"),
    [
        ([0.5, 0.1, 0.4], [1, 0, 0], [1, 1, 1], 0.1),  # 0.2 - 0.5 + 0.4: the hardest wrong one
        ([0.5, 0.1, 0.2], [1, 0, 0], [1, 1, 1], 0.0),
        ([0.1, 0.6, 0.3], [1, 0, 1], [1, 1, 1], 0.5),  # the best right one
        ([0.1, 0.6, NO], [1, 0, 0], [1, 1, 0], 0.7),
        ([0.1, NO, NO], [1, 0, 0], [1, 0, 0], 0.0),  # nothing wrong was offered
        ([0.1, 0.3, NO], [0, 0, 0], [1, 1, 0], 0.0),  # nothing right either
    ],
)
def test_the_hinge_loss_by_hand(scores, right, offered, loss):
    given = torch.tensor([scores], requires_grad=True)
    losses = HingeLoss(0.2)(given, batch_of(right, offered))
    assert losses.tolist() == [pytest.approx(loss)]
    losses.sum().backward()
    assert torch.isfinite(given.grad).all()
    if loss:
        assert given.grad.abs().sum() == 2


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
    actual = ChoiceLoss()(scores, batch_of(right, offered))
    assert actual.item() == pytest.approx(-math.log(share), abs=1e-6)
    actual.sum().backward()
    assert torch.isfinite(scores.grad).all()


@pytest.mark.parametrize(
    ("model", "choice", "expected"),
    [("qa_lstm/c", "hinge", HingeLoss(0.3)), ("question_types", "choice", ChoiceLoss())],
)
def test_each_task_has_its_loss_and_naming_it_changes_nothing(model, choice, expected):
    left_out, named = (
        validate(compose([f"model={model}", "selection.margin=0.3", *more]))
        for more in ([], [f"loss={choice}"])
    )
    assert build_loss(left_out) == build_loss(named) == expected
    assert named == left_out
    assert config_hash(asdict(named)) == config_hash(asdict(left_out))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["loss=hinge"], "loss._target_: HingeLoss is a loss for task selection or classification"),
        (["model=qa_lstm/c", "loss=hinge", "+loss.margin=1"], "unknown setting 'loss.margin'"),
    ],
)
def test_what_is_wrong_with_a_loss_is_named(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_loss(validate(compose(overrides)))
