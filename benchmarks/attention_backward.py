"""``python -m benchmarks.attention_backward``: fused CPU attention, forward + backward, bf16 over fp32."""

from __future__ import annotations

import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

BATCH, HEADS, WIDTH = 16, 12, 32  # MiniLM-L6


def seconds(dtype: torch.dtype, tokens: int) -> float:
    """Time one forward and backward pass with a padding mask."""
    shape = (BATCH, HEADS, tokens, WIDTH)
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = (torch.arange(tokens) < tokens - 9).expand(BATCH, 1, tokens, tokens)
    started = time.perf_counter()
    scaled_dot_product_attention(query, key, value, attn_mask=mask).sum().backward()
    return time.perf_counter() - started


def main() -> None:
    """Print the median ratio of seven alternating passes for several lengths."""
    torch.set_num_threads(1)
    for tokens in (96, 160, 256, 384):
        pairs = [(seconds(torch.bfloat16, tokens), seconds(torch.float32, tokens)) for _ in range(8)][1:]
        ratio = statistics.median(bf16 / fp32 for bf16, fp32 in pairs)
        print(f"{tokens} tokens: bf16 takes {ratio:.2f} x the time of fp32")


if __name__ == "__main__":
    main()
