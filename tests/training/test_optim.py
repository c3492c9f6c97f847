"""Parameter groups, schedules and optimizers, checked against values computed by hand."""

import pytest
import torch
from torch import nn

from qa_arch.nn.encoder import WordEncoder
from qa_arch.training.module import make_optimizer, parameter_groups, schedule


class Deep(WordEncoder):
    """An embedding and two layers."""

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Deep()
        self.head = nn.Linear(2, 2)


def rates(model: nn.Module, **settings) -> dict[str, tuple[float, float]]:
    """Parameter name -> (learning rate, weight decay)."""
    names = {id(p): name for name, p in model.named_parameters()}
    defaults = {"lr": 1.0, "head_lr": None, "weight_decay": 0.1}
    groups = parameter_groups(model, **(defaults | settings))
    return {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}


def test_head_has_its_own_rate():
    actual = rates(Model(), head_lr=5.0)
    assert actual == {
        "encoder.embedding.weight": (1.0, 0.1),
        "encoder.layers.0.weight": (1.0, 0.1),
        "encoder.layers.0.bias": (1.0, 0.0),
        "encoder.layers.1.weight": (1.0, 0.1),
        "encoder.layers.1.bias": (1.0, 0.0),
        "head.weight": (5.0, 0.1),
        "head.bias": (5.0, 0.0),
    }


def test_other_modules_named_encoder_belong_to_the_head():
    model = Model()
    model.encoder = nn.LSTM(2, 2)
    assert {rate for rate, _ in rates(model, head_lr=5.0).values()} == {5.0}


def test_frozen_parameters_are_in_no_group():
    model = Model()
    model.encoder.embedding.requires_grad_(False)
    assert "encoder.embedding.weight" not in rates(model)
    assert len(rates(model)) == 6


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.853553, 0.5, 0.146447, 0.0]),
    ],
)
def test_schedule_factor_at_each_step(kind, expected):
    """Six steps, a third of them warm-up: the first step is not zero, the factor after the last one is."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2.0)
    scheduler = schedule(optimizer, kind, steps=6, warmup=1 / 3)
    actual = []
    for _ in range(7):
        actual.append(optimizer.param_groups[0]["lr"] / 2.0)
        optimizer.step()
        scheduler.step()
    assert actual == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("name", "kind"), [("adamw", torch.optim.AdamW), ("adamax", torch.optim.Adamax)])
def test_optimizer_has_its_name(name, kind):
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": 0.002, "weight_decay": 0.0}]
    assert type(make_optimizer(name, groups, fused=name == "adamw")) is kind
