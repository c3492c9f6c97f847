"""Weights in int8 as a state to be saved: ``NAME.weight`` in whole numbers, ``NAME.weight_scale`` by row.

A state is read in int8 as it stands, or dequantised for any other precision.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn

from qa_arch.nn.encoder import encoders_of
from qa_arch.nn.precision import Int8Linear, to_int8

SCALE = "_scale"
"""Behind the name of a weight that is stored in int8: the name of its scale."""
State = dict[str, Tensor]


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
