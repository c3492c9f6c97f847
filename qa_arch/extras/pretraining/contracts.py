"""Checks of ``check-model`` for language models."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic
from qa_arch.config.schema import Config
from qa_arch.contract import (
    COMMON_CHECKS,
    NO_ENCODER_DROPOUT,
    TRIAL,
    Collate,
    Contract,
    Subject,
    difference,
    logits_of,
    overfit,
    require,
    saved_weights_load,
    tolerance,
)
from qa_arch.records import CALIBRATION, TOKENS
from qa_arch.tasks import task_of

STORIES = [
    f"{name} keeps {n} bees near {town}. On day {n} it rains. {name} sells {n + 3} goats to {town}."
    + " Nobody minds." * n
    for n, (name, town) in enumerate(
        [("Tarn", "Lomm"), ("Mira", "Osk"), ("Bell", "Ryde"), ("Ada", "Wick")], 2
    )
]


def corpus(folder: Path) -> list[str]:
    """Four stories, in blocks of 32 tokens."""
    write_atomic(folder / "train.txt", "\n\n".join(STORIES))
    write_atomic(folder / "held.txt", "\n\n".join(STORIES[:2]))
    return [
        *TRIAL,
        "data=corpus",
        "trainer.max_steps=-1",
        "encoder.layers=1",
        "encoder.width=32",
        "encoder.heads=2",
        "encoder.initializer_range=0.15",
        *NO_ENCODER_DROPOUT,
        "features.max_length=32",
        "features.max_question=16",
        "features.stride=8",
        f"data.train={folder}/train.txt",
        f"data.calibration={folder}/held.txt",
    ]


def targets_have_scores(subject: Subject) -> None:
    """Every target has a finite score for each token of the vocabulary."""
    batch = subject.batch()
    logits = logits_of(subject.model, batch)
    vocabulary = subject.parts.encoder.vocab_size
    require(
        logits.tokens.shape[-1] == vocabulary,
        f"{logits.tokens.shape[-1]} scores for a vocabulary of {vocabulary}",
    )
    require(logits.tokens.isfinite().all(), "a score is not finite")
    require(
        (logits.follows is None) == (batch.follows is None),
        "only one of model and batch has a sentence task",
    )


def text_padding_has_no_effect(subject: Subject) -> None:
    """The content of padding has no effect."""
    if subject.parts.encoder.config.model_type == "roberta":
        return  # RoBERTa derives position ids from padding ids
    batch = subject.batch()
    other = replace(batch, ids=batch.ids.where(batch.mask, 7))
    first, second = (logits_of(subject.model, x).tokens[batch.counted] for x in (batch, other))
    change = difference(first, second)
    require(change <= tolerance(first), f"scores change by {change:.2g} with the ids of padding")


def learns_two_stories(subject: Subject) -> None:
    """The model overfits two stories, token by token."""
    outputs = overfit(subject, CALIBRATION, steps=120, lr=1e-2)
    scores = subject.task.points(None, outputs, 0.0)[TOKENS]
    accuracy, targets, perplexity = (
        float(scores.metric(name) or 0) for name in ("token_accuracy", "targets", "perplexity")
    )
    # From [CLS] alone a causal model cannot know which of the two stories follows.
    highest = 100 - 100 * (subject.task.name == "causal_lm") / targets
    require(
        math.isclose(accuracy, highest, rel_tol=1e-6), f"{accuracy:.2f} percent of tokens, not {highest:.2f}"
    )
    require(perplexity < 1.2, f"perplexity {perplexity:.2f}, not below 1.2")
    sentences = scores.metric("sentence_accuracy")
    require(sentences in (None, 100.0), f"{sentences} percent of the sentence task")


def _blocks(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    """The collator of validation; ``multiple`` is unused, as blocks are padded to the longest."""
    task: Any = task_of(config.model)
    return task.collator(config, parts.tables[split])


TEXTS = Contract(
    corpus,
    _blocks,
    (*COMMON_CHECKS, targets_have_scores, text_padding_has_no_effect, learns_two_stories, saved_weights_load),
)
CONTRACTS = dict.fromkeys(("masked_lm", "causal_lm", "masked_spans"), TEXTS)
