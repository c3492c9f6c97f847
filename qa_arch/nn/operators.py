"""The recurrences as operators of their own: ``torch.export`` keeps them whole, however long the text.

A loop over the units of a text has as many steps as the text, which a traced graph cannot hold. Under
``torch.compiler.is_exporting`` the layers call these operators in place of their loops, and whoever exports
translates them (``qa_arch.export.translation``). There are no gradients.

Axes: ``C`` steps (context units), ``B`` texts, ``K`` units, ``Q`` question units, ``D`` input width,
``l`` hidden width, ``G`` = 4l all gates, ``S`` = 5l all of a step of the match-LSTM.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("qa_arch::match_lstm", mutates_args=())
def match_lstm(
    inputs: Tensor,
    reversal: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    score: Tensor,
    bias: Tensor,
    state: Tensor,
) -> Tensor:
    """``qa_arch.nn.match_lstm.recur_plain``: (C, B, 2, l) states from inputs (C, B, S)."""
    from qa_arch.nn.match_lstm import recur_plain

    return recur_plain(inputs, reversal, keys, values, mask, score, bias, state)


@match_lstm.register_fake
def _(inputs, reversal, keys, values, mask, score, bias, state):
    return inputs.new_empty(inputs.shape[0], inputs.shape[1], 2, score.shape[0])


@torch.library.custom_op("qa_arch::lstm", mutates_args=())
def lstm(x: Tensor, inputs: Tensor, state: Tensor, inputs_bias: Tensor, state_bias: Tensor) -> Tensor:
    """(B, K, l) states of an LSTM from zero with weights (G, D) and (G, l); gates in torch's order."""
    start = x.new_zeros(1, x.shape[0], state.shape[1])
    parts = [inputs, state, inputs_bias, state_bias]
    return torch.lstm(x, (start, start), parts, True, 1, 0.0, False, False, True)[0]


@lstm.register_fake
def _(x, inputs, state, inputs_bias, state_bias):
    return x.new_empty(x.shape[0], x.shape[1], state.shape[1])
