"""Attention probabilities of an encoder's layers and heads, which its fused attention does not hand out.

Axes: ``B`` windows, ``N`` heads, ``T`` tokens; in ``(B, N, T, T)`` the first T looks at the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from qa_arch.errors import RunError
from qa_arch.nn.encoder import encoder_of
from qa_arch.nn.precision import Precision, mixed
from qa_arch.types.tensors import Batch

PLAIN = "eager"
"""transformers' name of attention as the formula has it: softmax(QK^T/√d)V, probabilities and all."""
HIDDEN_TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "fp16": 0.02, "bf16": 0.1, "int8": 0.1}
"""By how much rounding may change the hidden states, as a share of the largest; a MiniLM's change by 6e-7 in
fp32, 0.0006 in fp16, 0.005 in bf16 and 0.02 in int8."""
SUM_TOLERANCE: dict[Precision, float] = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 0.03, "int8": 1e-4}


def attention_weights(
    model: nn.Module, batch: Batch, precision: Precision = "fp32"
) -> tuple[Float[Tensor, "B N T T"], ...]:
    """The attention probabilities of each layer of the model's encoder, from the lowest layer up.

    The model reads ``batch`` twice, as always and with attention written out, and the hidden states of the
    real tokens must be the same but for rounding: so the probabilities are those of the computation that
    answers. Each real token's sum to 1, with 0 for padding. Raises RunError where any of this fails, as
    with encoders whose attention is not of each token to each (Longformer) or is none (FNet).
    """
    encoder = encoder_of(model)
    if encoder is None:
        raise RunError("attention: the model has no transformer encoder, it reads word vectors")
    backbone = encoder.backbone
    kind = backbone.config.model_type
    with torch.inference_mode(), mixed(precision, batch.ids.device.type):
        fused = _read(model, batch, backbone)
        with _written_out(backbone):
            plain = _read(model, batch, backbone, output_attentions=True)
    expected, actual = (output.last_hidden_state[batch.mask].float() for output in (fused, plain))
    _check_hidden(expected, actual, HIDDEN_TOLERANCE[precision], kind)
    layers = getattr(plain, "attentions", None) or ()
    if not layers:
        raise RunError(f"attention: {kind} gives no attention probabilities")
    for number, weights in enumerate(layers, start=1):
        _check_weights(weights, batch.mask, SUM_TOLERANCE[precision], f"attention: layer {number} of {kind}")
    return tuple(weights.float() for weights in layers)


@contextmanager
def _written_out(backbone: PreTrainedModel) -> Iterator[None]:
    """Within, the backbone computes attention without a fused kernel."""
    usual = backbone.config._attn_implementation
    backbone.set_attn_implementation(PLAIN)
    try:
        yield
    finally:
        backbone.set_attn_implementation(usual)


def _read(model: nn.Module, batch: Batch, backbone: PreTrainedModel, **options: bool) -> Any:
    """What the backbone returns to the model as it reads ``batch``; ``options`` go to the backbone."""
    outputs: list[Any] = []
    hooks = (
        backbone.register_forward_pre_hook(lambda *call: (call[1], call[2] | options), with_kwargs=True),
        backbone.register_forward_hook(lambda *call: outputs.append(call[2])),
    )
    try:
        model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs[0]


def _check_hidden(
    fused: Float[Tensor, "R H"], plain: Float[Tensor, "R H"], tolerance: float, kind: str
) -> None:
    difference = float((fused - plain).abs().max() / fused.abs().max())
    if not difference <= tolerance:  # NaN neither
        raise RunError(
            f"attention: the hidden states of {kind} differ by {difference:.2g} of the largest between fused"
            " and written-out attention, so the probabilities would be those of another computation; please"
            " report it"
        )


def _check_weights(weights: Tensor, mask: Bool[Tensor, "B T"], tolerance: float, where: str) -> None:
    windows, tokens = mask.shape
    if weights.shape != (windows, weights.shape[1], tokens, tokens):
        raise RunError(f"{where}: is not of each token to each token, its shape is {tuple(weights.shape)}")
    real = weights.float().transpose(1, 2)[mask]  # (real tokens, N, T)
    error = float((real.sum(-1) - 1).abs().max())
    if not error <= tolerance:
        raise RunError(f"{where}: the probabilities of a token miss a sum of 1 by {error:.2g}")
    padding = ~mask[:, None].expand(-1, tokens, -1)[mask]  # (real tokens, T)
    if bool((real * padding[:, None]).any()):
        raise RunError(f"{where}: looks at padding")
