"""Attention of the encoders: torch's fused attention, in fp32 where its bf16 backward is slow."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from qa_arch.nn.masking import fast_attention

FUSED = "sdpa"
NAME = "qa_arch_sdpa"


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, None]:
    """``query``, ``key``, ``value`` (B, heads, T, D) -> (B, T, heads, D), None; for transformers."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, dropout, **kwargs)[0]

    return fast_attention(attend, query, key, value, attention_mask, dropout=dropout), None


def use_fused(backbone: PreTrainedModel) -> None:
    """Give a backbone that uses torch's fused attention the one above; others keep their own."""
    if backbone.config._attn_implementation == FUSED:
        backbone.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
