"""AdamW as Loshchilov & Hutter 2019 write it, step by step beside the one that trains."""

from __future__ import annotations

import pytest
import torch
from families import OURS
from torch import nn

from qa_arch.nn.encoder_factory import build_encoder
from qa_arch.training.optim import make_optimizer, parameter_groups, schedule

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8

pytestmark = pytest.mark.skipif(not OURS, reason="reads by our Transformer")


class AdamW:
    """Algorithm 2, line by line; alpha is 1, so that eta is the scheduled learning rate of a parameter."""

    def __init__(self, theta: torch.Tensor) -> None:
        self.theta = theta.detach().clone()
        self.t, self.m, self.v = 0, torch.zeros_like(theta), torch.zeros_like(theta)

    def step(self, g: torch.Tensor, *, eta: float, decay: float) -> None:
        self.t += 1
        self.m = BETA_1 * self.m + (1 - BETA_1) * g  # line 7
        self.v = BETA_2 * self.v + (1 - BETA_2) * g**2  # line 8
        m_hat = self.m / (1 - BETA_1**self.t)  # line 9
        v_hat = self.v / (1 - BETA_2**self.t)  # line 10
        self.theta = self.theta - eta * (m_hat / (v_hat.sqrt() + EPSILON) + decay * self.theta)  # line 12


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"layers": 2, "width": 8, "heads": 2, "vocab_size": 11, "max_positions": 6, "pad_token_id": 0}
        dropout = {"attention_dropout": 0.0, "hidden_dropout": 0.0}
        self.encoder = build_encoder(
            init="random", family="qa_transformer", initializer_range=0.3, **sizes, **dropout
        )
        self.head = nn.Linear(8, 1)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(ids, dtype=torch.bool)
        return self.head(self.encoder(ids, mask, torch.zeros_like(ids)).double()).pow(3).sum()


@pytest.mark.parametrize("fused", [True, False])
def test_every_step_is_that_of_algorithm_2(fused):
    """With groups of their own rate and decay, under warm-up and decay of the rate."""
    torch.manual_seed(0)
    model = Model().double()
    lr, head_lr, decay, layer_decay, steps = 0.02, 0.05, 0.3, 0.5, 12
    groups = parameter_groups(model, lr=lr, head_lr=head_lr, weight_decay=decay, layer_decay=layer_decay)
    optimizer = make_optimizer("adamw", groups, fused=fused)
    rates = schedule(optimizer, "linear", steps=steps, warmup=0.25)
    reference = {name: AdamW(parameter) for name, parameter in model.named_parameters()}
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(torch.randint(1, 11, (3, 6))).backward()
        share = (step + 1) / 3 if step < 3 else (steps - step) / (steps - 3)
        for name, parameter in model.named_parameters():
            eta = head_lr if name.startswith("head") else lr * layer_decay ** (2 - depth(name))
            weights = decay if parameter.ndim > 1 else 0.0
            reference[name].step(parameter.grad, eta=share * eta, decay=weights)
        optimizer.step()
        rates.step()
        for name, parameter in model.named_parameters():
            expected = reference[name].theta
            torch.testing.assert_close(parameter.data, expected, rtol=1e-9, atol=1e-12, msg=f"{step} {name}")


def depth(name: str) -> int:
    """0 for embeddings, else the number of the layer."""
    _, _, rest = name.partition("blocks.")
    return 1 + int(rest[0]) if rest else 0
