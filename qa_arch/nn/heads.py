"""Heads on the matched context: span heads, chosen by ``model.head``, and the no-answer verifier.

A span head is a class ``Head(in_dim, *, sentinel, ...)`` whose forward takes the context rows, their mask
and the row that means "nothing", and returns ``SpanScores``. Its other arguments are the keys next to its
``_target_`` (``conf/head``).

Axes: ``B`` windows, ``C`` context units, ``D`` input width of the head, ``T`` tokens, ``H`` encoder width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.target import Given
from qa_arch.nn.masking import fill, linear_fp32, masked_softmax, put
from qa_arch.tensors import SpanLogits

SpanHead = Annotated[Callable[..., nn.Module], Given(("in_dim", "sentinel"))]
"""Factory of a span head, to which the model supplies ``in_dim`` and ``sentinel``."""


class SpanScores(NamedTuple):
    """Scores of the context units (-inf on padding) and of "nothing"."""

    start: Float[Tensor, "B C"]
    end: Float[Tensor, "B C"]
    null_start: Float[Tensor, "B"]
    null_end: Float[Tensor, "B"]


def span_logits(
    scores: SpanScores,
    starts: Bool[Tensor, "B T"],
    ends: Bool[Tensor, "B T"],
    verifier: Float[Tensor, "B"] | None = None,
    verifier_weight: float = 1.0,
) -> SpanLogits:
    """Scatter unit scores to tokens: unit k starts at the k-th True of ``starts``, likewise for ends."""
    for (name, value), axes in zip(scores._asdict().items(), ("B C", "B C", "B", "B"), strict=True):
        if value.ndim != len(axes.split()):
            raise ValueError(f"SpanScores.{name} of the head is {tuple(value.shape)}, expected ({axes})")
    return SpanLogits(
        start=put(scores.start, starts, -math.inf),
        end=put(scores.end, ends, -math.inf),
        null_start=scores.null_start,
        null_end=scores.null_end,
        verifier=verifier,
        verifier_weight=verifier_weight,
    )


class LinearHead(nn.Module):
    """Standard span head: one linear layer to start and end scores (Devlin et al. 2019)."""

    def __init__(self, in_dim: int, *, sentinel: bool = True) -> None:
        super().__init__()
        self.sentinel = sentinel
        self.score = linear_scores(in_dim)

    def forward(
        self,
        context: Float[Tensor, "B C D"],
        mask: Bool[Tensor, "B C"],
        nothing: Float[Tensor, "B D"] | None = None,
    ) -> SpanScores:
        """``nothing``: row whose scores are the null scores (default zeros)."""
        start, end = linear_fp32(self.score, context).unbind(-1)
        if self.sentinel:
            null_start, null_end = linear_fp32(self.score, sentinel_row(context, nothing)).unbind(-1)
        else:
            null_start, null_end = neutral_null(start, mask), neutral_null(end, mask)
        return SpanScores(fill(start, mask), fill(end, mask), null_start, null_end)


def linear_scores(in_dim: int) -> nn.Linear:
    """Linear layer to a start and an end score, Glorot-initialised."""
    score = nn.Linear(in_dim, 2)
    nn.init.xavier_uniform_(score.weight)
    nn.init.zeros_(score.bias)
    return score


def sentinel_row(
    context: Float[Tensor, "B C D"], nothing: Float[Tensor, "B D"] | None
) -> Float[Tensor, "B D"]:
    """``nothing``, or zeros."""
    return torch.zeros_like(context[:, 0]) if nothing is None else nothing


def append_sentinel(
    context: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"], nothing: Float[Tensor, "B D"] | None
) -> tuple[Float[Tensor, "B N D"], Bool[Tensor, "B N"]]:
    """Append the sentinel row, unmasked in every window."""
    row = sentinel_row(context, nothing)
    return torch.cat([context, row[:, None]], dim=1), nn.functional.pad(mask, (0, 1), value=True)


def neutral_null(scores: Float[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """Null score that leaves the no-answer decision to the verifier: log-sum-exp of the real scores.

    It has exactly half of the probability in the softmax of the loss: the cross-entropy of an answer grows by
    log 2 with the same gradient, that of "nothing" is log 2 with zero gradient. In decoding, null minus best
    span is then the verifier's log-odds minus the log probability of that span. 0 without a real score.
    """
    total = fill(scores, mask, torch.finfo(scores.dtype).min).logsumexp(-1)  # -inf: NaN gradients
    return fill(total, mask.any(-1), 0.0)


class AttentionPooling(nn.Module):
    """Mean of the real rows, weighted by softmax(w^T h_i); zeros if there are none."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(in_dim, 1, bias=False)  # w
        nn.init.xavier_uniform_(self.query.weight)

    def forward(self, rows: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"]) -> Float[Tensor, "B D"]:
        return weighted_mean(rows, self.query(rows)[..., 0], mask)


def weighted_mean(
    rows: Float[Tensor, "B C D"], scores: Float[Tensor, "B C"], mask: Bool[Tensor, "B C"]
) -> Float[Tensor, "B D"]:
    """Mean of the real rows, weighted by the softmax of their scores."""
    weights = masked_softmax(scores, mask).to(rows.dtype)
    return (weights[:, None] @ rows)[:, 0]


class Verifier(nn.Module):
    """Log-odds of "no answer" from the attention-pooled context and the encoder's [CLS]."""

    def __init__(self, context_dim: int, cls_dim: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = nn.Linear(context_dim, 1, bias=False)
        self.hidden = nn.Linear(context_dim + cls_dim, hidden)
        self.dropout = nn.Dropout(dropout)
        self.odds = nn.Linear(hidden, 1)
        for linear in (self.attention, self.hidden, self.odds):
            nn.init.xavier_uniform_(linear.weight)
        for linear in (self.hidden, self.odds):
            nn.init.zeros_(linear.bias)

    def forward(
        self, context: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"], cls: Float[Tensor, "B H"]
    ) -> Float[Tensor, "B"]:
        pooled = weighted_mean(context, self.attention(context)[..., 0], mask)
        hidden = torch.tanh(self.hidden(torch.cat([pooled, cls], dim=-1)))
        return linear_fp32(self.odds, self.dropout(hidden))[:, 0]
