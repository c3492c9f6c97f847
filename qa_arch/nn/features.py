"""Features appended to the encoder's output, word vectors and the overlap flag; and the size of a model."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.backends import cudnn, mkldnn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from qa_arch.nn.reading import evaluating
from qa_arch.records import Parameters


class WordFeatures(nn.Module):
    """Append each piece's word vector (GloVe) and whether its word occurs in the other text.

    ``vectors``: float32 table ``(V, d)``; row 0 is zero, for unknown words. A frozen table is not saved
    with the weights; with ``train_vectors`` it is a parameter whose row 0 stays zero.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        vectors: Float[Tensor, "V d"] | None = None,
        train_vectors: bool = False,
        overlap_flag: bool = False,
    ) -> None:
        super().__init__()
        self.overlap_flag = overlap_flag
        self.vectors: nn.Parameter | Tensor | None
        # A meta tensor has no values to check.
        if vectors is not None and vectors.device.type != "meta" and bool(vectors[0].any()):
            raise ValueError("row 0 of the word vectors is for unknown words and must be zero")
        if vectors is not None and train_vectors:
            self.vectors = nn.Parameter(vectors.clone())
        else:
            self.register_buffer("vectors", vectors, persistent=False)
        self.out_dim = in_dim + (0 if vectors is None else vectors.shape[1]) + overlap_flag

    def forward(
        self, x: Float[Tensor, "B T H"], vector: Int[Tensor, "B T"] | None, overlap: Bool[Tensor, "B T"]
    ) -> Float[Tensor, "B T D"]:
        parts = [x]
        if self.vectors is not None:
            if vector is None:
                raise ValueError("the model has word vectors, but the batch has no vector rows")
            # With padding_idx row 0 gets no gradient, and so stays zero.
            parts.append(nn.functional.embedding(vector, self.vectors, padding_idx=0).to(x.dtype))
        if self.overlap_flag:
            parts.append(overlap[..., None].to(x.dtype))
        return torch.cat(parts, dim=-1)


def parameter_blocks(model: nn.Module) -> Parameters:
    """Count the parameters of ``model`` per direct child with parameters; works on meta tensors.

    A frozen table of word vectors is counted separately.
    """
    blocks = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    features = [module for module in model.modules() if isinstance(module, WordFeatures)]
    frozen = {id(table): table.numel() for module in features for table in module.buffers()}  # once if shared
    return Parameters(
        total=sum(p.numel() for p in model.parameters()),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        blocks={name: count for name, count in blocks.items() if count},
        word_vectors=sum(frozen.values()),
    )


_UNLISTED = {
    torch.ops.aten.addmm_: lambda _, left, right, **options: 2 * math.prod(left) * right[1],
    torch.ops.aten.mv: lambda matrix, vector, **options: 2 * math.prod(matrix),
}
"""Products of a match-LSTM's recurrence that torch's counter does not know, by their factors' shapes."""


@torch.no_grad()
def forward_flops(model: nn.Module, batch: Any) -> int:
    """Floating-point operations of the matrix products in a forward pass, two for each multiply-add.

    Libraries that hide the products of attention and LSTMs from the counter are switched off meanwhile.
    """
    with (
        evaluating(model),
        warnings.catch_warnings(action="ignore"),
        mkldnn.flags(enabled=False),
        cudnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, custom_mapping=_UNLISTED) as counter,
    ):
        # Without gradients also for the counter, which fails at a view of a parameter that a module is given.
        functional_call(model, {name: value.detach() for name, value in model.named_parameters()}, (batch,))
    return counter.get_total_flops()
