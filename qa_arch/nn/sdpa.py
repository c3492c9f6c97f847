"""Attention of the encoders: torch's fused attention, in fp32 if its bf16 backward is slow."""

from __future__ import annotations

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from qa_arch.nn.masking import fast_attention

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
    """Attention function for transformers: (B, heads, T, D) each -> (B, T, heads, D), None."""

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return sdpa_attention_forward(module, query, key, value, mask, dropout, **kwargs)[0]

    return fast_attention(attend, query, key, value, attention_mask, dropout=dropout), None


def use_fused(backbone: PreTrainedModel) -> None:
    """Switch a backbone with torch's fused attention to the one above; leave others unchanged."""
    if backbone.config._attn_implementation == "sdpa":
        backbone.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
