"""Fast match-LSTM recurrence (``qa_arch.nn.match_lstm.recur_plain``) with a hand-written backward pass.

Axes: ``C`` steps (context units), ``B`` windows, ``Q`` question units, ``l`` hidden width, ``G`` = 4l gates,
``S`` = 5l pre-activations of a step. An axis of 2 is the two directions, which share their parameters and run
as one batch. A step has five blocks, the attention query and the gates o, i, f, g: in this order the three
sigmoids are contiguous, and so are the three gates that act through the cell.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

Kernel = Literal["auto", "plain", "fused"]
"""``auto``: a fused kernel where one has been verified, else the plain loop."""
SAFE = 20.0
"""Largest |key| and |query| at which exp(2 key) exp(2 query) is far from overflow in fp32."""
CHUNK = 32
"""Steps whose local derivatives are computed together: amortises calls, but still fits in the cache."""


def recur(inputs, reversal, keys, values, mask, score, bias, state) -> Float[Tensor, "C B 2 l"]:
    """Hidden states in reading order, starting from zero; same arguments as ``recur_plain``."""
    keys = keys.masked_fill(~mask[..., None], 0.0)  # so that padding cannot trigger the SAFE check
    return _Recurrence.apply(inputs, flat(reversal), keys, values, mask, score, bias, state)


def attend(inputs, reversal, keys, values, mask, score, bias, state) -> Float[Tensor, "C B 2 Q"]:
    """Attention weights of each step of ``recur``, in reading order; no gradient."""
    keys = keys.masked_fill(~mask[..., None], 0.0)
    with torch.no_grad():
        tape, _ = _run_safely(inputs, flat(reversal), keys, values, mask, score, state)
    return tape.attention


class _Recurrence(torch.autograd.Function):
    """``recur`` with its backward pass; weight gradients are a single product after the loop.

    The energies use r = 1 / (1 + exp(2(key + query))), as tanh = 1 - 2r and the constant cancels in the
    softmax. r is the only large tensor of a step, so it is recomputed instead of stored.
    """

    @staticmethod
    def forward(ctx: Any, inputs, reversal, keys, values, mask, score, bias, state) -> Tensor:
        tape, ctx.exponential = _run_safely(inputs, reversal, keys, values, mask, score, state)
        ctx.save_for_backward(*tape, reversal, keys, values, score, bias, state)
        return tape.states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tape, reversal, keys, values, score, bias, state = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            loop = _BackwardLoop(_Tape(*tape), keys, values, score, state, ctx.exponential)
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


def _run_safely(inputs, reversal, keys, values, mask, score, state) -> tuple[_Tape, bool]:
    """Run the loop in exponential form, or in sigmoid form if that could overflow; also returns which."""
    exponential = bool(keys.abs().amax() <= SAFE)
    tape = _run(inputs, reversal, keys, values, mask, score, state, exponential)
    queries = tape.steps[..., : score.shape[0]]
    if exponential and not bool(torch.stack(queries.aminmax()).abs().amax() <= SAFE):
        exponential = False
        tape = _run(inputs, reversal, keys, values, mask, score, state, exponential)
    return tape, exponential


def _run(inputs, reversal, keys, values, mask, score, state, exponential) -> _Tape:
    """Run the loop, writing every step to the tape in place."""
    C, B, _ = inputs.shape
    width, Q = score.shape[0], keys.shape[1]
    response, units, state = _Response(keys, exponential), inputs.flatten(0, 1), state.T.contiguous()
    tape = _Tape(*(inputs.new_empty(C, B, 2, size) for size in (5 * width, width, width, Q)))
    h, c = inputs.new_zeros(2 * B, width), inputs.new_zeros(B, 2, width)
    energy, padding, lowest = -2 * score, ~mask[:, None], torch.finfo(inputs.dtype).min
    for t, (step, states, cells, attention) in enumerate(zip(*tape, strict=True)):
        step[:, 0] = inputs[t]
        step[:, 1] = units.index_select(0, reversal[t * B : t * B + B])
        step.view(2 * B, -1).addmm_(h, state)
        gates = step[..., width:]
        scores = (response(step[..., :width]).view(-1, width) @ energy).view(B, 2, Q)
        torch.softmax(scores.masked_fill_(padding, lowest), -1, out=attention)
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
        through_cell = _local_derivatives(
            self.tape.steps[part], torch.cat([previous, cells[part]]), self.gradient[part]
        )
        for t in range(last - 1, first - 1, -1):
            self._step(t, grad[t], through_cell[t - first])
        gates = self.gradient[part][..., self.width :].transpose(0, 1).flatten(1, 2)
        self.dvalues.baddbmm_(self.tape.attention[part].permute(1, 3, 0, 2).flatten(2), gates)

    def _step(self, t: int, grad: Float[Tensor, "B 2 l"], through_cell: Float[Tensor, "B 2 l"]) -> None:
        """Turn the local derivatives of step ``t`` into its gradient, in place."""
        width, step, gradient = self.width, self.tape.steps[t], self.gradient[t]
        B, _, Q = self.tape.attention[t].shape
        self.dh += grad
        self.dc.addcmul_(self.dh, through_cell)
        gradient[..., width : 2 * width] *= self.dh
        gradient[..., 2 * width :].unflatten(-1, (3, width)).mul_(self.dc[:, :, None])
        dattention = gradient[..., width:] @ self.values
        dscores = torch._softmax_backward_data(dattention, self.tape.attention[t], -1, dattention.dtype)
        row = dscores.view(2 * B, 1, Q)
        r = self.response(step[..., :width])
        self.into_score.baddbmm_(row, r.flatten(0, 1))
        r.addcmul_(r, r, value=-1)  # r(1 - r), a quarter of tanh's derivative
        self.into_keys.addcmul_(dscores[..., None], r)
        gradient[..., :width] = (row @ r.flatten(0, 1)).view(B, 2, width) * self.slope
        self.dh = (gradient.view(2 * B, -1) @ self.state).view(B, 2, width)
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


def flat(reversal: Int[Tensor, "C B"]) -> Int[Tensor, "N"]:
    """Unit indices within a window -> rows of the flattened ``(C, B)``."""
    B = reversal.shape[1]
    return (reversal * B + torch.arange(B, device=reversal.device)).flatten()


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
