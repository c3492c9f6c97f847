"""The recurrence of the match-LSTM with everything that does not depend on the previous state hoisted.

Axes: ``C`` steps (context units), ``B`` windows, ``R`` rows that read one question (its two
directions), ``Q`` question units, ``l`` hidden width. The five blocks of a step's width are the
attention's query and the gates o, i, f, g: in this order the three sigmoids are neighbours, and so
are the three gates that act through the cell.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

SAFE = 20.0
"""Up to this size of keys and queries exp(2 key) exp(2 query) stays far from overflow in fp32."""


def recur(
    inputs: Float[Tensor, "C B R 5*l"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q 4*l"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, "l"],
    bias: Float[Tensor, "1"],
    state: Float[Tensor, "5*l l"],
) -> Float[Tensor, "C B R l"]:
    """Hidden states of all steps, from zero; equal to ``recur_plain``, with a gradient by hand.

    ``inputs`` is what a context unit adds to query and gates (all biases included), ``keys`` and
    ``values`` what the question adds to attention and gates, ``state`` is [W^r; W^hh]. ``mask``
    has a real unit in every row.
    """
    return _Recurrence.apply(inputs, keys.masked_fill(~mask[..., None], 0.0), values, mask, score, bias, state)


def recur_plain(
    inputs: Float[Tensor, "C B R 5*l"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q 4*l"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, "l"],
    bias: Float[Tensor, "1"],
    state: Float[Tensor, "5*l l"],
) -> Float[Tensor, "C B R l"]:
    """What ``recur`` computes, in the plainest form; the gradient is autograd's."""
    _, B, R, _ = inputs.shape
    h = c = inputs.new_zeros(B, R, score.shape[0])
    states = []
    for step in inputs:
        query, *gates = (step + h @ state.T).chunk(5, dim=-1)
        scores = torch.tanh(keys[:, None] + query[:, :, None]) @ score + bias
        attention = scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
        o, i, f, g = (torch.cat(gates, dim=-1) + attention @ values).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states)


class _Recurrence(torch.autograd.Function):
    """``recur`` with its backward pass: weight gradients wait for one product after the loop.

    The energies use r = 1 / (1 + exp(2(key + query))), as tanh = 1 - 2r and the constant cancels in
    the softmax. They are the one large tensor of a step and are computed again, not stored.
    """

    @staticmethod
    def forward(ctx: Any, inputs, keys, values, mask, score, bias, state) -> Tensor:
        exponential = bool(keys.abs().amax() <= SAFE)
        saved = _run(inputs, keys, values, mask, score, state, exponential)
        queries = saved[0][..., : score.shape[0]]
        if exponential and not bool(torch.stack(queries.aminmax()).abs().amax() <= SAFE):
            exponential = False
            saved = _run(inputs, keys, values, mask, score, state, exponential)
        ctx.exponential = exponential
        ctx.save_for_backward(*saved, keys, values, score, bias, state)
        return saved[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        steps, states, cells, attention, keys, values, score, bias, state = ctx.saved_tensors
        C, B, R, width = states.shape
        response = _Response(keys, R, ctx.exponential)
        gradient, through_cell = _local_derivatives(steps, cells)
        forget = steps[..., 3 * width : 4 * width]
        squash = torch.empty_like(response.out)
        into_keys, into_score = torch.zeros_like(squash), score.new_zeros(B * R, 1, width)
        transposed = values.transpose(1, 2)
        dh, dc = torch.zeros_like(cells[0]), torch.zeros_like(cells[0])
        for t in range(C - 1, -1, -1):
            step = gradient[t]
            dh += grad[t]
            dc.addcmul_(dh, through_cell[t])
            step[..., width : 2 * width] *= dh
            step[..., 2 * width :].unflatten(-1, (3, width)).mul_(dc[:, :, None])
            dattention = step[..., width:] @ transposed
            dscores = torch._softmax_backward_data(dattention, attention[t], -1, dattention.dtype)
            row = dscores.view(B * R, 1, -1)
            r = response(steps[t, ..., :width])
            into_score.baddbmm_(row, r.flatten(0, 1))
            torch.addcmul(r, r, r, value=-1, out=squash)  # r(1 - r), a quarter of tanh's derivative
            into_keys.addcmul_(dscores[..., None], squash)
            step[..., :width] = torch.bmm(row, squash.flatten(0, 1)).view(B, R, width) * (4 * score)
            dh = (step.view(B * R, -1) @ state).view(B, R, width)
            dc *= forget[t]
        before = states[:-1].reshape(-1, width)
        dstate = gradient[1:].reshape(-1, 5 * width).T @ before
        dvalues = torch.einsum("cbrq,cbrw->bqw", attention, gradient[..., width:])
        dscore = -2 * into_score.sum((0, 1))
        return gradient, into_keys.sum(1) * (4 * score), dvalues, None, dscore, torch.zeros_like(bias), dstate


def _run(inputs, keys, values, mask, score, state, exponential) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The loop: for each step [query, o, i, f, g], the hidden state, the cell and the attention."""
    C, B, R, _ = inputs.shape
    width, Q = score.shape[0], keys.shape[1]
    response = _Response(keys, R, exponential)
    steps, attention = torch.empty_like(inputs), inputs.new_empty(C, B, R, Q)
    states, cells = inputs.new_empty(C, B, R, width), inputs.new_empty(C, B, R, width)
    h, c, energy, padding = inputs.new_zeros(B * R, width), inputs.new_zeros(B, R, width), -2 * score, ~mask[:, None]
    for t in range(C):
        torch.addmm(inputs[t].view(B * R, -1), h, state.T, out=steps[t].view(B * R, -1))
        query, gates = steps[t, ..., :width], steps[t, ..., width:]
        scores = (response(query).view(-1, width) @ energy).view(B, R, Q)
        torch.softmax(scores.masked_fill_(padding, torch.finfo(scores.dtype).min), -1, out=attention[t])
        gates += attention[t] @ values
        gates[..., : 3 * width].sigmoid_()
        gates[..., 3 * width :].tanh_()
        o, i, f, g = gates.chunk(4, dim=-1)
        c = torch.mul(f, c, out=cells[t]).addcmul_(i, g)
        h = torch.mul(c.tanh(), o, out=states[t]).view(B * R, width)
    return steps, states, cells, attention


class _Response:
    """r = 1 / (1 + exp(2(key + query))) for all question units, into one buffer ``(B, R, Q, l)``.

    The exponential form multiplies exp(2 key), computed once, by exp(2 query): no exponential per
    pair. It overflows where keys or queries are large; the sigmoid then does the same in one piece.
    """

    def __init__(self, keys: Float[Tensor, "B Q l"], rows: int, exponential: bool) -> None:
        B, Q, width = keys.shape
        self.exponential = exponential
        self.keys = ((2 * keys).exp() if exponential else -2 * keys)[:, None]
        self.one = keys.new_ones(())
        self.out = keys.new_empty(B, rows, Q, width)

    def __call__(self, query: Float[Tensor, "B R l"]) -> Float[Tensor, "B R Q l"]:
        if self.exponential:
            factor = query.mul(2).exp_()[:, :, None]
            return torch.addcmul(self.one, self.keys, factor, out=self.out).reciprocal_()
        return torch.add(self.keys, query[:, :, None], alpha=-2, out=self.out).sigmoid_()


def _local_derivatives(
    steps: Float[Tensor, "C B R 5*l"], cells: Float[Tensor, "C B R l"]
) -> tuple[Float[Tensor, "C B R 5*l"], Float[Tensor, "C B R l"]]:
    """What the gradient of each gate is per unit of h (for o) or of c (for i, f, g), and of c per h."""
    o, i, f, g = steps.chunk(5, dim=-1)[1:]
    before = torch.cat([torch.zeros_like(cells[:1]), cells[:-1]])
    tanh = cells.tanh()
    factors = torch.empty_like(steps)
    _, by_o, by_i, by_f, by_g = factors.chunk(5, dim=-1)
    torch.mul(tanh, o - o * o, out=by_o)
    torch.mul(g, i - i * i, out=by_i)
    torch.mul(before, f - f * f, out=by_f)
    torch.mul(i, 1 - g * g, out=by_g)
    return factors, o * (1 - tanh * tanh)
