"""Match-LSTM: an LSTM over the context that attends to the question (Wang & Jiang 2016, eqs. 1-6).

Axes: ``B`` windows, ``C`` context units, ``Q`` question units, ``D`` input width, ``l`` hidden width,
``G`` = 4l gates, ``S`` = 5l pre-activations of a step (attention query and gates o, i, f, g). An axis of 2 is
the two directions, which share their parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import linear

from qa_arch.errors import UnavailableError
from qa_arch.manifest import module_of
from qa_arch.nn.heads import append_sentinel
from qa_arch.nn.masking import at_least_float32
from qa_arch.nn.recurrence import Kernel, attend, flat, recur
from qa_arch.nn.segments import reversal, reverse

KERNELS = module_of("kernels")
"""Module of the extra with fused kernels; None if it is not installed."""


def recur_plain(
    inputs: Float[Tensor, "C B S"],
    reversal: Int[Tensor, "C B"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q G"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, "l"],
    bias: Float[Tensor, "1"],
    state: Float[Tensor, "S l"],
) -> Float[Tensor, "C B 2 l"]:
    """Reference recurrence: hidden states in reading order, starting from zero.

    Everything independent of the previous state is precomputed for all steps: ``inputs`` is the context
    unit's contribution to query and gates (W^p h^p_i, with all biases), ``keys`` the question's contribution
    to the attention (W^q H^q), ``values`` its contribution to the gates when attended. ``state`` is
    [W^r; W^hh]. The second direction reads unit ``reversal[i]`` at step i. ``mask`` has a real unit in every
    row. ``recurrence.recur`` and, on a GPU, the kernels of an extra compute the same, faster.
    """
    backward = inputs.flatten(0, 1)[flat(reversal)].view_as(inputs)
    h = c = inputs.new_zeros(inputs.shape[1], 2, score.shape[0])
    states = []
    for step in torch.stack([inputs, backward], dim=2):  # both directions in one batch: (B, 2, S)
        query, *gates = (step + h @ state.T).chunk(5, dim=-1)
        scores = torch.tanh(keys[:, None] + query[:, :, None]) @ score + bias  # w^T G_i + b    (eq. 2)
        attention = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)  # a_i           (eq. 2)
        o, i, f, g = (torch.cat(gates, dim=-1) + attention @ values).chunk(4, dim=-1)  # of z_i (eq. 3)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()  # h^r_i                                                     (eq. 4)
        states.append(h)
    return torch.stack(states)


@torch.library.custom_op(
    "qa_arch::match_lstm",
    mutates_args=(),
    schema="(Tensor inputs, Tensor reversal, Tensor keys, Tensor values, Tensor mask, Tensor score,"
    " Tensor bias, Tensor state) -> Tensor",
)
def recur_exported(inputs, reversal, keys, values, mask, score, bias, state):
    """``recur_plain`` as an operator that ``qa_arch.export.onnx`` translates; no gradients.

    ``torch.export`` would unroll the loop and so fix the number of context units.
    """
    return recur_plain(inputs, reversal, keys, values, mask, score, bias, state)


@recur_exported.register_fake
def _(inputs, reversal, keys, values, mask, score, bias, state):
    return inputs.new_empty(inputs.shape[0], inputs.shape[1], 2, score.shape[0])


class MatchLSTM(nn.Module):
    """At each context unit i, in both directions with the same parameters::

        G_i = tanh(W^q H^q + W^p h^p_i + W^r h^r_{i-1})      attention over the question   (eq. 2)
        a_i = softmax(w^T G_i + b)                                                         (eq. 2)
        z_i = [h^p_i ; H^q a_i]                              input of the step             (eq. 3)
        h^r_i = LSTM(z_i, h^r_{i-1})                         gates o, i, f, g              (eq. 4)

    H^q ends in a zero row, a question word "nothing" for units that match none. All linear layers have
    biases: with D = l, attention has 3(l² + l) + (l + 1) parameters and the LSTM 4(3l² + 3l). Three of the
    biases are redundant, as they are added to the same sum; ``all_biases=False`` keeps one in the attention
    and two in the gates, as in the equations and a standard LSTM: 3l² + l + (l + 1) and 4(3l² + 2l).
    ``kernel`` selects the implementation (``Kernel``), not the result.

    ``attention_gain`` scales the initial W^q and W^p. At 1, tanh is nearly linear, and the passage's term of
    w^T(W^q H^q + W^p h^p_i), which is the same for all question units, cancels in the softmax: attention
    starts nearly uniform and independent of h^p_i. At 3, the two interact.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        *,
        all_biases: bool = True,
        attention_gain: float = 1.0,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__()
        self.kernel: Kernel = kernel
        self.attention_gain = attention_gain
        self.question = nn.Linear(in_dim, hidden, bias=all_biases)  # W^q
        self.passage = nn.Linear(in_dim, hidden)  # W^p
        self.state = nn.Linear(hidden, hidden, bias=all_biases)  # W^r
        self.score = nn.Linear(hidden, 1)  # w, b
        self.gates_passage = nn.Linear(in_dim, 4 * hidden)
        self.gates_attended = nn.Linear(in_dim, 4 * hidden, bias=all_biases)
        self.gates_state = nn.Linear(hidden, 4 * hidden)
        self.out_dim = 2 * hidden
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot for inputs, orthogonal for the recurrence, forget gate bias 1."""
        for part in (self.question, self.passage):
            nn.init.xavier_uniform_(part.weight, gain=self.attention_gain)
        for part in (self.state, self.score):
            nn.init.xavier_uniform_(part.weight)
        for part in (self.gates_passage, self.gates_attended, self.gates_state):
            for block in part.weight.data.chunk(4):
                (nn.init.orthogonal_ if part is self.gates_state else nn.init.xavier_uniform_)(block)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
        nn.init.ones_(self.gates_state.bias.data.chunk(4)[2])  # Jozefowicz et al. 2015

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        context_mask: Bool[Tensor, "B C"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B C M"]:
        """States of both directions, forward first; zero where ``context_mask`` (a prefix mask) is False."""
        states = self._run(recur, *self._precompute(context, question, context_mask, question_mask))
        forward, backward = states.permute(2, 1, 0, 3)
        both = torch.cat([forward, reverse(backward, context_mask)], dim=-1)
        return both.masked_fill(~context_mask[..., None], 0.0)

    def attention(
        self,
        context: Float[Tensor, "B C D"],
        question: Float[Tensor, "B Q D"],
        context_mask: Bool[Tensor, "B C"],
        question_mask: Bool[Tensor, "B Q"],
    ) -> Float[Tensor, "B 2 C N"]:
        """Attention weights a_i (eq. 2) of both directions over the N = Q + 1 question units, "nothing" last.

        Zero where ``context_mask`` is False, otherwise they sum to 1. Runs the recurrence of ``forward``.
        """
        weights = self._run(attend, *self._precompute(context, question, context_mask, question_mask))
        forward, backward = weights.permute(2, 1, 0, 3)
        both = torch.stack([forward, reverse(backward, context_mask)], dim=1)
        return both.masked_fill(~context_mask[:, None, :, None], 0.0)

    def _precompute(self, context, question, context_mask, question_mask) -> tuple[Tensor, ...]:
        """State-independent arguments of the recurrence: inputs, reversal, keys, values, mask."""
        question, question_mask = append_sentinel(question, question_mask, None)
        # Attention sums to one, so projecting the attended row equals attending to projected rows.
        keys = self.question(question)
        values = linear(question, self.gates_attended.weight)
        weight = torch.cat([self.passage.weight, self.gates_passage.weight])
        query_bias = _sum(self.passage.bias, self.state.bias)
        gates_bias = _sum(self.gates_passage.bias, self.gates_attended.bias, self.gates_state.bias)
        bias = torch.cat([query_bias, gates_bias])
        inputs = linear(context.transpose(0, 1), weight, bias)
        return inputs, reversal(context_mask).T, keys, values, question_mask

    def _run(self, loop, inputs, order, keys, values, question_mask) -> Float[Tensor, "C B 2 N"]:
        """Run both directions as one recurrence, in at least fp32.

        Padding follows the real units in both directions, so it does not affect their states.
        """
        if loop is recur and (fused := self._fused(inputs)) is not None:
            loop = fused
        elif loop is recur and torch.compiler.is_exporting():
            loop = recur_exported
        else:  # the kernels upcast their inputs themselves
            inputs, keys, values = (at_least_float32(x) for x in (inputs, keys, values))
        with torch.autocast(inputs.device.type, enabled=False):
            state = torch.cat([self.state.weight, self.gates_state.weight])
            score = self.score.weight[0], self.score.bias
            return loop(inputs, order, keys, values, question_mask, *score, state)

    def _fused(self, inputs: Tensor) -> Callable[..., Tensor] | None:
        """Fused kernel for the recurrence over ``inputs``; None for the loop.

        With ``kernel="fused"``, training raises UnavailableError if no kernel can run; inference falls back.
        """
        if KERNELS is not None:
            return KERNELS.recurrence(self.kernel, inputs, self.state.in_features, training=self.training)
        if self.kernel == "fused" and self.training:
            raise UnavailableError(
                "model.kernel=fused: no extra with kernels is installed; use auto or plain"
            )
        return None


def _sum(*biases: Tensor | None) -> Tensor:
    """Sum of the biases that are not None."""
    return torch.stack([bias for bias in biases if bias is not None]).sum(0)
