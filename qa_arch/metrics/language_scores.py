"""Scores of language models: accuracy and perplexity of predicted tokens, bits per byte, sentence tasks."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

METRIC_VERSION = "language-1"


@dataclass(frozen=True, slots=True)
class BlockScores:
    """What a model predicted of one block."""

    loss: float
    """Sum of -log p over the block's targets, in nats."""
    tokens: int
    """Number of targets."""
    right: int
    """Targets that had the highest score of the vocabulary."""
    odds: float | None = None
    """Log-odds that the second part follows the first; None without a sentence task."""
    follows: bool | None = None
    """Whether it does."""


@dataclass(frozen=True, slots=True)
class TextSize:
    """The text of a split, as it is cut into blocks."""

    tokens: int
    """Tokens of the text, special ones excluded."""
    bytes: int
    """UTF-8 bytes of the documents."""


def language_scores(
    blocks: Collection[BlockScores], text: TextSize, *, every_token: bool
) -> dict[str, float | int]:
    """Means over all targets of all blocks, whatever batches they were read in; accuracies in percent.

    ``loss`` is in nats a target, ``perplexity`` its exponential. ``bits_per_byte`` is the loss in bits times
    the number of predictions that spell the text out, divided by its UTF-8 bytes::

        loss / ln 2 * N / bytes

    With ``every_token`` (causal and denoising models) N is the number of targets, so this is the exact code
    length of the text; for masked models, which predict a sample of the tokens from all others, N is the
    number of tokens, and it is an estimate of their pseudo-likelihood, not a code.
    """
    tokens = sum(block.tokens for block in blocks)
    if not tokens:
        raise ValueError("there is no predicted token to score")
    loss = math.fsum(block.loss for block in blocks) / tokens
    scores: dict[str, float | int] = {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "token_accuracy": 100 * sum(block.right for block in blocks) / tokens,
        "bits_per_byte": loss / math.log(2) * (tokens if every_token else text.tokens) / text.bytes,
        "targets": tokens,
        "blocks": len(blocks),
    }
    pairs = [(block.odds > 0, block.follows) for block in blocks if block.odds is not None]
    return scores | (_sentence_scores(pairs) if pairs else {})


def _sentence_scores(pairs: list[tuple[bool, bool | None]]) -> dict[str, float]:
    """Accuracy, and F1 of the class "follows"; a log-odds of 0 counts as "does not"."""
    hits = sum(bool(predicted and actual) for predicted, actual in pairs)
    claims = sum(predicted for predicted, _ in pairs) + sum(bool(actual) for _, actual in pairs)
    return {
        "sentence_accuracy": 100 * sum(predicted == actual for predicted, actual in pairs) / len(pairs),
        "sentence_f1": 200 * hits / claims if claims else 0.0,
    }
