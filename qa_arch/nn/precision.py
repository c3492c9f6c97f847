"""Inference precision of a trained model, cast once, and what this processor computes fast."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Literal

import torch
from torch import Tensor, nn

from qa_arch.errors import UnavailableError
from qa_arch.nn.encoder import encoders_of

Precision = Literal["fp32", "bf16", "fp16", "int8"]
"""``int8``: of an exported graph."""
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def mixed(precision: str, device: str) -> AbstractContextManager[object]:
    """Autocast context of ``precision`` on ``device``; a null context for fp32 and int8."""
    return torch.autocast(device, HALVES[precision]) if precision in HALVES else nullcontext()


def cast_weights(model: nn.Module, precision: Precision) -> nn.Module:
    """Cast the encoder weights of ``model`` to ``precision`` in place, irreversibly; heads are unchanged.

    ``bf16`` casts the weights, which saves autocast from doing it in every forward pass. ``fp16`` is left to
    autocast, which keeps residual sums in fp32, as fp16 overflows beyond 65,504. Raises UnavailableError for
    ``int8``, in which only graphs run.
    """
    if precision == "int8":
        raise UnavailableError(
            "precision int8: needs a graph; export one (qa-arch export RUN --to onnx --precision int8 --out"
            " GRAPH) and give GRAPH instead of RUN"
        )
    if precision == "bf16":
        for encoder in encoders_of(model):
            encoder.backbone.to(torch.bfloat16)
    return model


@cache
def bf16_is_faster() -> bool:
    """Whether a bf16 matrix product is faster than fp32 on this CPU, i.e. not just emulated."""
    x, weight = torch.ones(128, 256), torch.ones(256, 256)
    fp32, bf16 = (_seconds(x.to(kind), weight.to(kind)) for kind in (torch.float32, torch.bfloat16))
    return bf16 < fp32


def _seconds(x: Tensor, weight: Tensor) -> float:
    """Shortest of a few timed products; the first ones are warm-up."""
    times = []
    for _ in range(8):
        start = time.perf_counter()
        nn.functional.linear(x, weight)
        times.append(time.perf_counter() - start)
    return min(times)
