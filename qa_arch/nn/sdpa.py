"""Attention of the encoders: torch's fused attention, in fp32 where its bf16 backward is slow."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

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
    """``query``, ``key``, ``value`` (B, heads, T, D) -> (B, T, heads, D), None: an attention of transformers.

    On a CPU the backward pass of the fused kernel takes 1.1 (T = 384) to 2.6 (T = 96) times as long in
    bf16 as in fp32 (``benchmarks/attention_backward.py``), so training casts around it. Dropout
    leaves the fused kernel, and is left as it is.
    """
    slow = query.device.type == "cpu" and query.dtype == torch.bfloat16 and torch.is_grad_enabled()
    if not slow or dropout:
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout, **kwargs)
    if attention_mask is not None and attention_mask.is_floating_point():
        attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        query, key, value = query.float(), key.float(), value.float()
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout, **kwargs)
    return output.bfloat16(), None


def use_fused(backbone: PreTrainedModel) -> None:
    """Give a backbone that uses torch's fused attention the one above; others keep their own."""
    if backbone.config._attn_implementation == FUSED:
        backbone.set_attn_implementation(NAME)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
