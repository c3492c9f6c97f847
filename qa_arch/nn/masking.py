"""Masks (True = real) and everything that is done with them, in the precision that it needs.

All functions are defined, with finite gradients, for a row in which nothing is real.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


def fill(scores: Float[Tensor, ...], mask: Bool[Tensor, ...], value: float = -math.inf) -> Float[Tensor, ...]:
    """``scores`` where ``mask`` is True, ``value`` (by default -inf) elsewhere; shapes broadcast."""
    return scores.masked_fill(~mask, value)


def masked_softmax(scores: Float[Tensor, ...], mask: Bool[Tensor, ...]) -> Float[Tensor, ...]:
    """Softmax over the real entries of the last axis; exactly 0 elsewhere, also in a row without any."""
    # The lowest finite number in place of -inf: a row of -inf would be NaN, forwards and backwards.
    return fill(fill(scores, mask, torch.finfo(scores.dtype).min).softmax(-1), mask, 0.0)


def masked_logsumexp(scores: Float[Tensor, "*R N"], mask: Bool[Tensor, "*R N"]) -> Float[Tensor, "*R"]:
    """Log-sum-exp over the real entries of the last axis; 0 for a row without any."""
    total = fill(scores, mask, torch.finfo(scores.dtype).min).logsumexp(-1)
    return fill(total, mask.any(-1), 0.0)


def at_least_float32(x: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """``x`` in fp32 where it came in half precision: sums of exponentials and recurrences need it."""
    return x if x.dtype == torch.float64 else x.float()


def scored(linear: nn.Linear, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R S"]:
    """``linear(x)`` in fp32 even under autocast: half precision has only 128 values between 1 and 2."""
    with torch.autocast(x.device.type, enabled=False):
        return linear(at_least_float32(x))


def fast_attention(
    attend: Callable[..., Tensor],
    q: Float[Tensor, "B N T D"],
    k: Float[Tensor, "B M S D"],
    v: Float[Tensor, "B M S D"],
    mask: Tensor | None,
    *,
    dropout: float,
) -> Tensor:
    """``attend(q, k, v, mask)``, a fused attention, in fp32 where its bf16 backward is slow.

    On a CPU the backward pass of the fused kernel takes 1.1 (T = 384) to 2.6 (T = 96) times as long in
    bf16 as in fp32 (``benchmarks/attention_backward.py``), so training casts around it. Dropout
    leaves the fused kernel, and is left as it is.
    """
    slow = q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if not slow or dropout:
        return attend(q, k, v, mask)
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    with torch.autocast("cpu", enabled=False):
        return attend(q.float(), k.float(), v.float(), mask).bfloat16()
