"""Heads on the matched context: span heads, chosen by ``model.head``, and the verifier of no-answer.

A span head is a class ``Head(in_dim, *, sentinel, ...)`` whose forward takes the context rows, their mask
and the row that means "nothing", and gives ``SpanScores``. Its own arguments are the keys beside its
``_target_`` (``conf/head``); here is the standard linear one, others are in modules of their own.

Axes: ``B`` windows, ``C`` context units, ``D`` width of what a head reads, ``T`` tokens, ``H`` encoder width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from qa_arch.config.target import Given
from qa_arch.nn.masking import fill, masked_logsumexp, masked_softmax, scored
from qa_arch.nn.segments import put
from qa_arch.types.tensors import SpanLogits

SpanHead = Annotated[Callable[..., nn.Module], Given(("in_dim", "sentinel"))]
"""A span head as a model's constructor takes it: its width, and whether it scores a sentinel, come later."""


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
    """Scores of units on the tokens of the window; unit k starts at the k-th of ``starts``, ends alike."""
    return SpanLogits(
        start=put(scores.start, starts, -math.inf),
        end=put(scores.end, ends, -math.inf),
        null_start=scores.null_start,
        null_end=scores.null_end,
        verifier=verifier,
        verifier_weight=verifier_weight,
    )


class LinearHead(nn.Module):
    """The standard span head: one linear map to a start and an end score (Devlin et al. 2019)."""

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
        """``nothing`` is the row whose scores are the null's; zeros where it is not given."""
        start, end = scored(self.score, context).unbind(-1)
        if self.sentinel:
            row = row_of_nothing(context, nothing)
            null_start, null_end = scored(self.score, row).unbind(-1)
        else:
            null_start, null_end = neutral_null(start, mask), neutral_null(end, mask)
        return SpanScores(fill(start, mask), fill(end, mask), null_start, null_end)


def linear_scores(in_dim: int) -> nn.Linear:
    """A start and an end score of each row."""
    score = nn.Linear(in_dim, 2)
    nn.init.xavier_uniform_(score.weight)
    nn.init.zeros_(score.bias)
    return score


def row_of_nothing(
    context: Float[Tensor, "B C D"], nothing: Float[Tensor, "B D"] | None
) -> Float[Tensor, "B D"]:
    """The row of "nothing"; zeros where it is not given."""
    return torch.zeros_like(context[:, 0]) if nothing is None else nothing


def with_sentinel(
    context: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"], nothing: Float[Tensor, "B D"] | None
) -> tuple[Float[Tensor, "B N D"], Bool[Tensor, "B N"]]:
    """The row of "nothing" behind the context, real in every window; zeros where it is not given."""
    row = row_of_nothing(context, nothing)
    return torch.cat([context, row[:, None]], dim=1), nn.functional.pad(mask, (0, 1), value=True)


def neutral_null(scores: Float[Tensor, "B N"], mask: Bool[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """A null score that leaves the answering to the verifier: log-sum-exp of the real scores.

    In the softmax of the loss it holds exactly half of the probability: the cross-entropy of an
    answer is the one without it plus log 2, with the same gradient; that of "nothing" is log 2,
    with none. In decoding, null minus best span is then the verifier's log-odds minus the log
    probability of that span.
    """
    return masked_logsumexp(scores, mask)


class AttentionPooling(nn.Module):
    """The rows' mean, weighted by softmax(w^T h_i) over the real ones; zeros where there is none."""

    def __init__(self, in_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(in_dim, 1, bias=False)  # w
        nn.init.xavier_uniform_(self.query.weight)

    def forward(self, rows: Float[Tensor, "B C D"], mask: Bool[Tensor, "B C"]) -> Float[Tensor, "B D"]:
        return weighted_mean(rows, self.query(rows)[..., 0], mask)


def weighted_mean(
    rows: Float[Tensor, "B C D"], scores: Float[Tensor, "B C"], mask: Bool[Tensor, "B C"]
) -> Float[Tensor, "B D"]:
    """The mean of the real rows, weighted by the softmax of their scores."""
    weights = masked_softmax(scores, mask).to(rows.dtype)
    return (weights[:, None] @ rows)[:, 0]


class Verifier(nn.Module):
    """Log-odds of "no answer" from the context, pooled by attention, and the encoder's [CLS]."""

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
        return scored(self.odds, self.dropout(hidden))[:, 0]
