"""Checks of ``check-model`` for models that score candidates or classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.files import write_atomic
from qa_arch.config.schema import Config
from qa_arch.contract import (
    COMMON_CHECKS,
    TRIAL,
    Collate,
    Contract,
    Row,
    Subject,
    difference,
    logits_of,
    overfit,
    require,
    require_answers,
    saved_weights_load,
    tolerance,
    write_squad,
    write_vectors,
)
from qa_arch.extras.selection.features import CandidateCollator
from qa_arch.extras.selection.scores import ranks
from qa_arch.records import CALIBRATION

TOWN = "Mira paints red boats. Tarn keeps nine bees. It rains in Lomm."
FERRY = "The ferry of Lomm carried twenty goats to the isle on the third day of May. It sank. Why?"
CHOICES: list[Row] = [
    (TOWN, "Which sentence is it that red boats belongs to?", "red boats"),
    (TOWN, "nine what?", "nine"),
    (TOWN, "Lomm what?", "Lomm"),
    (FERRY, "goats what?", "goats"),
    ("Bees sing. Boats sink.", "Boats what?", "Boats"),
]

QUESTIONS = {
    "When did the ferry of Lomm first carry goats ?": "NUM:date",
    "Who paints boats ?": "HUM:ind",
    "Where is Lomm ?": "LOC:other",
    "What does a bee eat in the winter ?": "ENTY:food",
}
"""Question -> its class."""


def candidates_have_scores(subject: Subject) -> None:
    """Every candidate has a finite score, padding -inf."""
    batch = subject.batch(multiple=7)
    scores = logits_of(subject.model, batch)
    require(scores[batch.offered].isfinite().all(), "a candidate's score is not finite")
    require((scores[~batch.offered] == -math.inf).all(), "padding in place of a candidate has a score")
    require(len(scores[batch.offered].unique()) > 3, "all candidates score the same")


def order_of_candidates_has_no_effect(subject: Subject) -> None:
    """The score of a candidate does not depend on the order of the candidates."""
    batch = subject.batch()
    order = torch.arange(batch.candidate.shape[1]).flip(0)
    reversed_ = replace(
        batch,
        candidate=batch.candidate[:, order],
        right=batch.right[:, order],
        offered=batch.offered[:, order],
    )
    first, second = (logits_of(subject.model, x) for x in (batch, reversed_))
    change = difference(first[:, order], second)
    require(change <= tolerance(first), f"scores change by {change:.2g} with the order of the candidates")


def padding_has_no_effect(subject: Subject) -> None:
    """The content of padding has no effect."""
    batch = subject.batch(multiple=7)
    other = replace(
        batch,
        question=batch.question.masked_fill(~batch.question_mask, 2),
        answer=batch.answer.masked_fill(~batch.answer_mask, 3),
        candidate=batch.candidate.masked_fill(~batch.offered, 1),
    )
    first, second = (logits_of(subject.model, x) for x in (batch, other))
    change = difference(first, second)
    require(change <= tolerance(first), f"scores change by {change:.2g} with the ids of padding")


def learns_its_candidates(subject: Subject) -> None:
    """The model overfits four questions, ranking the right candidate first."""
    steps = 80
    questions = subject.parts.sets[CALIBRATION]
    actual = ranks(questions, overfit(subject, CALIBRATION, steps=steps, lr=2e-2))
    texts = [question.question for question in questions.questions]
    require_answers(dict.fromkeys(texts, 1), dict(zip(texts, actual, strict=True)), steps)


def _candidates(config: Config, parts: Any, split: str, multiple: int) -> Collate:
    return CandidateCollator(parts.tables[split], multiple)


def candidates(folder: Path) -> list[str]:
    """Questions with the sentences of their passages as candidates."""
    splits = {"train": CHOICES, "calibration": CHOICES[:4], "dev": CHOICES}
    for split, rows in splits.items():
        write_squad(folder / f"{split}.json", rows)
    write_vectors(folder / "vectors.txt", (row[0] for row in CHOICES))
    return [
        *TRIAL,
        "data.train_questions=0",
        "selection.negatives=2",
        "selection.unknown_buckets=3",
        "selection.margin=0.9",  # above the spread of cosines at initialisation, so every pair has a loss
        *(f"data.{split}={folder}/{split}.json" for split in splits),
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


def classes(folder: Path) -> list[str]:
    """Four questions with all classes as candidates, identical in the three splits."""
    write_atomic(folder / "four.label", "".join(f"{label} {text}\n" for text, label in QUESTIONS.items()))
    write_vectors(folder / "vectors.txt", QUESTIONS)
    return [
        *TRIAL,
        "data=question_types",
        "data.train_questions=0",
        *(f"data.{split}=types:{folder}/four.label" for split in ("train", "calibration", "dev")),
        "glove=file",
        f"glove.path={folder}/vectors.txt",
        "glove.dim=5",
    ]


SELECTION = Contract(
    candidates,
    _candidates,
    (
        *COMMON_CHECKS,
        candidates_have_scores,
        order_of_candidates_has_no_effect,
        padding_has_no_effect,
        learns_its_candidates,
        saved_weights_load,
    ),
)
CLASSES = replace(SELECTION, settings=classes)
CONTRACTS: Mapping[str, Contract] = {"selection": SELECTION, "classification": CLASSES}
