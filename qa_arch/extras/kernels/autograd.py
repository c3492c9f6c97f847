"""The match-LSTM recurrence on a GPU: one launch for all steps forward, one for all steps backward.

``recur_fused`` computes the same as ``qa_arch.nn.match_lstm.recur_reference``. Saved for backward, per step
and row: query, gates, state, cell and scores; the energies, the one large tensor of a step, are recomputed.
Gradients that no step depends on are computed after the loop: those of keys and score in one kernel, those of
values, inputs and weights as matrix products over all steps.

Why one cooperative launch of programs that each own a slice of the hidden units: the weights of a step are
5H² numbers, 0.45 MB at H = 150 and 2.9 MB at H = 384 in fp32, more than the 228 KB of a multiprocessor. With
one program per row, each would stream all of them at every step; split by hidden units, each program reads
1/10 and 1/24 of them, at the cost of two grid barriers per step of about 1.2 µs each. One launch per phase
would cost 5 µs or more of host time each. ``benchmarks/NOTES.md``, "On an H100", has what was measured.

Without a GPU the tests run the kernels under Triton's interpreter, which cannot run the barriers, so no run
uses them before ``qa_arch.extras.kernels.proof`` has verified them on its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from qa_arch.nn.match_lstm import flat, gradient_of_inputs, gradient_of_state

BLOCK = 16
"""Question units per tile; tiles of matrix products are twice as deep."""


@torch.compiler.disable  # the compiler would launch the kernels itself, non-cooperatively
def recur_fused(
    inputs: Float[Tensor, "C B S"],
    reversal: Int[Tensor, "C B"],
    keys: Float[Tensor, "B Q l"],
    values: Float[Tensor, "B Q G"],
    mask: Bool[Tensor, "B Q"],
    score: Float[Tensor, "l"],
    bias: Float[Tensor, "1"],
    state: Float[Tensor, "S l"],
) -> Float[Tensor, "C B 2 l"]:
    """``recur_reference`` by fused kernels: accepts any float type, computes and returns at least fp32."""
    return _Fused.apply(inputs, reversal, keys, values, mask, score, bias, state)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, reversal, keys, values, mask, score, bias, state) -> Tensor:
        from qa_arch.extras.kernels.kernels import forward_kernel

        tensors = [x.contiguous() for x in (inputs, reversal, keys, values, mask, score, state)]
        sizes = Sizes(len(inputs), len(keys), keys.shape[1], len(score))
        steps = inputs.new_empty(
            *sizes[:2], 2, inputs.shape[2], dtype=torch.promote_types(inputs.dtype, torch.float32)
        )
        states, cells = (steps.new_empty(*steps.shape[:3], sizes.H) for _ in range(2))
        scores, total = steps.new_empty(*steps.shape[:3], sizes.Q), steps.new_empty(steps.shape[:3])
        launch(forward_kernel, [*tensors, steps, states, cells, scores, total], sizes, range(sizes.C))
        # Nothing of the inputs is kept: the steps hold what backward needs of them.
        _, reversal, keys, values, _, score, state = tensors
        ctx.save_for_backward(steps, states, cells, scores, total, reversal, keys, values, score, bias, state)
        ctx.sizes, ctx.inputs_dtype = sizes, inputs.dtype
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from qa_arch.extras.kernels.kernels import backward_kernel

        steps, states, cells, scores, total, reversal, keys, values, score, bias, state = ctx.saved_tensors
        gradient, dscores, dcells = (torch.empty_like(x) for x in (steps, scores, cells[0]))
        tensors = [grad.contiguous(), keys, values, score, state, steps, cells, scores, total]
        launch(backward_kernel, [*tensors, gradient, dscores, dcells], ctx.sizes, range(ctx.sizes.C)[::-1])
        with torch.autocast(grad.device.type, enabled=False):
            dkeys, dscore = gradient_of_attention(keys, score, steps, dscores)
            # Attention was not stored: scores and their logsumexp give it again.
            attention = (scores - total[..., None]).exp_().permute(1, 3, 0, 2).flatten(2)
            dvalues = attention @ gradient[..., ctx.sizes.H :].transpose(0, 1).flatten(1, 2)
            dinputs = gradient_of_inputs(gradient, flat(reversal))
            dstate = gradient_of_state(gradient, states)
        return (
            dinputs.to(ctx.inputs_dtype),
            None,
            dkeys.to(keys.dtype),
            dvalues.to(values.dtype),
            None,
            dscore.to(score.dtype),
            # The softmax cancels the bias.
            torch.zeros_like(bias),
            dstate.to(state.dtype),
        )


# Launching the kernels ------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """Steps, windows, question units, hidden width."""

    C: int
    B: int
    Q: int
    H: int


def launch(kernel: Any, tensors: Sequence[Tensor], sizes: Sizes, steps: range) -> None:
    """Run ``steps`` (ascending or descending) of all rows; the last of ``tensors`` has the working dtype.

    Programs of a group synchronise with each other, so they must be resident at the same time: a launch has
    as many groups as are guaranteed to be, and further launches follow. If not even one group fits, the
    phases between the barriers are launched one by one.
    """
    from qa_arch.extras.kernels.kernels import ROWS, UNITS

    C, B, Q, H = sizes
    slices, groups = -(-H // UNITS), -(-2 * B // ROWS)
    partial = tensors[-1].new_empty(slices, 2 * B, Q)
    arrived = torch.zeros(groups, dtype=torch.int32, device=partial.device)
    # fp32 on tensor cores: one TF32 product if torch allows it, else three.
    precision = "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    tile = {"H": H, "NS": slices, "R": ROWS, "U": UNITS, "QB": BLOCK, "KB": 2 * BLOCK}

    def run(part: int, first: int, last: int, group0: int, count: int, cooperative: bool) -> None:
        kernel[slices, count](
            *tensors, partial, arrived, C, B, Q, first, last, group0,
            PART=part, PRECISION=precision, num_warps=8, launch_cooperative_grid=cooperative, **tile,
        )  # fmt: skip

    with torch.cuda.device_of(partial):
        if resident := resident_programs(partial.device) // slices:
            for group0 in range(0, groups, resident):
                run(0, 0, C, group0, min(resident, groups - group0), True)
            return
        for t in steps:
            run(1, t, t + 1, 0, groups, False)
            run(2, t, t + 1, 0, groups, False)


def gradient_of_attention(
    keys: Tensor, score: Tensor, steps: Tensor, dscores: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of ``keys`` and ``score`` from those of the scores of all steps."""
    from qa_arch.extras.kernels.kernels import keys_kernel

    (C, B, _, Q), (H,) = dscores.shape, score.shape
    blocks = -(-Q // BLOCK)
    dkeys, dscore = steps.new_empty(B, Q, H), steps.new_empty(B, blocks, H)
    with torch.cuda.device_of(keys):
        keys_kernel[B, blocks, -(-H // 32)](
            keys, score, steps, dscores, dkeys, dscore, C, B, Q, H=H, S=4, U=32, QB=BLOCK
        )
    return dkeys, dscore.sum((0, 1))


def resident_programs(device: torch.device) -> int:
    """Number of programs guaranteed to run concurrently: one per multiprocessor.

    0 under Triton's interpreter, which runs them one after another.
    """
    from triton import knobs

    if device.type != "cuda" or knobs.runtime.interpret:
        return 0
    return torch.cuda.get_device_properties(device).multi_processor_count
