"""Suffixes and prefixes read in both directions (SuBiLSTM, Brahma 2018), within a window.

Axes: ``B`` texts, ``K`` units, ``W`` units of a window, ``D`` input width, ``l`` hidden width.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.nn import operators


class SuBiLSTM(nn.Module):
    """For each unit the prefix that ends there and the suffix that begins there, each read both ways.

    The final states of the two readings of the prefix meet in their elementwise maximum, so do
    those of the suffix; the two maxima are concatenated. Each prefix and suffix is cut to the
    ``window`` units nearest to its own, which makes the quadratic cost linear.
    """

    def __init__(self, in_dim: int, hidden: int, *, window: int) -> None:
        super().__init__()
        if window < 1:
            raise ValueError(f"window={window}: a prefix holds at least its own unit")
        self.window = window
        self.readers = nn.ModuleList(nn.LSTM(in_dim, hidden, batch_first=True) for _ in range(4))
        self.out_dim = 2 * hidden

    def forward(self, x: Float[Tensor, "B K D"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K M"]:
        """``mask`` is a prefix mask; zeros where it is False."""
        at = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        step = torch.arange(min(self.window, mask.shape[1]), device=mask.device)
        behind = (at + 1).clamp(max=step.shape[0])  # length of the prefix that ends here
        ahead = (mask.sum(1, keepdim=True) - at).clamp(1, step.shape[0])  # of the suffix that begins here
        orders = (
            ((at - behind + 1)[..., None] + step, behind),  # prefix, forwards
            (at[..., None] - step, behind),  # prefix, backwards
            (at[..., None] + step, ahead),  # suffix, forwards
            ((at + ahead - 1)[..., None] - step, ahead),  # suffix, backwards
        )
        final = [_read(reader, x, *order) for reader, order in zip(self.readers, orders, strict=True)]
        states = torch.cat([torch.maximum(*final[:2]), torch.maximum(*final[2:])], dim=-1)
        return states.masked_fill(~mask[..., None], 0.0)


def _read(
    reader: nn.Module, x: Float[Tensor, "B K D"], order: Int[Tensor, "B K W"], length: Int[Tensor, "B K"]
) -> Float[Tensor, "B K l"]:
    """The state of ``reader`` after the first ``length`` of the units that ``order`` names, for each unit."""
    B, K, W = order.shape
    rows = torch.arange(B, device=x.device)[:, None] * K
    # Places beyond the text are read behind the last that counts, so what they hold does not matter.
    units = x.flatten(0, 1).index_select(0, (order.clamp(0, K - 1).view(B, -1) + rows).flatten())
    units = units.view(B * K, W, -1)
    if torch.compiler.is_exporting():
        assert isinstance(reader, nn.LSTM)
        states = operators.lstm(units, *reader.all_weights[0])
    else:
        states, _ = reader(units)
    last = (length - 1).view(B * K, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, last).view(B, K, -1)
