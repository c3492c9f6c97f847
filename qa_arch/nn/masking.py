"""Masks (True = real) and everything that is done with them.

All functions are defined, with finite gradients, for a row in which nothing is real.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def fill(scores: Float[Tensor, ...], mask: Bool[Tensor, ...], value: float = -math.inf) -> Float[Tensor, ...]:
    """``scores`` where ``mask`` is True, ``value`` (by default -inf) elsewhere; shapes broadcast."""
    return scores.masked_fill(~mask, value)


def masked_softmax(scores: Float[Tensor, ...], mask: Bool[Tensor, ...], dim: int = -1) -> Float[Tensor, ...]:
    """Softmax over the real entries; exactly 0 elsewhere, and everywhere in a row without any."""
    # The lowest finite number in place of -inf: a row of -inf would be NaN, forwards and backwards.
    return fill(fill(scores, mask, torch.finfo(scores.dtype).min).softmax(dim), mask, 0.0)


def masked_logsumexp(scores: Float[Tensor, "*R N"], mask: Bool[Tensor, "*R N"]) -> Float[Tensor, "*R"]:
    """Log-sum-exp over the real entries of the last axis; 0 for a row without any."""
    total = fill(scores, mask, torch.finfo(scores.dtype).min).logsumexp(-1)
    return fill(total, mask.any(-1), 0.0)


def at_least_float32(x: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """``x`` in fp32 where it came in half precision: sums of exponentials and recurrences need it."""
    return x if x.dtype == torch.float64 else x.float()


def scored(linear: nn.Linear, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R S"]:
    """``linear(x)`` in fp32 even under autocast: half precision knows 128 scores between 1 and 2."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(at_least_float32(x))
