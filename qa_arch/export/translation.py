"""ONNX translations of operators that torch's exporter lacks: recurrences, sorting, running maxima.

Axes: ``C`` steps, ``B`` texts, ``Q`` question units, ``l`` hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from onnxscript import BOOL, FLOAT, INT64, graph, script
from onnxscript import opset18 as op

import qa_arch.nn.match_lstm  # registers torch.ops.qa_arch
import qa_arch.nn.text_lstm  # noqa: F401

LOWEST = -3.4028234663852886e38
"""Lowest finite fp32 number: its softmax is 0, and it never leads to NaN."""


@script(default_opset=op)
def match_lstm(
    inputs: FLOAT[...],
    reversal: INT64[...],
    keys: FLOAT[...],
    values: FLOAT[...],
    mask: BOOL[...],
    score: FLOAT[...],
    bias: FLOAT[...],
    state: FLOAT[...],
) -> FLOAT[...]:
    """The steps of ``qa_arch.nn.match_lstm.recur_plain`` as a Scan. ``bias`` cancels in the softmax."""
    order = op.Expand(op.Unsqueeze(reversal, [2]), op.Shape(inputs))
    back = op.GatherElements(inputs, order, axis=0)
    steps = op.Concat(op.Unsqueeze(inputs, [2]), op.Unsqueeze(back, [2]), axis=2)
    weight = op.Transpose(state, perm=[1, 0])
    keys_of_both = op.Unsqueeze(keys, [1])
    column = op.Unsqueeze(score, [1])
    padding = op.Unsqueeze(op.Where(mask, 0.0, LOWEST), [1])
    zero = op.Expand(0.0, op.Concat(op.Shape(inputs, start=1, end=2), [2], op.Shape(score), axis=0))

    @graph()
    def step(h: FLOAT[...], c: FLOAT[...], unit: FLOAT[...]):
        query, o, i, f, g = op.Split(op.Add(unit, op.MatMul(h, weight)), num_outputs=5, axis=2)
        energies = op.MatMul(op.Tanh(op.Add(keys_of_both, op.Unsqueeze(query, [2]))), column)
        attention = op.Softmax(op.Add(op.Squeeze(energies, [3]), padding), axis=2)
        more_o, more_i, more_f, more_g = op.Split(op.MatMul(attention, values), num_outputs=4, axis=2)
        entering = op.Mul(op.Sigmoid(op.Add(i, more_i)), op.Tanh(op.Add(g, more_g)))
        new_c = op.Add(op.Mul(op.Sigmoid(op.Add(f, more_f)), c), entering)
        new_h = op.Mul(op.Sigmoid(op.Add(o, more_o)), op.Tanh(new_c))
        output = op.Identity(new_h)
        return new_h, new_c, output

    _last_h, _last_c, states = op.Scan(zero, zero, steps, body=step, num_scan_inputs=1)
    return states


def lstm(x: Any, inputs: Any, state: Any, inputs_bias: Any, state_bias: Any) -> Any:
    """torch orders the gates i, f, g, o, ONNX i, o, f, g; ONNX returns states of shape (K, 1, B, l)."""

    def reordered(part: Any) -> Any:
        i, f, g, o = op.Split(part, num_outputs=4, axis=0)
        return op.Concat(i, o, f, g, axis=0)

    states, _, _ = op.LSTM(
        op.Transpose(x, perm=[1, 0, 2]),
        op.Unsqueeze(reordered(inputs), [0]),
        op.Unsqueeze(reordered(state), [0]),
        op.Unsqueeze(op.Concat(reordered(inputs_bias), reordered(state_bias), axis=0), [0]),
        hidden_size=state.shape[1],
    )
    return op.Transpose(op.Squeeze(states, [1]), perm=[1, 0, 2])


def sort_stable(x: Any, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Any:
    """Values and order of a small integer type; on ties, TopK takes the first."""
    size = op.Gather(op.Shape(x), [dim])
    wide = op.Cast(x, to=INT64.dtype)
    values, order = op.TopK(wide, size, axis=dim, largest=int(descending), sorted=1)
    return op.CastLike(values, x), order


def cummax(x: Any, dim: int) -> Any:
    """Running maximum along the second of two axes, and its index."""
    return _running(x, op.ReduceMax, op.ArgMax, torch.iinfo(torch.int64).min)


def cummin(x: Any, dim: int) -> Any:
    """Running minimum along the second of two axes, and its index."""
    return _running(x, op.ReduceMin, op.ArgMin, torch.iinfo(torch.int64).max)


def _running(x: Any, reduce: Callable[..., Any], arg: Callable[..., Any], fill: int) -> Any:
    """Reduce all values up to each position, and their index: (B, T) each."""
    length = op.Shape(x, start=1, end=2)
    position = op.Range(0, op.Squeeze(length, [0]), 1)
    seen = op.LessOrEqual(op.Unsqueeze(position, [0]), op.Unsqueeze(position, [1]))
    history = op.Where(seen, op.Unsqueeze(x, [1]), op.Constant(value_int=fill))
    return reduce(history, [2], keepdims=0), arg(history, axis=2, keepdims=0, select_last_index=1)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.qa_arch.match_lstm.default: match_lstm,
    torch.ops.qa_arch.lstm.default: lstm,
    torch.ops.aten.sort.stable: sort_stable,
    torch.ops.aten.cummax.default: cummax,
    torch.ops.aten.cummin.default: cummin,
}
