"""Inference precision of a trained model: its weights are cast once, before the first batch.

int8 weights can also be saved: ``NAME.weight`` holds the integers, ``NAME.weight_scale`` a scale per row.
They are used in int8 as they are, or dequantised for any other precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from qa_arch.errors import UnavailableError
from qa_arch.nn.encoder import encoders_of
from qa_arch.nn.processor import LARGEST, int8_product, pack

Precision = Literal["fp32", "bf16", "fp16", "int8"]
HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SCALE = "_scale"
"""Suffix of an int8 weight's name that gives the name of its scale."""
State = dict[str, Tensor]


def mixed(precision: str, device: str) -> AbstractContextManager[object]:
    """Autocast context of ``precision`` on ``device``; a null context for fp32 and int8."""
    return torch.autocast(device, HALVES[precision]) if precision in HALVES else nullcontext()


def cast_weights(model: nn.Module, precision: Precision) -> nn.Module:
    """Cast the encoder weights of ``model`` to ``precision`` in place, irreversibly; heads are unchanged.

    ``bf16`` casts the weights, which saves autocast from doing it in every forward pass. ``int8`` quantises
    the linear layers (``Int8Linear``); attention and norms stay fp32. ``fp16`` is left to autocast, which
    keeps residual sums in fp32, as fp16 overflows beyond 65,504.

    Raises UnavailableError for ``int8`` on a GPU, for a model without encoder, or if torch cannot quantise.
    """
    encoders = encoders_of(model)
    if precision == "int8" and not encoders:
        raise UnavailableError("precision int8: this model has no encoder to quantise; use fp32")
    for encoder in encoders:
        if precision == "bf16":
            encoder.backbone.to(torch.bfloat16)
        elif precision == "int8":
            if (device := next(encoder.parameters()).device).type != "cpu":
                raise UnavailableError(
                    f"precision int8: runs on a CPU, not on {device}; use --device cpu or bf16"
                )
            quantise(encoder.backbone)
    return model


def to_int8(weight: Float[Tensor, "N D"]) -> tuple[Int8[Tensor, "N D"], Float[Tensor, "N"]]:
    """Quantise symmetrically per row: (integers, scale), with ``integers * scale[:, None]`` ≈ ``weight``."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """Linear layer for CPU inference: x W^T + b = (s_x q_x) (s_w q_w)^T + b, accumulated in int32.

    ``quantised`` q_w and ``scale`` s_w come from ``to_int8``. With a scale s_x per token (Yao et al. 2022,
    ZeroQuant, section 4.1) an answer does not depend on the other windows of its batch, as it does with the
    single scale of torch's dynamic quantisation. Raises UnavailableError without an int8 product that is
    exact on this processor (``nn.processor``).
    """

    def __init__(
        self, quantised: Int8[Tensor, "N D"], scale: Float[Tensor, "N"], bias: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.out_features, self.bias = len(quantised), bias
        self.scale, self.packed, self.product = scale, pack(quantised), int8_product()

    def forward(self, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R E"]:
        rows = x.reshape(-1, x.shape[-1])
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        sums = self.product((rows * (LARGEST / largest)).round_(), self.packed, self.scale)
        scale = largest / LARGEST
        sums = sums.mul_(scale) if self.bias is None else torch.addcmul(self.bias, sums, scale)
        return sums.view(*x.shape[:-1], self.out_features)


def quantise(module: nn.Module) -> None:
    """Replace every ``nn.Linear`` inside ``module`` by an ``Int8Linear``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Int8Linear(*to_int8(child.weight), child.bias))
        else:
            quantise(child)


class Int8Embedding(nn.Module):
    """Embedding that dequantises only the rows it looks up."""

    def __init__(self, quantised: Int8[Tensor, "V H"], scale: Float[Tensor, "V"]) -> None:
        super().__init__()
        self.register_buffer("quantised", quantised, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.quantised: Tensor
        self.scale: Tensor
        self.num_embeddings = len(quantised)

    def forward(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B H"]:
        return self.quantised[ids] * self.scale[ids][..., None]


def int8_state(model: nn.Module, *, embeddings: bool = False) -> State:
    """State dict of ``model`` with its encoder's linear layers (and token ``embeddings``) in int8."""
    state = model.state_dict()
    for name, _ in _stored_modules(model, embeddings=embeddings):
        weight = f"{name}.weight"
        state[weight], state[weight + SCALE] = to_int8(state[weight])
    return state


def dequantised(state: State) -> State:
    """``state`` with its int8 weights multiplied by their row scales; raises the errors of ``take_int8``."""
    rest = dict(state)
    for name in state:
        if (stored := _pop_int8(rest, name)) is not None:
            quantised, scale = stored
            rest[name] = quantised * scale[:, None]
    return rest


def take_int8(model: nn.Module, state: State) -> State:
    """Replace the modules of ``model`` whose weights are int8 in ``state``; return the remaining state.

    Raises RuntimeError, like ``load_state_dict``, for a weight of another shape or without its scales.
    """
    rest = dict(state)
    for name, module in list(_stored_modules(model, embeddings=True)):
        weight = f"{name}.weight"
        if (stored := _pop_int8(rest, weight)) is None:
            continue
        quantised, scale = stored
        if quantised.shape != module.weight.shape:
            raise RuntimeError(f"size mismatch for {weight}: {tuple(quantised.shape)} in int8")
        if isinstance(module, nn.Linear):
            model.set_submodule(name, Int8Linear(quantised, scale, module.bias))
        else:
            model.set_submodule(name, Int8Embedding(quantised, scale))
    return rest


def _pop_int8(state: State, name: str) -> tuple[Tensor, Tensor] | None:
    """Remove the int8 weight ``name`` and its scales from ``state``; None for any other tensor."""
    value = state.get(name)
    if value is None or value.dtype != torch.int8 or not name.endswith(".weight"):  # such as an int8 buffer
        return None
    scale = state.pop(name + SCALE, None)
    if value.ndim != 2 or scale is None or scale.shape != value.shape[:1] or scale.dtype != torch.float32:
        raise RuntimeError(f"{name}{SCALE} must have one value per row of the int8 weight, in fp32")
    return state.pop(name), scale


def _stored_modules(model: nn.Module, *, embeddings: bool) -> Iterator[tuple[str, nn.Linear | nn.Embedding]]:
    """(name in ``model``, module) of the encoders' linear layers and, if wanted, token embeddings."""
    inside = {id(module) for encoder in encoders_of(model) for module in encoder.backbone.modules()}
    tokens = {id(encoder.backbone.get_input_embeddings()) for encoder in encoders_of(model)}
    for name, module in model.named_modules():
        linear = type(module) is nn.Linear and id(module) in inside
        if linear or (embeddings and isinstance(module, nn.Embedding) and id(module) in tokens):
            yield name, module
