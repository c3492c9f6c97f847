"""Text out of a model that scores the next token: greedily, or by beam search.

Axes: ``B`` rows, ``K`` beams of a row, ``N`` prefixes, ``T`` tokens so far, ``V`` vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

NextScores = Callable[[Int[Tensor, "N T"], Int[Tensor, "N"]], Float[Tensor, "N V"]]
"""Scores (logits) of the token behind each prefix, and the row of the batch that each prefix belongs to."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A sequence that a model wrote."""

    ids: tuple[int, ...]
    """What follows the prompt, without the end token."""
    finished: bool
    """Whether it ended by itself; False where it was cut at the largest length."""
    log_prob: float
    """Sum of the log-probabilities of ``ids`` and of the end token."""
    score: float
    """``log_prob`` divided by the length penalty."""


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14); ``length`` counts the end token."""
    return ((5 + length) / 6) ** alpha


def greedy(
    next_scores: NextScores, prompt: Int[Tensor, "B T"], *, end: int, max_length: int
) -> list[Hypothesis]:
    """The most probable token at each step, for each row of ``prompt``; at most ``max_length`` of them."""
    return [beams[0] for beams in beam_search(next_scores, prompt, end=end, max_length=max_length, beams=1)]


@torch.inference_mode()
def beam_search(
    next_scores: NextScores,
    prompt: Int[Tensor, "B T"],
    *,
    end: int,
    max_length: int,
    beams: int = 4,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    raise NotImplementedError
