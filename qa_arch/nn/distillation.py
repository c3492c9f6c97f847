"""How far a student is from its teacher in each window: by outcomes, hidden states, attention relations.

Pure functions of what both computed for the same windows; all are 0 where the two agree. Nothing flows back
to the teacher. Axes: ``B`` windows, ``T`` tokens, ``K`` outcomes, ``H`` width, ``R`` relation heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from qa_arch.errors import ConfigError
from qa_arch.nn.masking import at_least_float32
from qa_arch.types.tensors import SpanLogits, span_scores

Outcomes = Literal["boundaries", "spans"]
Relation = Literal["qk", "qq", "kk", "vv"]
MINILM_V2: tuple[Relation, ...] = ("qq", "kk", "vv")
"""The relations of Wang et al. 2021; those of Wang et al. 2020 are qk and vv."""


def divergence(
    scores: Float[Tensor, "*R K"], target: Float[Tensor, "*R K"], temperature: float = 1.0
) -> Float[Tensor, "*R"]:
    """KL(p ‖ q) = Σ_k p_k (log p_k - log q_k) of p = softmax(target / τ) from q = softmax(scores / τ).

    Both are over the same outcomes: one that the student cannot have (-inf) is taken from the teacher too,
    whose probabilities of the others sum to 1.
    """
    scores, target = at_least_float32(scores), at_least_float32(target)
    log_q = (scores / temperature).log_softmax(-1)
    log_p = (target.masked_fill(~scores.isfinite(), -math.inf) / temperature).log_softmax(-1)
    p = log_p.exp()
    return (p * (log_p - log_q).masked_fill(p == 0, 0.0)).sum(-1)  # 0 log 0 is 0, and no NaN flows back


def soft_target_loss(
    student: SpanLogits, teacher: SpanLogits, *, temperature: float = 1.0, outcomes: Outcomes = "boundaries"
) -> Float[Tensor, "B"]:
    """τ² KL(teacher ‖ student), both softened by τ (Hinton et al. 2015, section 2).

    Gradients of softened probabilities shrink by 1 / τ²; the factor keeps their size beside the labels'.

    ``boundaries``: the outcomes of start and of end are the positions of the context and the null, as in the
    cross-entropy of ``SpanLoss``; the two divergences are averaged, and that of the verifier, if there is
    one, is added. ``spans``: the outcomes are all spans and "no answer", scored as in decoding, whatever
    parts the scores have.

    Raises ConfigError for boundaries where a model scores start and end together, or only one has a verifier.
    """
    if outcomes == "spans":
        loss = divergence(_span_classes(student), _span_classes(teacher), temperature)
    else:
        _require_same_parts(student, teacher)
        start = divergence(
            _with_null(student.start, student.null_start),
            _with_null(teacher.start, teacher.null_start),
            temperature,
        )
        end = divergence(
            _with_null(student.end, student.null_end), _with_null(teacher.end, teacher.null_end), temperature
        )
        loss = (start + end) / 2
        if student.verifier is not None and teacher.verifier is not None:
            odds, target = (
                torch.stack([v, torch.zeros_like(v)], -1) for v in (student.verifier, teacher.verifier)
            )
            loss = loss + divergence(odds, target, temperature)
    return temperature**2 * loss


def _with_null(scores: Float[Tensor, "B T"], null: Float[Tensor, "B"]) -> Float[Tensor, "B K"]:
    return torch.cat([scores, null[:, None]], dim=1)


def _span_classes(logits: SpanLogits) -> Float[Tensor, "B K"]:
    """The scores of all T² spans, of which the impossible ones are -inf, and of "no answer"."""
    return _with_null(span_scores(logits).flatten(1), logits.null)


def _require_same_parts(student: SpanLogits, teacher: SpanLogits) -> None:
    if student.pair is not None or teacher.pair is not None:
        problem = "a model that scores start and end together has no probabilities of start and end apart"
    elif (student.verifier is None) != (teacher.verifier is None):
        which = "teacher" if student.verifier is None else "student"
        problem = f'only the {which} tells "no answer" by a verifier'
    else:
        return
    raise ConfigError(f"distillation.outcomes: {problem}; set distillation.outcomes=spans")


def hidden_state_loss(
    student: Float[Tensor, "B T H"],
    teacher: Float[Tensor, "B T H"],
    mask: Bool[Tensor, "B T"],
    distance: Literal["mse", "cosine"] = "mse",
) -> Float[Tensor, "B"]:
    """The mean over real tokens of ‖s - t‖² / H (Jiao et al. 2020, eq. 8), or of 1 - cos(s, t) (Sanh et al.
    2019, section 3).

    ``student`` is what a learned map made of its states where the widths differ (W_h in eq. 8).
    """
    student, teacher = at_least_float32(student), at_least_float32(teacher)
    if distance == "cosine":
        gaps = 1 - functional.cosine_similarity(student, teacher, dim=-1)
    else:
        gaps = (student - teacher).square().mean(-1)
    return _token_mean(gaps, mask)


def aligned_layer(layer: int, student: int, teacher: int) -> int:
    """The teacher's layer that a student's layer learns from, of so many layers: 0 is the embeddings, and the
    last learns from the last (the uniform g(m) of Jiao et al. 2020, section 3.1)."""
    return (2 * layer * teacher + student) // (2 * student)


def relation_loss(
    student: Mapping[str, Float[Tensor, "B T _"]],
    teacher: Mapping[str, Float[Tensor, "B T _"]],
    mask: Bool[Tensor, "B T"],
    *,
    heads: int,
    pairs: Sequence[Relation] = MINILM_V2,
) -> Float[Tensor, "B"]:
    """The mean of KL(R^teacher ‖ R^student) over relations, heads, real tokens (Wang et al. 2021, section 3).

    ``student`` and ``teacher`` have the queries ``q``, keys ``k`` and values ``v`` of a layer, all heads side
    by side. Split into ``heads`` relation heads of width d, relation ``ab`` is softmax(A Bᵀ / √d) over the
    real tokens: (T, T), whatever the models' widths and own numbers of heads.
    """
    losses = [
        divergence(_relation(student, pair, mask, heads), _relation(teacher, pair, mask, heads)).mean(1)
        for pair in pairs
    ]
    return _token_mean(torch.stack(losses).mean(0), mask)


def _relation(
    states: Mapping[str, Float[Tensor, "B T _"]], pair: Relation, mask: Bool[Tensor, "B T"], heads: int
) -> Float[Tensor, "B R T T"]:
    """Scores of the relation, before the softmax."""
    a, b = (at_least_float32(states[name]).unflatten(-1, (heads, -1)).transpose(1, 2) for name in pair)
    scores = a @ b.transpose(-2, -1) / math.sqrt(a.shape[-1])
    return scores.masked_fill(~mask[:, None, None, :], -math.inf)


def _token_mean(values: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B"]:
    return values.masked_fill(~mask, 0.0).sum(1) / mask.sum(1).clamp(min=1)
