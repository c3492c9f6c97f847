"""Match-LSTM: an LSTM over the context that attends to the question (Wang & Jiang 2016, eqs. 2-6).

``recur_reference`` follows the equations; ``recur`` computes the same faster, with a hand-written backward
pass.

Axes: ``C`` steps (context units), ``B`` windows, ``Q`` question units, ``l`` hidden width, ``M`` = 2l,
``G`` = 4l gates (not the matrix G_i), ``S`` = 5l pre-activations of a step. An axis of 2 is the two
directions, which share their parameters and run as one batch. A step has five blocks, the attention query and
the gates o, i, f, g: in this order the three sigmoids are contiguous, and so are the three gates that act
through the cell.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from qa_arch.errors import UnavailableError
from qa_arch.manifest import module_of
from qa_arch.nn.heads import append_sentinel
from qa_arch.nn.masking import at_least_float32, reversal, reverse

Kernel = Literal["auto", "plain", "fused"]
"""``auto``: a fused kernel where one has been verified, else ``recur``; ``plain``: always ``recur``."""
SAFE = 20.0
"""Largest absolute key and query at which exp(2 key) exp(2 query) is far from overflow in fp32."""
CHUNK = 32
"""Steps whose local derivatives are computed together: amortises calls, but still fits in the cache."""


class MatchLSTM(nn.Module):
    """At each context unit i, in both directions with the same parameters::

        G_i = tanh(W^q H^q + W^p h^p_i + W^r h^r_{i-1})      attention over the question   (eq. 2)
        a_i = softmax(w^T G_i + b)                                                         (eq. 2)
        z_i = [h^p_i ; H^q a_i]                              input of the step             (eq. 3)
        h^r_i = LSTM(z_i, h^r_{i-1})                         gates o, i, f, g              (eq. 4)

    Unlike the paper's, H^q ends in a zero row, a question word "nothing" for units that match none. All
    linear layers have biases: with D = l, attention has 3(l² + l) + (l + 1) parameters and the LSTM
    4(3l² + 3l). Biases that are added to one sum are redundant; ``all_biases=False`` keeps one in the
    attention and two in the gates, as in the equations and a standard LSTM: 3l² + l + (l + 1) and
    4(3l² + 2l).
    ``kernel`` selects the implementation (``Kernel``), not the result.
    """

    def __init__(
        self,
        in_dim: int,
        hidden: int,
        *,
        all_biases: bool = True,
        kernel: Kernel = "auto",
    ) -> None:
        super().__init__()
        self.kernel: Kernel = kernel
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
        for part in (self.question, self.passage, self.state, self.score):
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
        # One product for attention and gates, of all steps at once.
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
            loop = fused  # upcasts its inputs itself
        elif loop is recur and torch.compiler.is_exporting():
            loop = recur_exported
        else:
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
    """Sum of the biases that are not None.

    One by one: of ``stack(...).sum(0)`` all get gradients in one memory, which a second backward pass and
    clipping then change once for each.
    """
    return reduce(torch.add, (bias for bias in biases if bias is not None))


def recur_reference(
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
    unit's contribution to query and gates (W^p h^p_i, with the biases of W^p, W^r and gates), ``keys`` the
    question's contribution to the attention (W^q H^q), ``values`` its contribution to the gates when
    attended. ``state`` is [W^r; W^hh]. The second direction reads unit ``reversal[i]`` at step i. ``mask``
    has a real unit in every row. ``recur`` and, on a GPU, the kernels of an extra compute the same, faster.
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


def flat(reversal: Int[Tensor, "C B"]) -> Int[Tensor, "N"]:
    """Unit indices within a window -> rows of the flattened ``(C, B)``."""
    B = reversal.shape[1]
    return (reversal * B + torch.arange(B, device=reversal.device)).flatten()


def recur(inputs, reversal, keys, values, mask, score, bias, state) -> Float[Tensor, "C B 2 l"]:
    """Hidden states in reading order, starting from zero; same arguments as ``recur_reference``."""
    keys = keys.masked_fill(~mask[..., None], 0.0)  # so that padding cannot trigger the SAFE check
    return _Recurrence.apply(inputs, flat(reversal), keys, values, mask, score, bias, state)


def attend(inputs, reversal, keys, values, mask, score, bias, state) -> Float[Tensor, "C B 2 Q"]:
    """Attention weights of each step of ``recur``, in reading order; no gradient."""
    keys = keys.masked_fill(~mask[..., None], 0.0)
    with torch.no_grad():
        tape, _ = _forward(inputs, flat(reversal), keys, values, mask, score, state)
    return tape.attention


class _Recurrence(torch.autograd.Function):
    """``recur`` with its backward pass; weight gradients are a single product after the loop.

    The energies use r = 1 / (1 + exp(2(key + query))), as tanh = 1 - 2r and the constant cancels in the
    softmax. r is the only large tensor of a step, so it is recomputed instead of stored.
    """

    @staticmethod
    def forward(ctx: Any, inputs, reversal, keys, values, mask, score, bias, state) -> Tensor:
        tape, ctx.exponential = _forward(inputs, reversal, keys, values, mask, score, state)
        ctx.save_for_backward(*tape, reversal, keys, values, score, bias, state)
        return tape.states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tape, reversal, keys, values, score, bias, state = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            loop = _BackwardLoop(_Tape(*tape), keys, values, score, state, ctx.exponential)
            # In chunks, to bound memory: what needs no other step is computed for many at once.
            for first in range((len(grad) - 1) // CHUNK * CHUNK, -1, -CHUNK):
                loop.chunk(grad, first, min(first + CHUNK, len(grad)))
            dinputs = gradient_of_inputs(loop.gradient, reversal)
            dstate = gradient_of_state(loop.gradient, loop.tape.states)
        dkeys, dscore = loop.into_keys.sum(1) * (4 * score), -2 * loop.into_score.sum((0, 1))
        return dinputs, None, dkeys, loop.dvalues, None, dscore, torch.zeros_like(bias), dstate


class _Tape(NamedTuple):
    """Saved per step for the backward pass: [query, o, i, f, g], hidden state, cell and attention."""

    steps: Float[Tensor, "C B 2 S"]
    states: Float[Tensor, "C B 2 l"]
    cells: Float[Tensor, "C B 2 l"]
    attention: Float[Tensor, "C B 2 Q"]


def _forward(inputs, reversal, keys, values, mask, score, state) -> tuple[_Tape, bool]:
    """Run the loop in exponential form, or in sigmoid form if that could overflow; also returns which."""
    # Keys are known before the loop; queries depend on its states and are checked after it.
    exponential = bool(keys.abs().amax() <= SAFE)
    tape = _forward_loop(inputs, reversal, keys, values, mask, score, state, exponential)
    queries = tape.steps[..., : score.shape[0]]
    if exponential and not bool(torch.stack(queries.aminmax()).abs().amax() <= SAFE):
        exponential = False
        tape = _forward_loop(inputs, reversal, keys, values, mask, score, state, exponential)
    return tape, exponential


def _forward_loop(inputs, reversal, keys, values, mask, score, state, exponential) -> _Tape:
    """Run the loop, writing every step to the tape in place."""
    C, B, _ = inputs.shape
    width, Q = score.shape[0], keys.shape[1]
    response, units, state = _Response(keys, exponential), inputs.flatten(0, 1), state.T.contiguous()
    tape = _Tape(*(inputs.new_empty(C, B, 2, size) for size in (5 * width, width, width, Q)))
    h, c = inputs.new_zeros(2 * B, width), inputs.new_zeros(B, 2, width)
    # tanh is 1 - 2r: the 1 adds the same to all scores and cancels in the softmax.
    energy, padding, lowest = -2 * score, ~mask[:, None], torch.finfo(inputs.dtype).min
    for t, (step, states, cells, attention) in enumerate(zip(*tape, strict=True)):
        step[:, 0] = inputs[t]
        # The backward direction reads real units in reverse, padding stays last.
        step[:, 1] = units.index_select(0, reversal[t * B : t * B + B])
        step.view(2 * B, -1).addmm_(h, state)
        gates = step[..., width:]
        scores = (response(step[..., :width]).view(-1, width) @ energy).view(B, 2, Q)
        torch.softmax(scores.masked_fill_(padding, lowest), -1, out=attention)
        # In place: a view of the tape, which keeps activations alone.
        gates += attention @ values
        gates[..., : 3 * width].sigmoid_()
        gates[..., 3 * width :].tanh_()
        o, i, f, g = gates.chunk(4, dim=-1)
        c = torch.mul(f, c, out=cells).addcmul_(i, g)
        h = torch.mul(c.tanh(), o, out=states).view(2 * B, width)
    return tape


class _BackwardLoop:
    """Backward loop: gradients carried between steps, and accumulated gradients."""

    def __init__(self, tape: _Tape, keys, values, score, state, exponential) -> None:
        self.tape, self.values, self.state, self.slope = tape, values.transpose(1, 2), state, 4 * score
        self.width = score.shape[0]
        self.response = _Response(keys, exponential)
        self.gradient = torch.empty_like(tape.steps)
        self.dh, self.dc = torch.zeros_like(tape.cells[0]), torch.zeros_like(tape.cells[0])
        self.dvalues, self.into_keys = torch.zeros_like(values), torch.zeros_like(self.response.out)
        self.into_score = score.new_zeros(2 * keys.shape[0], 1, self.width)

    def chunk(self, grad: Float[Tensor, "C B 2 l"], first: int, last: int) -> None:
        """Backpropagate steps ``last - 1`` down to ``first``."""
        part, cells = slice(first, last), self.tape.cells
        previous = cells[first - 1 : first] if first else torch.zeros_like(cells[:1])
        # Derivatives within a step need no later one: those of the chunk, in the gradient's own buffer.
        through_cell = _local_derivatives(
            self.tape.steps[part], torch.cat([previous, cells[part]]), self.gradient[part]
        )
        for t in range(last - 1, first - 1, -1):
            self._step(t, grad[t], through_cell[t - first])
        # All gates of the chunk are known now, so its steps are one product.
        gates = self.gradient[part][..., self.width :].transpose(0, 1).flatten(1, 2)
        self.dvalues.baddbmm_(self.tape.attention[part].permute(1, 3, 0, 2).flatten(2), gates)

    def _step(self, t: int, grad: Float[Tensor, "B 2 l"], through_cell: Float[Tensor, "B 2 l"]) -> None:
        """Turn the local derivatives of step ``t`` into its gradient, in place."""
        width, step, gradient = self.width, self.tape.steps[t], self.gradient[t]
        B, _, Q = self.tape.attention[t].shape
        # A state feeds the output and, by the later steps, the loss: two gradients meet here.
        self.dh += grad
        self.dc.addcmul_(self.dh, through_cell)
        gradient[..., width : 2 * width] *= self.dh
        gradient[..., 2 * width :].unflatten(-1, (3, width)).mul_(self.dc[:, :, None])
        dattention = gradient[..., width:] @ self.values
        # a(d - sum(a d)), fused
        dscores = torch._softmax_backward_data(dattention, self.tape.attention[t], -1, dattention.dtype)
        row = dscores.view(2 * B, 1, Q)
        r = self.response(step[..., :width])
        self.into_score.baddbmm_(row, r.flatten(0, 1))
        r.addcmul_(r, r, value=-1)  # r(1 - r), a quarter of tanh's derivative
        self.into_keys.addcmul_(dscores[..., None], r)
        gradient[..., :width] = (row @ r.flatten(0, 1)).view(B, 2, width) * self.slope
        self.dh = (gradient.view(2 * B, -1) @ self.state).view(B, 2, width)
        # A cell reaches the one before through its forget gate.
        self.dc *= step[..., 3 * width : 4 * width]


class _Response:
    """r = 1 / (1 + exp(2(key + query))) for all question units, in one reused buffer ``(B, 2, Q, l)``.

    The exponential form multiplies a precomputed exp(2 key) by exp(2 query), which avoids an exponential per
    pair. It overflows for large keys or queries; the sigmoid form does not.
    """

    def __init__(self, keys: Float[Tensor, "B Q l"], exponential: bool) -> None:
        B, Q, width = keys.shape
        self.exponential = exponential
        self.keys = ((2 * keys).exp() if exponential else -2 * keys)[:, None]
        self.unit = keys.new_ones(())
        self.out = keys.new_empty(B, 2, Q, width)

    def __call__(self, query: Float[Tensor, "B 2 l"]) -> Float[Tensor, "B 2 Q l"]:
        if self.exponential:
            factor = query.mul(2).exp_()[:, :, None]
            return torch.addcmul(self.unit, self.keys, factor, out=self.out).reciprocal_()
        return torch.add(self.keys, query[:, :, None], alpha=-2, out=self.out).sigmoid_()


def _local_derivatives(
    steps: Float[Tensor, "P B 2 S"], cells: Float[Tensor, "P+1 B 2 l"], out: Float[Tensor, "P B 2 S"]
) -> Float[Tensor, "P B 2 l"]:
    """Write dh/do and dc/d(i, f, g), with respect to the pre-activations, to ``out``; return dh/dc.

    ``cells`` starts with the cell before the first step.
    """
    o, i, f, g = steps.chunk(5, dim=-1)[1:]
    by_o, by_i, by_f, by_g = out.chunk(5, dim=-1)[1:]
    tanh = cells[1:].tanh()
    torch.mul(tanh, o - o * o, out=by_o)
    torch.mul(g, i - i * i, out=by_i)
    torch.mul(cells[:-1], f - f * f, out=by_f)
    torch.mul(i, 1 - g * g, out=by_g)
    return o * (1 - tanh * tanh)


def gradient_of_inputs(
    gradient: Float[Tensor, "C B 2 S"], reversal: Int[Tensor, "N"]
) -> Float[Tensor, "C B S"]:
    """Sum the gradients of both directions per unit; ``reversal`` comes from ``flat``."""
    back = gradient.view(-1, gradient.shape[-1]).index_select(0, 2 * reversal + 1)
    return back.view_as(gradient[:, :, 0]).add_(gradient[:, :, 0])


def gradient_of_state(
    gradient: Float[Tensor, "C B 2 S"], states: Float[Tensor, "C B 2 l"]
) -> Float[Tensor, "S l"]:
    """Gradient of [W^r; W^hh] from that of the steps, as one product over all steps."""
    return gradient[1:].flatten(0, 2).T @ states[:-1].flatten(0, 2)


@torch.library.custom_op(
    "qa_arch::match_lstm",
    mutates_args=(),
    schema="(Tensor inputs, Tensor reversal, Tensor keys, Tensor values, Tensor mask, Tensor score,"
    " Tensor bias, Tensor state) -> Tensor",
)
def recur_exported(inputs, reversal, keys, values, mask, score, bias, state):
    """``recur_reference`` as an operator that ``qa_arch.export.onnx`` translates; no gradients.

    ``torch.export`` would unroll the loop and so fix the number of context units.
    """
    return recur_reference(inputs, reversal, keys, values, mask, score, bias, state)


@recur_exported.register_fake
def _(inputs, reversal, keys, values, mask, score, bias, state):
    return inputs.new_empty(inputs.shape[0], inputs.shape[1], 2, score.shape[0])


KERNELS = module_of("kernels")
"""Module of the extra with fused kernels, which imports this one; None if it is not installed."""
