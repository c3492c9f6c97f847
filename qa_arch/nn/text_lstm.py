"""LSTMs over question and passage before matching (Wang & Jiang 2016, eq. 1; Brahma 2018).

Axes: ``B`` texts, ``K`` units, ``W`` units of a window, ``D`` input width, ``l`` hidden width.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from qa_arch.nn.masking import at_least_float32, reverse, select

OPEN = 50.0
"""Pre-activation of a gate that is always open: its sigmoid is exactly 1, even in fp64."""


@torch.library.custom_op(
    "qa_arch::lstm",
    mutates_args=(),
    schema="(Tensor x, Tensor inputs, Tensor state, Tensor inputs_bias, Tensor state_bias) -> Tensor",
)
def lstm_exported(x, inputs, state, inputs_bias, state_bias):
    """Custom operator for export: LSTM states (B, K, l) from zero, with weights (4l, D) and (4l, l).

    Gates are in torch's order; see ``qa_arch.nn.match_lstm.recur_exported``.
    """
    start = x.new_zeros(1, x.shape[0], state.shape[1])
    parts = [inputs, state, inputs_bias, state_bias]
    return torch.lstm(x, (start, start), parts, True, 1, 0.0, False, False, True)[0]


@lstm_exported.register_fake
def _(x, inputs, state, inputs_bias, state_bias):
    return x.new_empty(x.shape[0], x.shape[1], state.shape[1])


class TextLSTM(nn.Module):
    """LSTM states of a text, without an output gate (as in the paper) or with one::

        i, f = σ(W x_t + b + U h_{t-1} + c),   g = tanh(...)
        c_t = f c_{t-1} + i g,   h_t = tanh(c_t)         (output_gate: h_t = o tanh(c_t))

    3(D l + l² + 2l) parameters, with output gate 4(...). ``bidirectional`` adds the states of a second LSTM,
    with its own parameters, over the reversed text.
    """

    def __init__(
        self, in_dim: int, hidden: int, *, output_gate: bool = False, bidirectional: bool = False
    ) -> None:
        super().__init__()
        self.out_dim = hidden
        self.ahead = _OneDirection(in_dim, hidden, output_gate)
        self.back = _OneDirection(in_dim, hidden, output_gate) if bidirectional else None

    def forward(self, x: Float[Tensor, "B K D"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K l"]:
        """``mask`` is a prefix mask; zeros where it is False."""
        states = self.ahead(x)
        if self.back is not None:
            states = states + reverse(self.back(reverse(x, mask)), mask)
        return states.masked_fill(~mask[..., None], 0.0)


class _OneDirection(nn.Module):
    """One direction. Gates are in torch's order i, f, g, o, so the optional one is last."""

    def __init__(self, in_dim: int, hidden: int, output_gate: bool) -> None:
        super().__init__()
        gates = 4 if output_gate else 3
        self.input = nn.Linear(in_dim, gates * hidden)
        self.state = nn.Linear(hidden, gates * hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot for inputs, orthogonal for the recurrence, forget gate bias 1."""
        hidden = self.state.in_features
        for part, fill in ((self.input, nn.init.xavier_uniform_), (self.state, nn.init.orthogonal_)):
            for block in part.weight.data.split(hidden):
                fill(block)
            nn.init.zeros_(part.bias)
        nn.init.ones_(self.state.bias.data.split(hidden)[1])

    def forward(self, x: Float[Tensor, "B K D"]) -> Float[Tensor, "B K l"]:
        """Run from zero states, in at least fp32.

        A missing output gate is emulated by one that is always open, so both variants use torch's fused LSTM.
        """
        x = at_least_float32(x)
        parts = [self.input.weight, self.state.weight, self.input.bias, self.state.bias]
        hidden = self.state.in_features
        if len(parts[3]) == 3 * hidden:
            zero = x.new_zeros(hidden)
            # No weights and a large bias: the gate is 1 for every input.
            rows = [x.new_zeros(hidden, part.shape[1]) for part in parts[:2]]
            parts = [torch.cat(pair) for pair in zip(parts, [*rows, zero + OPEN, zero], strict=True)]
        if torch.compiler.is_exporting():
            return lstm_exported(x, *parts)
        start = x.new_zeros(1, x.shape[0], hidden)
        with torch.autocast(x.device.type, enabled=False):
            states, _, _ = torch.lstm(x, (start, start), parts, True, 1, 0.0, self.training, False, True)
        return states


class SuBiLSTM(nn.Module):
    """SuBiLSTM (Brahma 2018): for each unit, its prefix and its suffix, each read in both directions.

    The final states of the two readings of the prefix are combined by elementwise maximum, likewise those of
    the suffix; the two maxima are concatenated. Prefixes and suffixes are cut to the ``window`` units nearest
    to their own, which makes the quadratic cost linear. They run in at least fp32.
    """

    def __init__(self, in_dim: int, hidden: int, *, window: int) -> None:
        super().__init__()
        self.window = window
        self.readers = nn.ModuleList(nn.LSTM(in_dim, hidden, batch_first=True) for _ in range(4))
        self.out_dim = 2 * hidden

    def forward(self, x: Float[Tensor, "B K D"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K M"]:
        """``mask`` is a prefix mask; zeros where it is False."""
        unit = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
        step = torch.arange(min(self.window, mask.shape[1]), device=mask.device)
        prefix = (unit + 1).clamp(max=step.shape[0])  # length of the prefix that ends here
        suffix = (mask.sum(1, keepdim=True) - unit).clamp(1, step.shape[0])  # of the suffix that starts here
        orders = (
            ((unit - prefix + 1)[..., None] + step, prefix),  # prefix, forward
            (unit[..., None] - step, prefix),  # prefix, backward
            (unit[..., None] + step, suffix),  # suffix, forward
            ((unit + suffix - 1)[..., None] - step, suffix),  # suffix, backward
        )
        final = [_final_states(reader, x, *order) for reader, order in zip(self.readers, orders, strict=True)]
        states = torch.cat([torch.maximum(*final[:2]), torch.maximum(*final[2:])], dim=-1)
        return states.masked_fill(~mask[..., None], 0.0)


def _final_states(
    reader: nn.Module, x: Float[Tensor, "B K D"], order: Int[Tensor, "B K W"], length: Int[Tensor, "B K"]
) -> Float[Tensor, "B K l"]:
    """For each unit, the state of ``reader`` after the first ``length`` units of its ``order``."""
    B, K, W = order.shape
    # Clamped positions beyond the text come after ``length``, so their content does not matter.
    units = select(x, order.clamp(0, K - 1).view(B, -1)).view(B * K, W, -1)
    if torch.compiler.is_exporting():
        assert isinstance(reader, nn.LSTM)
        states = lstm_exported(units, *reader.all_weights[0])
    else:
        with torch.autocast(units.device.type, enabled=False):
            states, _ = reader(at_least_float32(units))
    last = (length - 1).view(B * K, 1, 1).expand(-1, 1, states.shape[-1])
    return states.gather(1, last).view(B, K, -1)
