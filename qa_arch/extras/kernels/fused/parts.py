"""What the forward and the backward kernel share: their tiles, their meetings, their sums.

Importing this module imports Triton. Axes as in ``qa_arch.nn.recurrence``, with ``H`` for the hidden
width. A *row* is a window in one direction, 2b + d; a *slice* is ``U`` hidden units with all that
belongs to them: their part of the query and of the four gates. A program owns one slice of one group
of ``R`` rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16
"""Rows of a group: both directions of eight windows, one tile of a tensor core."""
UNITS = 16
"""Units of a slice: 24 slices × 4 groups fill 96 of an H200's 132 multiprocessors at H = 384, B = 32."""


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 1 - 2 / (1 + tl.exp(2 * x))


@triton.jit
def meet(arrived, expected):
    """Returns when ``expected`` arrivals were counted; what was stored before is seen by all after."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")
    count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    while count < expected:
        count = tl.atomic_add(arrived, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


@triton.jit
def place(group, B, H: tl.constexpr, R: tl.constexpr, U: tl.constexpr):
    """Rows of this program and whether each exists, its units, and which of the tile (row, unit) exist."""
    row = group * R + tl.arange(0, R)
    unit = tl.program_id(0) * U + tl.arange(0, U)
    return row.to(tl.int64), row < 2 * B, unit, (row < 2 * B)[:, None] & (unit < H)[None, :]


@triton.jit
def partial_sums(partial, row, at, there, B, Q, NS: tl.constexpr, R: tl.constexpr, QB: tl.constexpr):
    """The sum over all slices of ``partial`` (slices, 2B, Q) at question units ``at``: (R, QB)."""
    total = tl.zeros([R, QB], partial.dtype.element_ty)
    for first in range(0, NS, 8):
        part = first + tl.arange(0, 8)
        cell = (part[:, None, None] * 2 * B + row[None, :, None]) * Q + at[None, None, :]
        read = tl.load(partial + cell, (part < NS)[:, None, None] & there[None], 0, cache_modifier=".cg")
        total += tl.sum(read, axis=0)
    return total


@triton.jit
def responses(keys, query, row, unit, at, here, B, Q, H: tl.constexpr):
    """r = 1 / (1 + exp(2(key + query))) for question units ``at``: (R, QB, U); tanh is 1 - 2r."""
    cell = ((row // 2)[:, None, None] * Q + at[None, :, None]) * H + unit[None, None, :]
    key = tl.load(keys + cell, here[:, None, :] & (at < Q)[None, :, None], 0).to(query.dtype)
    return 1 / (1 + tl.exp(2 * (key + query[:, None, :])))


@triton.jit
def value(values, block: tl.constexpr, row, unit, at, here, Q, H: tl.constexpr, T: tl.constexpr):
    """What question units ``at`` add to gate ``block`` where attended: (R, QB, U)."""
    cell = ((row // 2)[:, None, None] * Q + at[None, :, None]) * (4 * H) + block * H + unit[None, None, :]
    return tl.load(values + cell, here[:, None, :] & (at < Q)[None, :, None], 0).to(T)
