"""The arithmetic of a plan, against torch's own optimizers and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from qa_arch.errors import ConfigError
from qa_arch.training.optim import make_optimizer
from qa_arch.training.plan.live import LinearMemory, LiveBytes
from qa_arch.training.plan.memory import HEADROOM, Demand, States, batch_splits, largest_fit, states


@pytest.fixture
def model():
    built = nn.Sequential(nn.Linear(64, 300), nn.Linear(300, 64))
    built[0].bias.requires_grad_(False)
    built.register_buffer("vectors", torch.zeros(7, 50))
    return built


@pytest.mark.parametrize(("name", "fused"), [("adamw", True), ("adamw", False), ("adamax", False)])
def test_states_are_those_of_the_optimizer(model, name, fused):
    """To the byte; and what a step takes besides, to a hundredth."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(name, [{"params": trained, "lr": 1e-3}], fused=fused)
    for group in optimizer.param_groups:
        group["foreach"] = not fused  # what torch chooses by itself on a GPU
    model[1](model[0](torch.ones(2, 64))).sum().backward()
    optimizer.step()
    result = states(model, optimizer=name, bits=32, fused=fused, world=1)
    assert result.gradients == sum(p.grad.nbytes for p in trained)
    assert result.optimizer == sum(v.nbytes for state in optimizer.state.values() for v in state.values())
    assert result.weights == sum(p.nbytes for p in model.parameters())
    assert result.vectors == 7 * 50 * 4
    assert result.exchange == 0
    with LiveBytes() as counter:
        optimizer.step()
    assert max(counter.series) == pytest.approx(result.step, rel=0.01, abs=500)


def test_moments_of_8_bits():
    """bitsandbytes: two bytes a value and a float for each block of 256; below 4,096 values two floats."""
    model = nn.Linear(64, 100)
    result = states(model, optimizer="adamw", bits=8, fused=True, world=1)
    assert result.optimizer == 2 * (6400 + 4 * 25) + 2 * 4 * 100
    assert result.step == 0


def test_ranks_exchange_gradients(model):
    item, two = (states(model, optimizer="adamw", bits=32, fused=True, world=n) for n in (1, 2))
    assert (item.exchange, two.exchange) == (0, two.gradients)
    assert two.resident == item.resident + two.gradients


def demand(*, row: int = 100, reading_row: int = 10, gradients: int = 40, step: int = 0) -> Demand:
    """A pass that holds ``row`` bytes a row, and at its end the gradients."""
    held = States(weights=40, vectors=5, gradients=gradients, optimizer=80, step=step, exchange=0)
    training = LinearMemory(
        np.array([2 * row, gradients]), np.array([3 * row, gradients]), np.array([0, gradients])
    )
    reading = LinearMemory(np.array([2 * reading_row]), np.array([3 * reading_row]), np.array([0]))
    return Demand(held, training, reading, reading_rows=8, process=1000)


def test_the_fullest_moment_by_hand():
    always = 1000 + 40 + 5 + 80
    assert demand().total(4, 1) == always + 400
    assert demand().total(4, 2) == always + 400 + 40  # the first part has left its gradients
    assert demand(row=1).total(4, 1) == always + 40 + 80  # reading 8 windows
    assert demand(row=1, step=90).total(4, 1) == always + 40 + 90
    assert demand().activations(4, 2) == 400


def test_more_windows_never_take_less():
    for kind in (demand(), demand(row=1), demand(row=7, step=60)):
        sizes = [kind.total(rows, 2) for rows in range(1, 50)]
        assert sizes == sorted(sizes)


def test_splits_keep_the_batch():
    for whole in range(1, 65):
        result = batch_splits(whole)
        assert all(split.micro * split.accumulate == whole for split in result)
        assert [split.micro for split in result] == [n for n in range(whole, 0, -1) if whole % n == 0]


@pytest.mark.parametrize("whole", [1, 7, 24, 30, 64])
def test_the_largest_part_that_fits(whole):
    kind, before = demand(), 0
    for room in range(2000, 9000, 50):
        result = largest_fit(kind, whole, room)
        assert result.micro * result.accumulate == whole
        assert kind.total(result.micro, result.accumulate) <= HEADROOM * room
        larger = [split for split in batch_splits(whole) if split.micro > result.micro]
        assert all(kind.total(split.micro, split.accumulate) > HEADROOM * room for split in larger)
        assert result.micro >= before
        before = result.micro


def test_a_token_budget_is_cut_in_tokens():
    result = largest_fit(demand(), 4096, 2500, row=128)
    assert result.micro * result.accumulate == 4096
    assert result.micro == 512  # 4 windows: 1125 + 400 + 40, of 1625
    assert result.overrides("token_budget") == ["trainer.token_budget=512", "trainer.accumulate=8"]


def test_not_even_one_window():
    with pytest.raises(ConfigError, match=r"--memory: one window at a time needs .*gradient_checkpointing"):
        largest_fit(demand(), 24, 1200)
