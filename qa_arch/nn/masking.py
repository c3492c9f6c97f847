"""Masked operations (True = real), and maps between a window's token axis and the axis of one of its texts.

Axes: ``B`` batch, ``T`` tokens of a window, ``K`` units of one text. Everything is vectorised over the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


def fill(scores: Float[Tensor, ...], mask: Bool[Tensor, ...], value: float = -math.inf) -> Float[Tensor, ...]:
    """``scores`` where ``mask`` is True, ``value`` (by default -inf) elsewhere; shapes broadcast."""
    return scores.masked_fill(~mask, value)


def masked_softmax(scores: Float[Tensor, ...], mask: Bool[Tensor, ...]) -> Float[Tensor, ...]:
    """Softmax over the real entries of the last axis; exactly 0 elsewhere, and for a row without any."""
    # The lowest finite number instead of -inf: a row of -inf would give NaN, forward and backward.
    return fill(fill(scores, mask, torch.finfo(scores.dtype).min).softmax(-1), mask, 0.0)


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


def take(
    x: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B K H"], Bool[Tensor, "B K"]]:
    """Pack the positions where ``mask`` is True to the front, in order, followed by zeros.

    ``K`` is the largest number of True positions in a row, at least 1.
    """
    packed_mask = _prefix_mask(mask.sum(1), mask.shape[1])
    # A stable sort moves the True positions to the front and keeps their order.
    order = mask.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, : packed_mask.shape[1]]
    return select(x, order).masked_fill(~packed_mask[..., None], 0.0), packed_mask


def select(x: Float[Tensor, "B T H"], position: Int[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
    """The positions ``position`` of each row, in that order."""
    return x.flatten(0, 1).index_select(0, _flat(position, x.shape[1])).view(*position.shape, x.shape[2])


def put(packed: Float[Tensor, "B K"], mask: Bool[Tensor, "B T"], value: float) -> Float[Tensor, "B T"]:
    """Inverse of ``take`` for scores: unit k goes to the k-th True position; ``value`` elsewhere."""
    return put_steps(packed[:, None], mask, value)[:, 0]


def put_steps(
    packed: Float[Tensor, "B S K"], mask: Bool[Tensor, "B T"], value: float
) -> Float[Tensor, "B S T"]:
    """``put`` for scores of several steps."""
    position = (mask.cumsum(1) - 1).clamp(0, packed.shape[2] - 1)  # -1 before the first, masked below
    position = position[:, None].expand(-1, packed.shape[1], -1)
    return packed.gather(2, position).masked_fill(~mask[:, None], value)


def pool_words(
    x: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]
) -> tuple[Float[Tensor, "B K H"], Bool[Tensor, "B K"]]:
    """Mean over the pieces of each word, packed to the front in order, followed by zeros."""
    first = first_pieces(mask, word)
    packed_mask = _prefix_mask(first.sum(1), mask.shape[1])
    K = packed_mask.shape[1]
    unit = _flat((first.cumsum(1) - 1).clamp(0, K - 1), K)  # of other tokens any unit: they weigh 0
    # A mean over words of different length: sum and count by index, then divide.
    weight = mask.flatten().to(x.dtype)
    pieces = x.new_zeros(x.shape[0] * K).index_add(0, unit, weight)
    total = x.new_zeros(x.shape[0] * K, x.shape[2]).index_add(0, unit, x.flatten(0, 1) * weight[:, None])
    return (total / pieces.clamp(min=1)[:, None]).view(x.shape[0], K, -1), packed_mask


def first_pieces(mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the first real piece of each word; word numbers must increase along a row."""
    # The last word so far, whatever is masked in between: a higher number is a new word.
    before = word.masked_fill(~mask, -1).cummax(1).values
    return mask & (word > torch.nn.functional.pad(before, (1, 0), value=-1)[:, :-1])


def last_pieces(mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the last real piece of each word; word numbers must increase along a row."""
    highest = torch.iinfo(torch.int32).max
    after = word.masked_fill(~mask, highest).flip(1).cummin(1).values.flip(1)
    return mask & (word < torch.nn.functional.pad(after, (0, 1), value=highest)[:, 1:])


def reversal(mask: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """Indices that reverse the real units of each row and leave padding in place; self-inverse."""
    position = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, mask.sum(1, keepdim=True) - 1 - position, position)


def reverse(x: Float[Tensor, "B K H"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K H"]:
    """Reverse the real units of each row and leave padding in place; self-inverse."""
    return select(x, reversal(mask))


def _prefix_mask(lengths: Int[Tensor, "B"], limit: int) -> Bool[Tensor, "B K"]:
    """True on the first ``lengths`` of each row; K is the largest of them, at least 1."""
    longest = lengths.max().clamp(min=1).item()
    torch._check(longest <= limit)  # a bound that torch.export cannot infer
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def _flat(position: Int[Tensor, "B K"], width: int) -> Int[Tensor, "N"]:
    """Positions within rows of ``width`` -> positions in the flattened rows."""
    rows = torch.arange(position.shape[0], device=position.device)[:, None]
    return (position + rows * width).flatten()
