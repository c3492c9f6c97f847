"""Weights of a teacher's encoder as those that a student's encoder begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import Encoder, WithBackbone
from qa_arch.nn.word_encoder import AnyEncoder

Layers = Literal["none", "embeddings", "first", "every_other"]
SAME = ("model_type", "hidden_size", "num_attention_heads", "hidden_act", "activation", "layer_norm_eps")
"""What two configurations have to share for the weights of one to mean the same in the other."""
WITHOUT = "set distillation.layers=none"


def copy_layers(teacher: WithBackbone | None, student: AnyEncoder, which: Layers) -> None:
    """Copy weights of ``teacher`` into ``student``: its embeddings, and the layers that ``which`` says.

    Of n layers the student's layer i becomes the teacher's i (``first``), or the ⌊i N / n⌋-th of its N
    (``every_other``; Sanh et al. 2019 took every second). Of a longer table of embeddings the student takes
    the first rows, as many as it has.

    Raises ConfigError where the encoders are of different families or shapes, or the student is the deeper.
    """
    if which == "none":
        return
    if teacher is None or not isinstance(student, Encoder):
        raise ConfigError(f"distillation.layers: {which} needs two encoders of layers; {WITHOUT}")
    _require_same_kind(teacher, student)
    layers = _chosen(len(teacher.layers()), student.depth, which)
    pairs = list(zip((teacher.layers()[layer] for layer in layers), student.layers(), strict=False))
    inside = {id(parameter) for _, own in pairs for parameter in own.parameters()}
    outside = {
        name: parameter
        for name, parameter in student.named_parameters()
        if id(parameter) not in inside and (pairs or student.depth_of(name) == 0)
    }
    _copy(dict(teacher.backbone.named_parameters(prefix="backbone")), outside)
    for theirs, own in pairs:
        _copy(dict(theirs.named_parameters()), dict(own.named_parameters()))


def _copy(sources: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(_fitting(sources.get(name), parameter, name.removeprefix("backbone.")))


def _require_same_kind(teacher: WithBackbone, student: Encoder) -> None:
    for key in SAME:
        theirs, ours = (getattr(encoder.config, key, None) for encoder in (teacher, student))
        if theirs != ours:
            raise ConfigError(
                f"distillation.layers: the teacher's {key} is {theirs}, the student's {ours}; {WITHOUT}, or"
                " give the student an encoder of the same kind and width"
            )


def _chosen(teacher: int, student: int, which: Layers) -> list[int]:
    """The teacher's layer, from 0, of each of the student's."""
    if which == "embeddings":
        return []
    if student > teacher:
        raise ConfigError(
            f"distillation.layers: the teacher has {teacher} layers and the student {student}; {WITHOUT}"
        )
    return [layer if which == "first" else layer * teacher // student for layer in range(student)]


def _fitting(source: Tensor | None, parameter: Tensor, name: str) -> Tensor:
    """``source`` in the shape of ``parameter``: all of it, or the first rows of a table."""
    if source is not None and source.ndim == 2 and "embeddings" in name and len(source) > len(parameter):
        source = source[: len(parameter)]
    if source is None or source.shape != parameter.shape:
        theirs = "nothing of that name" if source is None else f"shape {tuple(source.shape)}"
        raise ConfigError(
            f"distillation.layers: the student's {name} is of shape {tuple(parameter.shape)}, the teacher has"
            f" {theirs}; {WITHOUT}, or make the two alike"
        )
    return source
