"""The precision in which a finished model reads: its weights are cast once, before the first batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from qa_arch.errors import UnavailableError
from qa_arch.nn.encoder import Encoder
from qa_arch.nn.int8 import quantise

Precision = Literal["fp32", "bf16", "fp16", "int8"]


def cast_weights(model: nn.Module, precision: Precision) -> nn.Module:
    """``model`` with its encoder's weights in ``precision``, in place and for good; heads keep theirs.

    ``bf16`` casts the weights, which autocast would do again in every pass. ``int8`` quantises the
    linear maps (see ``nn.int8``); attention and norms stay fp32. ``fp16`` is left to autocast, whose
    residual sums are fp32: beyond 65,504 fp16 overflows.

    Raises UnavailableError for ``int8`` on a GPU, of a model without encoder, or where torch cannot quantise.
    """
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if precision == "int8" and not encoders:
        raise UnavailableError("precision int8: this model has no encoder to quantise; use fp32")
    for encoder in encoders:
        if precision == "bf16":
            encoder.cast(torch.bfloat16)
        elif precision == "int8":
            quantise(encoder.backbone)
    return model
