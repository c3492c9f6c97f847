"""The recurrence of the match-LSTM with everything that does not depend on the previous state hoisted.

Axes: ``C`` steps (context units), ``B`` windows, ``R`` rows that read one question (its two
directions), ``Q`` question units, ``l`` hidden width. Gates stand in the order i, f, g, o.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from qa_arch.nn.masking import masked_softmax


def recur_plain(
    queries: Float[Tensor, "C B R l"],
    gates: Float[Tensor, "C B R 4l"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q 4l"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, l],
    bias: Float[Tensor, 1],
    state: Float[Tensor, "5l l"],
) -> Float[Tensor, "C B R l"]:
    """The hidden states, step by step in the plainest form; autograd gives the gradient.

    ``queries`` and ``gates`` are what the context unit adds to the attention and to the gates (all
    biases included), ``keys`` and ``values`` what the question does, ``state`` is [W^r; W^hh].
    """
    C, B, R, width = queries.shape
    h = c = queries.new_zeros(B, R, width)
    states = []
    for t in range(C):
        recurrent = h @ state.T
        query = queries[t] + recurrent[..., :width]
        scores = torch.tanh(keys[:, None] + query[:, :, None]) @ score + bias
        attention = masked_softmax(scores, mask[:, None])
        i, f, g, o = (gates[t] + recurrent[..., width:] + attention @ values).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states)


def recur(
    queries: Float[Tensor, "C B R l"],
    gates: Float[Tensor, "C B R 4l"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q 4l"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, l],
    bias: Float[Tensor, 1],
    state: Float[Tensor, "5l l"],
) -> Float[Tensor, "C B R l"]:
    """``recur_plain`` by the fastest form that is exact for the input."""
    return recur_plain(queries, gates, keys, values, mask, score, bias, state)
