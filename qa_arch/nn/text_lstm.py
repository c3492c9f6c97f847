"""The LSTM that reads question and passage before they are matched (Wang & Jiang 2016, eq. 1).

Axes: ``B`` texts, ``K`` units, ``D`` input width, ``l`` hidden width.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.nn import operators
from qa_arch.nn.masking import at_least_float32
from qa_arch.nn.segments import reverse

OPEN = 50.0
"""Input of a gate that is open for good: its sigmoid is exactly 1, in fp64 too."""


class TextLSTM(nn.Module):
    """States of a text at every unit, without an output gate as in the paper or with one::

        i, f = σ(W x_t + b + U h_{t-1} + c),   g = tanh(...)
        c_t = f c_{t-1} + i g,   h_t = tanh(c_t)         (output_gate: h_t = o tanh(c_t))

    3(D l + l² + 2l) parameters, with output gate 4(...). ``bidirectional`` adds a second reader of
    the reversed text with parameters of its own, and its states to those of the first.
    """

    def __init__(
        self, in_dim: int, hidden: int, *, output_gate: bool = False, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.out_dim = hidden
        self.ahead = _Reader(in_dim, hidden, output_gate)
        self.back = _Reader(in_dim, hidden, output_gate) if bidirectional else None

    def forward(self, x: Float[Tensor, "B K D"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K l"]:
        """``mask`` is a prefix mask; zeros where it is False."""
        states = self.ahead(x)
        if self.back is not None:
            states = states + reverse(self.back(reverse(x, mask)), mask)
        return states.masked_fill(~mask[..., None], 0.0)


class _Reader(nn.Module):
    """One direction. The gates stand in torch's order i, f, g, o, so that the one left out is the last."""

    def __init__(self, in_dim: int, hidden: int, output_gate: bool) -> None:
        super().__init__()
        gates = 4 if output_gate else 3
        self.input = nn.Linear(in_dim, gates * hidden)
        self.state = nn.Linear(hidden, gates * hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot for the inputs, orthogonal for the recurrence, forget gates that start open."""
        hidden = self.state.in_features
        for part, fill in ((self.input, nn.init.xavier_uniform_), (self.state, nn.init.orthogonal_)):
            for block in part.weight.data.split(hidden):
                fill(block)
            nn.init.zeros_(part.bias)
        nn.init.ones_(self.state.bias.data.split(hidden)[1])

    def forward(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K l"]:
        """From zero states, in fp32 at least. A missing output gate is one that is open for good.

        So the fused LSTM of the library serves both forms.
        """
        x = at_least_float32(x)
        parts = [self.input.weight, self.state.weight, self.input.bias, self.state.bias]
        hidden = self.state.in_features
        if len(parts[3]) == 3 * hidden:
            zero = x.new_zeros(hidden)
            rows = [x.new_zeros(hidden, part.shape[1]) for part in parts[:2]]
            parts = [torch.cat(pair) for pair in zip(parts, [*rows, zero + OPEN, zero], strict=True)]
        if torch.compiler.is_exporting():
            return operators.lstm(x, *parts)
        start = x.new_zeros(1, x.shape[0], hidden)
        with torch.autocast(x.device.type, enabled=False):
            states, _, _ = torch.lstm(x, (start, start), parts, True, 1, 0.0, self.training, False, True)
        return states
