"""Masked operations (True = real), and operations that need a given precision.

All functions are defined, with finite gradients, for rows without a real entry.
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
    """Softmax over the real entries of the last axis; exactly 0 elsewhere, and for a row without any."""
    # The lowest finite number instead of -inf: a row of -inf would give NaN, forward and backward.
    return fill(fill(scores, mask, torch.finfo(scores.dtype).min).softmax(-1), mask, 0.0)


def masked_logsumexp(scores: Float[Tensor, "*R N"], mask: Bool[Tensor, "*R N"]) -> Float[Tensor, "*R"]:
    """Log-sum-exp over the real entries of the last axis; 0 for a row without any."""
    total = fill(scores, mask, torch.finfo(scores.dtype).min).logsumexp(-1)
    return fill(total, mask.any(-1), 0.0)


def at_least_float32(x: Float[Tensor, ...]) -> Float[Tensor, ...]:
    """``x`` in fp32 unless it is fp64: sums of exponentials and recurrences need it."""
    return x if x.dtype == torch.float64 else x.float()


def linear_fp32(linear: nn.Linear, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R S"]:
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
    """Fused attention ``attend(q, k, v, mask)``, in fp32 if its bf16 backward is slow.

    On a CPU the backward pass of the fused kernel takes 1.1 (T = 384) to 2.6 (T = 96) times as long in
    bf16 as in fp32 (``benchmarks/attention_backward.py``), so training casts around it. With dropout there is
    no fused kernel, and nothing is cast.
    """
    slow = q.device.type == "cpu" and q.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if not slow or dropout:
        return attend(q, k, v, mask)
    if mask is not None and mask.is_floating_point():
        mask = mask.float()
    with torch.autocast("cpu", enabled=False):
        return attend(q.float(), k.float(), v.float(), mask).bfloat16()
