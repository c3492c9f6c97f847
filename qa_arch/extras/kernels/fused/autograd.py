"""The recurrence of the match-LSTM on a GPU: all steps of a batch in one launch forward, one backward.

``recur_fused`` computes what ``qa_arch.nn.match_lstm.recur_plain`` computes, by the Triton kernels of
``forward`` and ``backward``. The tape holds per step and row query, gates, state, cell and scores;
the energies, the one large tensor of a step, are never in memory and are computed again. Gradients
that no step waits for follow the loop: those of keys and score in one kernel, those of values, inputs
and weights as products over all steps.

Why this design, as estimated before the kernels ran, for an H200 (132 multiprocessors, about 5 TB/s from L2:
40 KB per µs for each when all read, perhaps 80 when a third of them do) at 384 steps, 32 windows, so 64 rows,
33 question units:

- The weights of a step are 5H² numbers: 0.45 MB at H = 150 and 2.9 MB at H = 384 in fp32, more than a
  multiprocessor holds (228 KB). A program per row would stream all of them at each step: 6 to 12 µs at
  H = 150, and 40 to 75 µs at H = 384. Cutting them by hidden units over the programs makes it 1/10 and
  1/24 of that, for two meetings a step, of about 1.2 µs each.
- A launch per phase, 2 × 384 forward and as many backward, costs 5 µs or more of host time each; in a
  CUDA graph it would not, but batches change their shape from step to step and each shape would need
  its own graph. One cooperative launch needs neither.
- Bytes from L2 per program and step forward: weights 48 KB (123 KB at H = 384), values 68 KB, keys
  17 KB, previous states 10 KB (25 KB), partial sums 21 KB (51 KB): 0.16 MB on 40 programs and 0.28 MB on
  96, so 2 and 5 µs. Backward the weights and values are the same, the gradient behind is five times
  the states, and the partial sums are read twice: 0.24 MB and 0.44 MB, so 3 and 8 µs.
- Arithmetic per step: 14 and 94 MFLOP of products, 0.1 µs or less of TF32 tensor cores spread over the
  programs, three times that for exact fp32; the chain of dependent ones in a program takes 1 to 2 µs.
  Energies are B·2·Q·H of two special functions each, 0.3 µs.

With the meetings and four reads of L2 that wait for each other (0.7 µs each) that makes 7 µs a step
forward and 9 backward at H = 150, 11 and 15 at H = 384: 6 and 10 ms for forward + backward.

Measured on an H100 (``benchmarks/NOTES.md``, "On an H100"): 1.88 times as long as cuDNN's LSTM at H = 150 and
1.36 times at H = 384, and 15 and 12 times as fast as the eager loop; ``python -m benchmarks gpu-match-lstm
gpu-match-lstm-eager`` repeats it. Without a GPU the tests run the kernels under Triton's interpreter, which
cannot run the meetings, so no run takes them by itself before ``qa_arch.extras.kernels.proof`` has proven
them on its card.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from qa_arch.extras.kernels.fused.launch import Sizes, gradient_of_attention, launch
from qa_arch.nn.recurrence import flat, gradient_of_inputs, gradient_of_state


@torch.compiler.disable  # the compiler would launch the kernels itself, and not cooperatively
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
    """``recur_plain`` by the kernels: any float type comes in, fp32 at least is inside and comes out."""
    return _Fused.apply(inputs, reversal, keys, values, mask, score, bias, state)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs, reversal, keys, values, mask, score, bias, state) -> Tensor:
        from qa_arch.extras.kernels.fused.forward import forward_kernel

        given = [x.contiguous() for x in (inputs, reversal, keys, values, mask, score, state)]
        sizes = Sizes(len(inputs), len(keys), keys.shape[1], len(score))
        steps = inputs.new_empty(
            *sizes[:2], 2, inputs.shape[2], dtype=torch.promote_types(inputs.dtype, torch.float32)
        )
        states, cells = (steps.new_empty(*steps.shape[:3], sizes.H) for _ in range(2))
        scores, total = steps.new_empty(*steps.shape[:3], sizes.Q), steps.new_empty(steps.shape[:3])
        launch(forward_kernel, [*given, steps, states, cells, scores, total], sizes, range(sizes.C))
        _, reversal, keys, values, _, score, state = given
        ctx.save_for_backward(steps, states, cells, scores, total, reversal, keys, values, score, bias, state)
        ctx.sizes, ctx.inputs_dtype = sizes, inputs.dtype
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from qa_arch.extras.kernels.fused.backward import backward_kernel

        steps, states, cells, scores, total, reversal, keys, values, score, bias, state = ctx.saved_tensors
        gradient, dscores, dcells = (torch.empty_like(x) for x in (steps, scores, cells[0]))
        given = [grad.contiguous(), keys, values, score, state, steps, cells, scores, total]
        launch(backward_kernel, [*given, gradient, dscores, dcells], ctx.sizes, range(ctx.sizes.C)[::-1])
        with torch.autocast(grad.device.type, enabled=False):
            dkeys, dscore = gradient_of_attention(keys, score, steps, dscores)
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
            torch.zeros_like(bias),
            dstate.to(state.dtype),
        )
