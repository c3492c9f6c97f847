"""The encoders' attention: that of the library, whatever precision its backward pass takes."""

from __future__ import annotations

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from qa_arch.nn import sdpa
from qa_arch.nn.encoder_factory import build_encoder

MODULE = torch.nn.Module()


def parts(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, 3, 7, 8, dtype=dtype, requires_grad=True) for _ in range(3)]


def keys_of(lengths: list[int]) -> torch.Tensor:
    return (torch.arange(7) < torch.tensor(lengths)[:, None])[:, None, None].expand(-1, 1, 7, 7)


def with_gradients(function, given, mask):
    actual, _ = function(MODULE, *given, mask, scaling=8**-0.5)
    actual.float().square().sum().backward()
    return [actual, *(part.grad for part in given)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_library(dtype):
    mask = keys_of([7, 4])
    ours = with_gradients(sdpa.attention, parts(dtype), mask)
    theirs = with_gradients(
        sdpa_attention_forward, [p.detach().float().requires_grad_() for p in parts(dtype)], mask
    )
    for actual, expected in zip(ours, theirs, strict=True):
        assert actual.dtype == dtype
        torch.testing.assert_close(
            actual.float(), expected, rtol=0.02, atol=0.02 if dtype == torch.bfloat16 else 0
        )


@pytest.mark.parametrize("family", ["bert", "albert", "roberta", "distilbert"])
def test_encoders_use_it_and_their_descriptions_do_not_name_it(family):
    sizes = {"layers": 1, "width": 16, "heads": 2, "vocab_size": 50, "max_positions": 12, "pad_token_id": 0}
    encoder = build_encoder(init="random", family=family, **sizes)
    assert encoder.config._attn_implementation == sdpa.NAME
    assert sdpa.NAME not in str(encoder.describe())
