"""How the kernels are launched: what of the work runs at the same time, and in which pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 16
"""Question units of a tile; a tile of a product is twice as deep."""


class Sizes(NamedTuple):
    """Steps, windows, question units, hidden width."""

    C: int
    B: int
    Q: int
    H: int


def launch(kernel: Any, tensors: Sequence[Tensor], sizes: Sizes, steps: range) -> None:
    """``steps``, upwards or downwards, of all rows; ``tensors`` are the kernel's, the working type last.

    Programs of a group wait for each other, so they must run at the same time: as many groups as
    surely do so share a launch, the others follow. Where not even one group does, the pieces between
    the meetings are launched one by one.
    """
    from qa_arch.extras.kernels.fused.parts import ROWS, UNITS

    C, B, Q, H = sizes
    slices, groups = -(-H // UNITS), -(-2 * B // ROWS)
    partial = tensors[-1].new_empty(slices, 2 * B, Q)
    arrived = torch.zeros(groups, dtype=torch.int32, device=partial.device)
    # How the tensor cores multiply fp32: in one TF32 product where torch may, else in three.
    precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    tile = {"H": H, "NS": slices, "R": ROWS, "U": UNITS, "QB": BLOCK, "KB": 2 * BLOCK}

    def run(part: int, first: int, last: int, group0: int, count: int, together: bool) -> None:
        kernel[slices, count](
            *tensors, partial, arrived, C, B, Q, first, last, group0,
            PART=part, PRECISION=precision, num_warps=8, launch_cooperative_grid=together, **tile,
        )  # fmt: skip

    with torch.cuda.device_of(partial):
        if most := programs_together(partial.device) // slices:
            for group0 in range(0, groups, most):
                run(0, 0, C, group0, min(most, groups - group0), True)
            return
        for t in steps:
            run(1, t, t + 1, 0, groups, False)
            run(2, t, t + 1, 0, groups, False)


def gradient_of_attention(
    keys: Tensor, score: Tensor, steps: Tensor, dscores: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of ``keys`` and ``score`` by those of the scores of all steps."""
    from qa_arch.extras.kernels.fused.backward import keys_kernel

    (C, B, _, Q), (H,) = dscores.shape, score.shape
    blocks = -(-Q // BLOCK)
    dkeys, dscore = steps.new_empty(B, Q, H), steps.new_empty(B, blocks, H)
    with torch.cuda.device_of(keys):
        keys_kernel[B, blocks, -(-H // 32)](
            keys, score, steps, dscores, dkeys, dscore, C, B, Q, H=H, S=4, U=32, QB=BLOCK
        )
    return dkeys, dscore.sum((0, 1))


def programs_together(device: torch.device) -> int:
    """How many programs are sure to run at the same time: one on each multiprocessor.

    None under Triton's interpreter, where one follows the other.
    """
    from triton import knobs

    if device.type != "cuda" or knobs.runtime.interpret:
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count
