"""Forward kernel: each slice computes its part of query and gates from the whole previous state and
leaves its partial sum of the scores; after the meeting each adds up the partial sums of all slices,
attends and updates its part of the state. A second meeting shows the state to all.

``PART`` 1 or 2 is the piece before or after the meeting alone, so that a host may launch the pieces
one by one where programs do not run at the same time; 0 is everything with the meetings between.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qa_arch.extras.kernels.fused.parts import meet, partial_sums, place, responses, sigmoid, tanh, value


@triton.jit(do_not_specialize=["C", "B", "Q", "first", "last", "group0"])
def forward_kernel(
    inputs, reversal, keys, values, mask, score, state,  # as recur has them, contiguous
    steps, states, cells,  # (C, B, 2, 5H), (C, B, 2, H) twice: what the steps leave behind
    scores, total,  # (C, B, 2, Q), (C, B, 2): attention is exp(scores - total), 0 where masked
    partial, arrived,  # (slices, 2B, Q) between slices; a counter per group, zero
    C, B, Q, first, last, group0,
    H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps ``first`` to ``last - 1`` of the groups from ``group0`` on."""
    group = group0 + tl.program_id(1)
    for t in range(first, last):
        if PART != 2:
            _enter(
                inputs, reversal, keys, score, state, steps, states, partial, t, group,
                B, Q, H, R, U, QB, KB, PRECISION,
            )  # fmt: skip
        if PART == 0:
            meet(arrived + group, (2 * (t - first) + 1) * NS)
        if PART != 1:
            _attend(
                values, mask, steps, states, cells, scores, total, partial, t, group,
                B, Q, H, NS, R, U, QB,
            )  # fmt: skip
        if PART == 0:
            meet(arrived + group, (2 * (t - first) + 2) * NS)


@triton.jit
def _enter(
    inputs, reversal, keys, score, state, steps, states, partial, t, group,
    B, Q, H: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Query and gates before attention, and the slice's share of the scores."""
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, here = place(group, B, H, R, U)
    lane = tl.arange(0, 4 * U)
    gate_unit = tl.program_id(0) * U + lane % U
    gate, gate_here = (1 + lane // U) * H + gate_unit, exists[:, None] & (gate_unit < H)[None, :]
    # The second direction reads each row's real units from the last to the first.
    back = tl.load(reversal + t * B + row // 2, exists, 0)
    step = tl.where(row % 2 == 0, t, back)
    read = inputs + ((step * B + row // 2) * (5 * H))[:, None]
    query = tl.load(read + unit[None, :], here, 0).to(T)
    gates = tl.load(read + gate[None, :], gate_here, 0).to(T)
    at_step = t * (2 * B) + row
    if t > 0:
        before = states + ((at_step - 2 * B) * H)[:, None]
        for k0 in range(0, H, KB):
            k = k0 + tl.arange(0, KB)
            h = tl.load(before + k[None, :], exists[:, None] & (k < H)[None, :], 0, cache_modifier=".cg")
            inner = (k < H)[:, None]
            to_query = tl.load(state + unit[None, :] * H + k[:, None], inner & (unit < H)[None, :], 0)
            to_gates = tl.load(state + gate[None, :] * H + k[:, None], inner & (gate_unit < H)[None, :], 0)
            query = tl.dot(h, to_query.to(T), query, input_precision=PRECISION, out_dtype=T)
            gates = tl.dot(h, to_gates.to(T), gates, input_precision=PRECISION, out_dtype=T)
    left = steps + (at_step * (5 * H))[:, None]
    tl.store(left + unit[None, :], query, here)
    tl.store(left + gate[None, :], gates, gate_here)
    slope = -2 * tl.load(score + unit, unit < H, 0).to(T)
    for q0 in range(0, Q, QB):
        at = q0 + tl.arange(0, QB)
        r = responses(keys, query, row, unit, at, here, B, Q, H)
        share = partial + ((tl.program_id(0) * 2 * B + row) * Q)[:, None] + at[None, :]
        tl.store(share, tl.sum(r * slope[None, None, :], axis=2), exists[:, None] & (at < Q)[None, :])


@triton.jit
def _attend(
    values, mask, steps, states, cells, scores, total, partial, t, group,
    B, Q, H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """The softmax over the question, block by block, the attended gates with it; then the new state."""
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, here = place(group, B, H, R, U)
    at_step = t * (2 * B) + row
    highest, weight = tl.full([R], -1e30, T), tl.zeros([R], T)
    o, i = tl.zeros([R, U], T), tl.zeros([R, U], T)
    f, g = tl.zeros([R, U], T), tl.zeros([R, U], T)
    for q0 in range(0, Q, QB):
        at = q0 + tl.arange(0, QB)
        there = exists[:, None] & (at < Q)[None, :]
        block = partial_sums(partial, row, at, there, B, Q, NS, R, QB)
        real = tl.load(mask + (row // 2)[:, None] * Q + at[None, :], there, 0) != 0
        block = tl.where(real, block, float("-inf"))
        if tl.program_id(0) == 0:
            tl.store(scores + (at_step * Q)[:, None] + at[None, :], block, there)
        new = tl.maximum(highest, tl.max(block, axis=1))
        p, shrink = tl.exp(block - new[:, None]), tl.exp(highest - new)
        weight, highest = weight * shrink + tl.sum(p, axis=1), new
        p, shrink = p[:, :, None], shrink[:, None]
        o = o * shrink + tl.sum(p * value(values, 0, row, unit, at, here, Q, H, T), axis=1)
        i = i * shrink + tl.sum(p * value(values, 1, row, unit, at, here, Q, H, T), axis=1)
        f = f * shrink + tl.sum(p * value(values, 2, row, unit, at, here, Q, H, T), axis=1)
        g = g * shrink + tl.sum(p * value(values, 3, row, unit, at, here, Q, H, T), axis=1)
    weight = tl.where(exists, weight, 1)
    if tl.program_id(0) == 0:
        tl.store(total + at_step, highest + tl.log(weight), exists)
    share = (1 / weight)[:, None]
    left = steps + (at_step * (5 * H))[:, None] + unit[None, :]
    o = sigmoid(tl.load(left + H, here, 0) + o * share)
    i = sigmoid(tl.load(left + 2 * H, here, 0) + i * share)
    f = sigmoid(tl.load(left + 3 * H, here, 0) + f * share)
    g = tanh(tl.load(left + 4 * H, here, 0) + g * share)
    cell = (at_step * H)[:, None] + unit[None, :]
    c = f * tl.load(cells + cell - 2 * B * H, here & (t > 0), 0) + i * g
    tl.store(cells + cell, c, here)
    tl.store(states + cell, o * tanh(c), here)
    tl.store(left + H, o, here)
    tl.store(left + 2 * H, i, here)
    tl.store(left + 3 * H, f, here)
    tl.store(left + 4 * H, g, here)
