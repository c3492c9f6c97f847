"""Distillation: soft-target loss of a student, and initialisation of its layers from the teacher.

Axes: ``B`` windows, ``T`` tokens, ``K`` outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qa_arch.errors import ConfigError
from qa_arch.nn.encoder import AnyEncoder, Encoder, WithBackbone, WordEncoder
from qa_arch.nn.masking import at_least_float32
from qa_arch.tensors import SpanLogits

Layers = Literal["none", "embeddings", "first", "every_other"]
SHARED_SETTINGS = (
    "model_type",
    "hidden_size",
    "num_attention_heads",
    "hidden_act",
    "activation",
    "layer_norm_eps",
)
"""Settings that must be equal for the weights of one encoder to fit the other."""
REMEDY = "set distillation.layers=none"


def divergence(
    scores: Float[Tensor, "*R K"], target: Float[Tensor, "*R K"], temperature: float = 1.0
) -> Float[Tensor, "*R"]:
    """KL(p ‖ q) = Σ_k p_k (log p_k - log q_k), p = softmax(target / τ), q = softmax(scores / τ).

    Outcomes that the student masks (-inf) are masked in the teacher too, whose other probabilities are
    renormalised.
    """
    scores, target = at_least_float32(scores), at_least_float32(target)
    log_q = (scores / temperature).log_softmax(-1)
    log_p = (target.masked_fill(~scores.isfinite(), -math.inf) / temperature).log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0.0)).sum(-1)  # 0 log 0 is 0, and no NaN flows back


def soft_target_loss(
    student: SpanLogits, teacher: SpanLogits, *, temperature: float = 1.0
) -> Float[Tensor, "B"]:
    """τ² KL(teacher ‖ student), both softened by τ (Hinton et al. 2015, section 2).

    The factor τ² keeps the scale of the gradients, which softening divides by τ². As in ``SpanLoss``, the
    outcomes of start and end are the context positions and the null; their two divergences are averaged, and
    the verifier's, if any, is added. If only one of the two models has a verifier, it is part of its null.
    """
    if student.verifier is None or teacher.verifier is None:
        student, teacher = student.folded(), teacher.folded()
    start, end = (
        divergence(_with_null(student, which), _with_null(teacher, which), temperature)
        for which in ("start", "end")
    )
    loss = (start + end) / 2
    if student.verifier is not None and teacher.verifier is not None:
        # The verifier's two outcomes: sigmoid(v) is a softmax over (v, 0).
        odds, target = (
            torch.stack([v, torch.zeros_like(v)], -1) for v in (student.verifier, teacher.verifier)
        )
        loss = loss + divergence(odds, target, temperature)
    return temperature**2 * loss


def _with_null(logits: SpanLogits, which: Literal["start", "end"]) -> Float[Tensor, "B K"]:
    return torch.cat([getattr(logits, which), getattr(logits, f"null_{which}")[:, None]], dim=1)


def copy_layers(teacher: WithBackbone | WordEncoder | None, student: AnyEncoder, which: Layers) -> None:
    """Copy the embeddings of ``teacher`` into ``student``, and the layers selected by ``which``.

    Layer i of the student's n is initialised from the teacher's layer i (``first``) or ⌊i N / n⌋ of N
    (``every_other``; Sanh et al. 2019 took every second). A longer embedding table is cut to the student's
    number of rows.

    Raises ConfigError if the encoders differ in family or shape, or the student is deeper.
    """
    if which == "none":
        return
    if not isinstance(teacher, WithBackbone) or not isinstance(student, Encoder):
        raise ConfigError(f"distillation.layers: {which} needs two transformer encoders; {REMEDY}")
    for key in SHARED_SETTINGS:
        theirs, ours = (getattr(encoder.config, key, None) for encoder in (teacher, student))
        if theirs != ours:
            raise ConfigError(
                f"distillation.layers: the teacher's {key} is {theirs}, the student's {ours}; {REMEDY}, or"
                " give the student an encoder of the same kind and width"
            )
    layers = _source_layers(len(teacher.layers()), student.depth, which)
    pairs = list(zip((teacher.layers()[layer] for layer in layers), student.layers(), strict=False))
    # Embeddings and a final norm are outside of all layers; without layers only embeddings are copied.
    inside = {id(parameter) for _, own in pairs for parameter in own.parameters()}
    outside = {
        name: parameter
        for name, parameter in student.named_parameters()
        if id(parameter) not in inside and (pairs or student.depth_of(name) == 0)
    }
    _copy(dict(teacher.backbone.named_parameters(prefix="backbone")), outside)
    for source, target in pairs:
        _copy(dict(source.named_parameters()), dict(target.named_parameters()))


@torch.no_grad()
def _copy(sources: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Copy the source of the same name into each parameter; an embedding table is cut to its rows."""
    for name, parameter in parameters.items():
        source = sources.get(name)
        # The student may read shorter texts.
        if source is not None and source.ndim == 2 and "embeddings" in name:
            source = source[: len(parameter)]
        if source is None or source.shape != parameter.shape:
            theirs = "no such weight" if source is None else f"shape {tuple(source.shape)}"
            raise ConfigError(
                f"distillation.layers: the student's {name.removeprefix('backbone.')} has shape"
                f" {tuple(parameter.shape)}, the teacher has {theirs}; {REMEDY}, or give both the same"
                " architecture"
            )
        parameter.copy_(source)


def _source_layers(teacher: int, student: int, which: Layers) -> list[int]:
    """Index of the teacher's layer for each student layer."""
    if which == "embeddings":
        return []
    if student > teacher:
        raise ConfigError(
            f"distillation.layers: the teacher has {teacher} layers and the student {student}; {REMEDY}"
        )
    return [layer if which == "first" else layer * teacher // student for layer in range(student)]
