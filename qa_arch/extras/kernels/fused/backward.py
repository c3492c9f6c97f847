"""Backward kernels. In the loop each slice takes dh from the whole gradient of the step behind it and
leaves its partial sum of the gradient of the attention; after the meeting it takes the energies again
and finds the gradient of its part of the query. What no step waits for follows in one launch of its own.

``PART`` as in ``forward``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from qa_arch.extras.kernels.fused.parts import meet, partial_sums, place, responses, tanh, value


@triton.jit(do_not_specialize=["C", "B", "Q", "first", "last", "group0"])
def backward_kernel(
    grad, keys, values, score, state,  # grad (C, B, 2, H) of the states
    steps, cells, scores, total,  # what the forward kernel left
    gradient, dscores, dcells,  # (C, B, 2, 5H) like steps, (C, B, 2, Q); (2B, H) from step to step
    partial, arrived,
    C, B, Q, first, last, group0,
    H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps ``last - 1`` down to ``first`` of the groups from ``group0`` on."""
    group = group0 + tl.program_id(1)
    for done in range(0, last - first):
        t = last - 1 - done
        if PART != 2:
            _return(
                grad, values, state, steps, cells, gradient, dcells, partial, t, group,
                C, B, Q, H, R, U, QB, KB, PRECISION,
            )  # fmt: skip
        if PART == 0:
            meet(arrived + group, (2 * done + 1) * NS)
        if PART != 1:
            _attend_back(
                keys, score, steps, scores, total, gradient, dscores, partial, t, group,
                B, Q, H, NS, R, U, QB,
            )  # fmt: skip
        if PART == 0:
            meet(arrived + group, (2 * done + 2) * NS)


@triton.jit
def _return(
    grad, values, state, steps, cells, gradient, dcells, partial, t, group,
    C, B, Q, H: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of state, cell and gates, and the slice's share of the attention's."""
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, here = place(group, B, H, R, U)
    at_step = t * (2 * B) + row
    cell = (at_step * H)[:, None] + unit[None, :]
    carried = dcells + (row * H)[:, None] + unit[None, :]
    dh = tl.load(grad + cell, here, 0).to(T)
    if t < C - 1:
        # Four parts of the long sum at once: the tile alone would keep two warps busy.
        lane, inner = tl.arange(0, 4), tl.arange(0, KB)
        behind = gradient + ((at_step + 2 * B) * (5 * H))[None, :, None]
        through = tl.zeros([4, R, U], T)
        for j0 in range(0, 5 * H, 4 * KB):
            j = j0 + lane[:, None] * KB + inner[None, :]
            given = exists[None, :, None] & (j < 5 * H)[:, None, :]
            by = tl.load(behind + j[:, None, :], given, 0, cache_modifier=".cg")
            wanted = (j < 5 * H)[:, :, None] & (unit < H)[None, None, :]
            weight = tl.load(state + j[:, :, None] * H + unit[None, None, :], wanted, 0).to(T)
            through = tl.dot(by, weight, through, input_precision=PRECISION, out_dtype=T)
        dh += tl.sum(through, axis=0)
    left = steps + (at_step * (5 * H))[:, None] + unit[None, :]
    o, i = tl.load(left + H, here, 0), tl.load(left + 2 * H, here, 0)
    f, g = tl.load(left + 3 * H, here, 0), tl.load(left + 4 * H, here, 0)
    tanh_c = tanh(tl.load(cells + cell, here, 0))
    dc = tl.load(carried, here & (t < C - 1), 0) + dh * o * (1 - tanh_c * tanh_c)
    tl.store(carried, dc * f, here)
    do = dh * tanh_c * o * (1 - o)
    di = dc * g * i * (1 - i)
    df = dc * tl.load(cells + cell - 2 * B * H, here & (t > 0), 0) * f * (1 - f)
    dg = dc * i * (1 - g * g)
    into = gradient + (at_step * (5 * H))[:, None] + unit[None, :]
    tl.store(into + H, do, here)
    tl.store(into + 2 * H, di, here)
    tl.store(into + 3 * H, df, here)
    tl.store(into + 4 * H, dg, here)
    for q0 in range(0, Q, QB):
        at = q0 + tl.arange(0, QB)
        by = do[:, None, :] * value(values, 0, row, unit, at, here, Q, H, T)
        by += di[:, None, :] * value(values, 1, row, unit, at, here, Q, H, T)
        by += df[:, None, :] * value(values, 2, row, unit, at, here, Q, H, T)
        by += dg[:, None, :] * value(values, 3, row, unit, at, here, Q, H, T)
        share = partial + ((tl.program_id(0) * 2 * B + row) * Q)[:, None] + at[None, :]
        tl.store(share, tl.sum(by, axis=2), exists[:, None] & (at < Q)[None, :])


@triton.jit
def _attend_back(
    keys, score, steps, scores, total, gradient, dscores, partial, t, group,
    B, Q, H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """Through the softmax into the query; attention and energies are computed again."""
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, here = place(group, B, H, R, U)
    at_step = t * (2 * B) + row
    logsum = tl.load(total + at_step, exists, 0)[:, None]
    mean = tl.zeros([R], T)
    for q0 in range(0, Q, QB):
        at = q0 + tl.arange(0, QB)
        there = exists[:, None] & (at < Q)[None, :]
        block = tl.load(scores + (at_step * Q)[:, None] + at[None, :], there, float("-inf"))
        mean += tl.sum(
            tl.exp(block - logsum) * partial_sums(partial, row, at, there, B, Q, NS, R, QB), axis=1
        )
    query = tl.load(steps + (at_step * (5 * H))[:, None] + unit[None, :], here, 0)
    into_query = tl.zeros([R, U], T)
    for q0 in range(0, Q, QB):
        at = q0 + tl.arange(0, QB)
        there = exists[:, None] & (at < Q)[None, :]
        block = tl.load(scores + (at_step * Q)[:, None] + at[None, :], there, float("-inf"))
        by = partial_sums(partial, row, at, there, B, Q, NS, R, QB) - mean[:, None]
        dscore = tl.exp(block - logsum) * by
        if tl.program_id(0) == 0:
            tl.store(dscores + (at_step * Q)[:, None] + at[None, :], dscore, there)
        r = responses(keys, query, row, unit, at, here, B, Q, H)
        into_query += tl.sum(dscore[:, :, None] * (r * (1 - r)), axis=1)
    slope = 4 * tl.load(score + unit, unit < H, 0).to(T)
    into = gradient + (at_step * (5 * H))[:, None] + unit[None, :]
    tl.store(into, into_query * slope[None, :], here)


@triton.jit(do_not_specialize=["C", "B", "Q"])
def keys_kernel(
    keys, score, steps, dscores,
    dkeys, dscore,  # (B, Q, H); (B, blocks of Q, H), to be summed
    C, B, Q, H: tl.constexpr, S: tl.constexpr, U: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and score: no step waits for them, so all steps are summed here at once.

    A program owns ``QB`` question units of a window and ``U`` hidden units, and takes ``S`` of the
    window's 2C readings at a time.
    """
    T: tl.constexpr = steps.dtype.element_ty
    b = tl.program_id(0)
    at, unit = tl.program_id(1) * QB + tl.arange(0, QB), tl.program_id(2) * U + tl.arange(0, U)
    here = (at < Q)[:, None] & (unit < H)[None, :]
    cell = (b * Q + at)[:, None] * H + unit[None, :]
    key = tl.load(keys + cell, here, 0).to(T)
    into_keys, into_score = tl.zeros([QB, U], T), tl.zeros([QB, U], T)
    for n0 in range(0, 2 * C, S):
        n = n0 + tl.arange(0, S)
        row = (n // 2).to(tl.int64) * 2 * B + 2 * b + n % 2
        by = tl.load(dscores + (row * Q)[:, None] + at[None, :], (n < 2 * C)[:, None] & (at < Q)[None, :], 0)
        read = (n < 2 * C)[:, None] & (unit < H)[None, :]
        query = tl.load(steps + (row * (5 * H))[:, None] + unit[None, :], read, 0)
        r = 1 / (1 + tl.exp(2 * (key[None] + query[:, None, :])))
        into_score += tl.sum(by[:, :, None] * r, axis=0)
        into_keys += tl.sum(by[:, :, None] * (r * (1 - r)), axis=0)
    slope = tl.load(score + unit, unit < H, 0).to(T)
    tl.store(dkeys + cell, 4 * into_keys * slope[None, :], here)
    block = b * tl.num_programs(1) + tl.program_id(1)
    tl.store(dscore + block * H + unit, -2 * tl.sum(into_score, axis=0), unit < H)
