"""The precision in which a finished model reads: its weights are cast once, before the first batch.

Weights in int8 are also a state to be saved: ``NAME.weight`` in whole numbers, ``NAME.weight_scale`` by row.
They are read in int8 as they stand, or dequantised for any other precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
"""Behind the name of a weight that is stored in int8: the name of its scale."""
State = dict[str, Tensor]


def mixed(precision: str, device: str) -> AbstractContextManager[object]:
    """The autocast of ``precision`` on ``device``; for fp32 and int8 none."""
    return torch.autocast(device, HALVES[precision]) if precision in HALVES else nullcontext()


def cast_weights(model: nn.Module, precision: Precision) -> nn.Module:
    """``model`` with its encoder's weights in ``precision``, in place and for good; heads keep theirs.

    ``bf16`` casts the weights, which autocast would do again in every pass. ``int8`` quantises the
    linear maps (``Int8Linear``); attention and norms stay fp32. ``fp16`` is left to autocast, whose
    residual sums are fp32: beyond 65,504 fp16 overflows.

    Raises UnavailableError for ``int8`` on a GPU, of a model without encoder, or where torch cannot quantise.
    """
    encoders = encoders_of(model)
    if precision == "int8" and not encoders:
        raise UnavailableError("precision int8: this model has no encoder to quantise; use fp32")
    for encoder in encoders:
        if precision == "bf16":
            encoder.cast(torch.bfloat16)
        elif precision == "int8":
            if (device := next(encoder.parameters()).device).type != "cpu":
                raise UnavailableError(
                    f"precision int8: runs on a CPU, not on {device}; use --device cpu or bf16"
                )
            quantise(encoder.backbone)
    return model


def to_int8(weight: Float[Tensor, "N D"]) -> tuple[Int8[Tensor, "N D"], Float[Tensor, "N"]]:
    """Whole numbers and the scale of each row; their product is ``weight``, rounded. Zeros stay zeros."""
    weight = weight.detach().float()
    scale = weight.abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
    return (weight / scale[:, None]).round().to(torch.int8), scale


class Int8Linear(nn.Module):
    """A linear map for reading on a CPU: x W^T + b = (s_x q_x) (s_w q_w)^T + b, products summed in int32.

    ``whole`` q_w and ``scale`` s_w are those of ``to_int8``. With a scale s_x for each token (Yao et al.
    2022, ZeroQuant, section 4.1) an answer does not depend on the windows it shares a batch with, as it does
    under torch's dynamic quantisation, whose one scale for all moved a MiniLM's span scores six times as far.

    The product is the one that is exact on this processor (``nn.processor``). UnavailableError without one.
    """

    def __init__(
        self, whole: Int8[Tensor, "N D"], scale: Float[Tensor, "N"], bias: nn.Parameter | None
    ) -> None:
        super().__init__()
        self.out_features, self.bias = len(whole), bias
        self.scale, self.packed, self.product = scale, pack(whole), int8_product()

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The map of ``linear``, rounded."""
        return cls(*to_int8(linear.weight), linear.bias)

    def forward(self, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R E"]:
        rows = x.reshape(-1, x.shape[-1])
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        sums = self.product((rows * (LARGEST / largest)).round_(), self.packed, self.scale)
        sums = (
            sums.mul_(largest / LARGEST)
            if self.bias is None
            else torch.addcmul(self.bias, sums, largest / LARGEST)
        )
        return sums.view(*x.shape[:-1], self.out_features)


def quantise(module: nn.Module) -> None:
    """Replace every linear map inside ``module``, in place."""
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            setattr(module, name, Int8Linear.of(child))
        else:
            quantise(child)


class Int8Embedding(nn.Module):
    """A lookup table of which only the rows that are looked up become fp32."""

    def __init__(
        self, whole: Int8[Tensor, "V H"], scale: Float[Tensor, "V"], padding_idx: int | None
    ) -> None:
        super().__init__()
        self.num_embeddings, self.padding_idx = len(whole), padding_idx
        self.register_buffer("whole", whole, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.whole: Tensor
        self.scale: Tensor

    def forward(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B H"]:
        return self.whole[ids] * self.scale[ids][..., None]


def int8_state(model: nn.Module, *, embeddings: bool = False) -> State:
    """The state of ``model``, the linear maps of its encoder in int8; with ``embeddings`` its tokens' too."""
    state = model.state_dict()
    for name, _ in _stored_modules(model, embeddings=embeddings):
        weight = f"{name}.weight"
        state[weight], state[weight + SCALE] = to_int8(state[weight])
    return state


def dequantised(state: Mapping[str, Tensor]) -> State:
    """``state`` in floating point: each whole number times the scale of its row."""
    floats = {name: value for name, value in state.items() if not name.endswith(f".weight{SCALE}")}
    return {
        name: value * state[name + SCALE][:, None] if value.dtype == torch.int8 else value
        for name, value in floats.items()
    }


def take_int8(model: nn.Module, state: Mapping[str, Tensor]) -> State:
    """Replace the modules of ``model`` whose weights ``state`` holds in int8; returns the rest of it.

    RuntimeError, as of ``load_state_dict``, where a shape is not that of the model.
    """
    rest = dict(state)
    for name, module in list(_stored_modules(model, embeddings=True)):
        weight = f"{name}.weight"
        if weight + SCALE not in rest:
            continue
        whole, scale = rest.pop(weight), rest.pop(weight + SCALE)
        if whole.shape != module.weight.shape or len(scale) != len(whole):
            raise RuntimeError(f"size mismatch for {weight}: {tuple(whole.shape)} in int8")
        model.set_submodule(
            name,
            Int8Linear(whole, scale, module.bias)
            if isinstance(module, nn.Linear)
            else Int8Embedding(whole, scale, module.padding_idx),
        )
    return rest


def _stored_modules(model: nn.Module, *, embeddings: bool) -> Iterator[tuple[str, nn.Linear | nn.Embedding]]:
    """The linear maps and the token embeddings of the encoders, by their names in ``model``."""
    inside = {id(module) for encoder in encoders_of(model) for module in encoder.backbone.modules()}
    tokens = {id(encoder.backbone.get_input_embeddings()) for encoder in encoders_of(model)}
    for name, module in model.named_modules():
        linear = type(module) is nn.Linear and id(module) in inside
        if linear or (embeddings and isinstance(module, nn.Embedding) and id(module) in tokens):
            yield name, module
