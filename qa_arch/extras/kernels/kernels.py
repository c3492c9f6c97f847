"""Triton kernels, forward and backward. Importing this module imports Triton.

Axes as in ``qa_arch.nn.match_lstm``, with ``H`` for the hidden width. A *row* is a window in one direction,
2b + d; a *slice* is ``U`` hidden units with their part of the query and of the four gates. A program owns one
slice of one group of ``R`` rows.

Forward: each slice computes its part of query and gates from the whole previous state and stores its partial
sum of the scores; after a barrier it adds up the partial sums of all slices, attends and updates its part of
the state. A second barrier makes the state visible to all.

Backward: in the loop each slice computes dh from the whole gradient of the following step and stores its
partial sum of the attention's gradient; after a barrier it recomputes the energies and computes the gradient
of its part of the query. Gradients that no step depends on are computed in a separate launch.

``PART`` 1 or 2 is the phase before or after the barrier alone, so that the host can launch phases one by one
if programs do not run concurrently; 0 is everything, with the barriers.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Rows per group: both directions of eight windows, one tensor-core tile."""
UNITS = 16
"""Units per slice: 24 slices × 4 groups fill 96 of an H200's 132 multiprocessors at H = 384, B = 32."""


@triton.jit
def sigmoid(x):
    # exp overflows to infinity, whose reciprocal is the right limit.
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def barrier(arrived, expected):
    """Wait for ``expected`` arrivals; stores before the barrier are visible to all programs after it."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")
    count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    while count < expected:
        count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def tile(group, B, H: tl.constexpr, R: tl.constexpr, U: tl.constexpr):
    """Rows of this program, their validity mask, its units, and the validity mask of the tile (row, unit)."""
    row = group * R + tl.arange(0, R)
    unit = tl.program_id(0) * U + tl.arange(0, U)
    return row.to(tl.int64), row < 2 * B, unit, (row < 2 * B)[:, None] & (unit < H)[None, :]


@triton.jit
def partial_sums(partial, row, q, valid_q, B, Q, NS: tl.constexpr, R: tl.constexpr, QB: tl.constexpr):
    """Sum over all slices of ``partial`` (slices, 2B, Q) at question units ``q``: (R, QB)."""
    total = tl.zeros([R, QB], partial.dtype.element_ty)
    for first in range(0, NS, 8):
        part = first + tl.arange(0, 8)
        cell = (part[:, None, None] * 2 * B + row[None, :, None]) * Q + q[None, None, :]
        read = tl.load(partial + cell, (part < NS)[:, None, None] & valid_q[None], 0, cache_modifier=".cg")
        total += tl.sum(read, axis=0)
    return total


@triton.jit
def responses(keys, query, row, unit, q, valid, B, Q, H: tl.constexpr):
    """r = 1 / (1 + exp(2(key + query))) for question units ``q``: (R, QB, U); tanh is 1 - 2r."""
    cell = ((row // 2)[:, None, None] * Q + q[None, :, None]) * H + unit[None, None, :]
    key = tl.load(keys + cell, valid[:, None, :] & (q < Q)[None, :, None], 0).to(query.dtype)
    return 1 / (1 + tl.exp(2 * (key + query[:, None, :])))


@triton.jit
def value(values, block: tl.constexpr, row, unit, q, valid, Q, H: tl.constexpr, T: tl.constexpr):
    """Contribution of question units ``q`` to gate ``block`` when attended: (R, QB, U)."""
    cell = ((row // 2)[:, None, None] * Q + q[None, :, None]) * (4 * H) + block * H + unit[None, None, :]
    return tl.load(values + cell, valid[:, None, :] & (q < Q)[None, :, None], 0).to(T)


# Forward --------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["C", "B", "Q", "first", "last", "group0"])
def forward_kernel(
    inputs, reversal, keys, values, mask, score, state,  # as in recur_fused, contiguous
    steps, states, cells,  # outputs (C, B, 2, 5H), (C, B, 2, H), (C, B, 2, H)
    scores, total,  # (C, B, 2, Q), (C, B, 2): attention is exp(scores - total), 0 where masked
    partial, arrived,  # (slices, 2B, Q) exchanged between slices; a zeroed counter per group
    C, B, Q, first, last, group0,
    H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps ``first`` to ``last - 1`` of the groups from ``group0`` on."""
    group = group0 + tl.program_id(1)
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, valid = tile(group, B, H, R, U)
    for t in range(first, last):
        at_step = t * (2 * B) + row
        if PART != 2:
            # Query and gates before attention, and the slice's share of the scores.
            lane = tl.arange(0, 4 * U)
            gate_unit = tl.program_id(0) * U + lane % U
            gate, gate_valid = (1 + lane // U) * H + gate_unit, exists[:, None] & (gate_unit < H)[None, :]
            # The second direction reads the real units of each row in reverse.
            back = tl.load(reversal + t * B + row // 2, exists, 0)
            step = tl.where(row % 2 == 0, t, back)
            read = inputs + ((step * B + row // 2) * (5 * H))[:, None]
            query = tl.load(read + unit[None, :], valid, 0).to(T)
            gates = tl.load(read + gate[None, :], gate_valid, 0).to(T)
            if t > 0:
                previous = states + ((at_step - 2 * B) * H)[:, None]
                for k0 in range(0, H, KB):
                    k = k0 + tl.arange(0, KB)
                    h = tl.load(
                        previous + k[None, :], exists[:, None] & (k < H)[None, :], 0, cache_modifier=".cg"
                    )
                    inner = (k < H)[:, None]
                    to_query = tl.load(state + unit[None, :] * H + k[:, None], inner & (unit < H)[None, :], 0)
                    to_gates = tl.load(
                        state + gate[None, :] * H + k[:, None], inner & (gate_unit < H)[None, :], 0
                    )
                    query = tl.dot(h, to_query.to(T), query, input_precision=PRECISION, out_dtype=T)
                    gates = tl.dot(h, to_gates.to(T), gates, input_precision=PRECISION, out_dtype=T)
            saved = steps + (at_step * (5 * H))[:, None]
            tl.store(saved + unit[None, :], query, valid)
            tl.store(saved + gate[None, :], gates, gate_valid)
            # tanh is 1 - 2r: the 1 adds the same to all scores and cancels in the softmax.
            slope = -2 * tl.load(score + unit, unit < H, 0).to(T)
            for q0 in range(0, Q, QB):
                q = q0 + tl.arange(0, QB)
                r = responses(keys, query, row, unit, q, valid, B, Q, H)
                share = partial + ((tl.program_id(0) * 2 * B + row) * Q)[:, None] + q[None, :]
                tl.store(share, tl.sum(r * slope[None, None, :], axis=2), exists[:, None] & (q < Q)[None, :])
        if PART == 0:
            barrier(arrived + group, (2 * (t - first) + 1) * NS)
        if PART != 1:
            # Online softmax over the question together with the attended gates; then the new state.
            highest, weight = tl.full([R], -1e30, T), tl.zeros([R], T)
            o, i = tl.zeros([R, U], T), tl.zeros([R, U], T)
            f, g = tl.zeros([R, U], T), tl.zeros([R, U], T)
            for q0 in range(0, Q, QB):
                q = q0 + tl.arange(0, QB)
                valid_q = exists[:, None] & (q < Q)[None, :]
                block = partial_sums(partial, row, q, valid_q, B, Q, NS, R, QB)
                real = tl.load(mask + (row // 2)[:, None] * Q + q[None, :], valid_q, 0) != 0
                block = tl.where(real, block, float("-inf"))
                if tl.program_id(0) == 0:
                    tl.store(scores + (at_step * Q)[:, None] + q[None, :], block, valid_q)
                new = tl.maximum(highest, tl.max(block, axis=1))
                p, shrink = tl.exp(block - new[:, None]), tl.exp(highest - new)
                weight, highest = weight * shrink + tl.sum(p, axis=1), new
                p, shrink = p[:, :, None], shrink[:, None]
                o = o * shrink + tl.sum(p * value(values, 0, row, unit, q, valid, Q, H, T), axis=1)
                i = i * shrink + tl.sum(p * value(values, 1, row, unit, q, valid, Q, H, T), axis=1)
                f = f * shrink + tl.sum(p * value(values, 2, row, unit, q, valid, Q, H, T), axis=1)
                g = g * shrink + tl.sum(p * value(values, 3, row, unit, q, valid, Q, H, T), axis=1)
            # Rows that only fill up the group have no weight; 1 keeps them from dividing by 0.
            weight = tl.where(exists, weight, 1)
            if tl.program_id(0) == 0:
                tl.store(total + at_step, highest + tl.log(weight), exists)
            share = (1 / weight)[:, None]
            saved = steps + (at_step * (5 * H))[:, None] + unit[None, :]
            o = sigmoid(tl.load(saved + H, valid, 0) + o * share)
            i = sigmoid(tl.load(saved + 2 * H, valid, 0) + i * share)
            f = sigmoid(tl.load(saved + 3 * H, valid, 0) + f * share)
            g = tanh(tl.load(saved + 4 * H, valid, 0) + g * share)
            cell = (at_step * H)[:, None] + unit[None, :]
            c = f * tl.load(cells + cell - 2 * B * H, valid & (t > 0), 0) + i * g
            tl.store(cells + cell, c, valid)
            tl.store(states + cell, o * tanh(c), valid)
            tl.store(saved + H, o, valid)
            tl.store(saved + 2 * H, i, valid)
            tl.store(saved + 3 * H, f, valid)
            tl.store(saved + 4 * H, g, valid)
        if PART == 0:
            barrier(arrived + group, (2 * (t - first) + 2) * NS)


# Backward -------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["C", "B", "Q", "first", "last", "group0"])
def backward_kernel(
    grad, keys, values, score, state,  # grad (C, B, 2, H) of the states
    steps, cells, scores, total,  # outputs of the forward kernel
    gradient, dscores, dcells,  # outputs (C, B, 2, 5H), (C, B, 2, Q); (2B, H) carried between steps
    partial, arrived,
    C, B, Q, first, last, group0,
    H: tl.constexpr, NS: tl.constexpr, R: tl.constexpr, U: tl.constexpr, QB: tl.constexpr, KB: tl.constexpr,
    PART: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Steps ``last - 1`` down to ``first`` of the groups from ``group0`` on."""
    group = group0 + tl.program_id(1)
    T: tl.constexpr = steps.dtype.element_ty
    row, exists, unit, valid = tile(group, B, H, R, U)
    for done in range(0, last - first):
        t = last - 1 - done
        at_step = t * (2 * B) + row
        if PART != 2:
            # Gradients of state, cell and gates, and the slice's share of the attention's gradient.
            cell = (at_step * H)[:, None] + unit[None, :]
            carried = dcells + (row * H)[:, None] + unit[None, :]
            dh = tl.load(grad + cell, valid, 0).to(T)
            if t < C - 1:
                # Four parts of the long sum at once: a single tile would only keep two warps busy.
                lane, inner = tl.arange(0, 4), tl.arange(0, KB)
                following = gradient + ((at_step + 2 * B) * (5 * H))[None, :, None]
                through = tl.zeros([4, R, U], T)
                for j0 in range(0, 5 * H, 4 * KB):
                    j = j0 + lane[:, None] * KB + inner[None, :]
                    row_valid = exists[None, :, None] & (j < 5 * H)[:, None, :]
                    dnext = tl.load(following + j[:, None, :], row_valid, 0, cache_modifier=".cg")
                    weight_valid = (j < 5 * H)[:, :, None] & (unit < H)[None, None, :]
                    weight = tl.load(state + j[:, :, None] * H + unit[None, None, :], weight_valid, 0).to(T)
                    through = tl.dot(dnext, weight, through, input_precision=PRECISION, out_dtype=T)
                dh += tl.sum(through, axis=0)
            saved = steps + (at_step * (5 * H))[:, None] + unit[None, :]
            o, i = tl.load(saved + H, valid, 0), tl.load(saved + 2 * H, valid, 0)
            f, g = tl.load(saved + 3 * H, valid, 0), tl.load(saved + 4 * H, valid, 0)
            tanh_c = tanh(tl.load(cells + cell, valid, 0))
            dc = tl.load(carried, valid & (t < C - 1), 0) + dh * o * (1 - tanh_c * tanh_c)
            tl.store(carried, dc * f, valid)
            do = dh * tanh_c * o * (1 - o)
            di = dc * g * i * (1 - i)
            df = dc * tl.load(cells + cell - 2 * B * H, valid & (t > 0), 0) * f * (1 - f)
            dg = dc * i * (1 - g * g)
            out = gradient + (at_step * (5 * H))[:, None] + unit[None, :]
            tl.store(out + H, do, valid)
            tl.store(out + 2 * H, di, valid)
            tl.store(out + 3 * H, df, valid)
            tl.store(out + 4 * H, dg, valid)
            for q0 in range(0, Q, QB):
                q = q0 + tl.arange(0, QB)
                dattention = do[:, None, :] * value(values, 0, row, unit, q, valid, Q, H, T)
                dattention += di[:, None, :] * value(values, 1, row, unit, q, valid, Q, H, T)
                dattention += df[:, None, :] * value(values, 2, row, unit, q, valid, Q, H, T)
                dattention += dg[:, None, :] * value(values, 3, row, unit, q, valid, Q, H, T)
                share = partial + ((tl.program_id(0) * 2 * B + row) * Q)[:, None] + q[None, :]
                tl.store(share, tl.sum(dattention, axis=2), exists[:, None] & (q < Q)[None, :])
        if PART == 0:
            barrier(arrived + group, (2 * done + 1) * NS)
        if PART != 1:
            # Backpropagate through the softmax into the query, recomputing attention and energies.
            logsum = tl.load(total + at_step, exists, 0)[:, None]
            mean = tl.zeros([R], T)
            for q0 in range(0, Q, QB):
                q = q0 + tl.arange(0, QB)
                valid_q = exists[:, None] & (q < Q)[None, :]
                block = tl.load(scores + (at_step * Q)[:, None] + q[None, :], valid_q, float("-inf"))
                mean += tl.sum(
                    tl.exp(block - logsum) * partial_sums(partial, row, q, valid_q, B, Q, NS, R, QB), axis=1
                )
            query = tl.load(steps + (at_step * (5 * H))[:, None] + unit[None, :], valid, 0)
            into_query = tl.zeros([R, U], T)
            for q0 in range(0, Q, QB):
                q = q0 + tl.arange(0, QB)
                valid_q = exists[:, None] & (q < Q)[None, :]
                block = tl.load(scores + (at_step * Q)[:, None] + q[None, :], valid_q, float("-inf"))
                centred = partial_sums(partial, row, q, valid_q, B, Q, NS, R, QB) - mean[:, None]
                dscore = tl.exp(block - logsum) * centred
                if tl.program_id(0) == 0:
                    tl.store(dscores + (at_step * Q)[:, None] + q[None, :], dscore, valid_q)
                r = responses(keys, query, row, unit, q, valid, B, Q, H)
                into_query += tl.sum(dscore[:, :, None] * (r * (1 - r)), axis=1)
            slope = 4 * tl.load(score + unit, unit < H, 0).to(T)
            out = gradient + (at_step * (5 * H))[:, None] + unit[None, :]
            tl.store(out, into_query * slope[None, :], valid)
        if PART == 0:
            barrier(arrived + group, (2 * done + 2) * NS)


@triton.jit(do_not_specialize=["C", "B", "Q"])
def keys_kernel(
    keys, score, steps, dscores,
    dkeys, dscore,  # (B, Q, H); (B, blocks of Q, H), to be summed
    C, B, Q, H: tl.constexpr, S: tl.constexpr, U: tl.constexpr, QB: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and score, summed over all steps at once, since no step depends on them.

    A program owns ``QB`` question units of a window and ``U`` hidden units, and processes ``S`` of the
    window's 2C rows at a time.
    """
    T: tl.constexpr = steps.dtype.element_ty
    b = tl.program_id(0)
    q, unit = tl.program_id(1) * QB + tl.arange(0, QB), tl.program_id(2) * U + tl.arange(0, U)
    valid = (q < Q)[:, None] & (unit < H)[None, :]
    cell = (b * Q + q)[:, None] * H + unit[None, :]
    key = tl.load(keys + cell, valid, 0).to(T)
    into_keys, into_score = tl.zeros([QB, U], T), tl.zeros([QB, U], T)
    for n0 in range(0, 2 * C, S):
        n = n0 + tl.arange(0, S)
        row = (n // 2).to(tl.int64) * 2 * B + 2 * b + n % 2
        ds = tl.load(dscores + (row * Q)[:, None] + q[None, :], (n < 2 * C)[:, None] & (q < Q)[None, :], 0)
        read = (n < 2 * C)[:, None] & (unit < H)[None, :]
        query = tl.load(steps + (row * (5 * H))[:, None] + unit[None, :], read, 0)
        r = 1 / (1 + tl.exp(2 * (key[None] + query[:, None, :])))
        into_score += tl.sum(ds[:, :, None] * r, axis=0)
        into_keys += tl.sum(ds[:, :, None] * (r * (1 - r)), axis=0)
    slope = tl.load(score + unit, unit < H, 0).to(T)
    tl.store(dkeys + cell, 4 * into_keys * slope[None, :], valid)
    block = b * tl.num_programs(1) + tl.program_id(1)
    tl.store(dscore + block * H + unit, -2 * tl.sum(into_score, axis=0), unit < H)
