"""Map between a window's token axis and the axis of one of its texts, vectorised over the batch.

Axes: ``B`` windows, ``T`` tokens of a window, ``K`` units (pieces or words) of one of its texts.
Packed units are at the front of their row, so packed masks are prefix masks.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def take(
    x: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"]
) -> tuple[Float[Tensor, "B K H"], Bool[Tensor, "B K"]]:
    """Pack the positions where ``mask`` is True to the front, in order, followed by zeros.

    ``K`` is the largest number of True positions in a row, at least 1.
    """
    packed_mask = _prefix_mask(mask.sum(1), mask.shape[1])
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
    position = (mask.cumsum(1) - 1).clamp(0, packed.shape[2] - 1)
    position = position[:, None].expand(-1, packed.shape[1], -1)
    return packed.gather(2, position).masked_fill(~mask[:, None], value)


def pool_words(
    x: Float[Tensor, "B T H"], mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]
) -> tuple[Float[Tensor, "B K H"], Bool[Tensor, "B K"]]:
    """Mean over the pieces of each word, packed to the front in order, followed by zeros."""
    first = first_pieces(mask, word)
    packed_mask = _prefix_mask(first.sum(1), mask.shape[1])
    K = packed_mask.shape[1]
    unit = _flat((first.cumsum(1) - 1).clamp(0, K - 1), K)
    weight = mask.flatten().to(x.dtype)
    pieces = x.new_zeros(x.shape[0] * K).index_add(0, unit, weight)
    total = x.new_zeros(x.shape[0] * K, x.shape[2]).index_add(0, unit, x.flatten(0, 1) * weight[:, None])
    return (total / pieces.clamp(min=1)[:, None]).view(x.shape[0], K, -1), packed_mask


def first_pieces(mask: Bool[Tensor, "B T"], word: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """True on the first real piece of each word; word numbers must increase along a row."""
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
