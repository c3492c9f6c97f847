"""Best possible scores with a tokenizer: gold answers widened to whole tokens and scored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qa_arch.features.table import FeatureTable
from qa_arch.metrics.answer_text import best_overlap, normalise
from qa_arch.types.text import QuestionSet


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Means over the answerable questions, in percent, and the questions that lower them."""

    exact: float
    f1: float
    lost: tuple[str, ...]
    """Ids of questions without a window that holds the whole gold; scored with an empty answer."""
    inexact: tuple[str, ...]
    """Ids of questions whose gold, widened to whole tokens, is not an exact match."""


def ceiling(questions: QuestionSet, table: FeatureTable) -> Ceiling:
    """Scores of the first gold answers as predictions, widened to the tokens labelled in ``table``."""
    window = np.full(len(questions), -1)
    rows = np.flatnonzero(table.answerable)
    window[table.example[rows]] = rows  # any window will do: all hold the same gold tokens
    lost, inexact, exact, f1 = [], [], 0, 0.0
    answerable = [number for number, example in enumerate(questions.examples) if example.answerable]
    for number in answerable:
        example, row = questions.examples[number], int(window[number])
        if row < 0:
            lost.append(example.id)
            continue
        best = best_overlap(
            normalise(snapped(table, row, example.context)),
            [normalise(g.text) for g in example.answers],
            "2.0",
        )
        exact, f1 = exact + best.exact, f1 + best.f1
        if not best.exact:
            inexact.append(example.id)
    count = len(answerable) or 1
    return Ceiling(100 * exact / count, 100 * f1 / count, tuple(lost), tuple(inexact))


def snapped(table: FeatureTable, row: int, context: str) -> str:
    """Text of the tokens labelled as the answer of the answerable window ``row``."""
    shift = int(table.token_start[row]) - int(table.context_at[row])
    first, last = shift + int(table.label_start[row]), shift + int(table.label_end[row])
    return context[table.char_start[first] : table.char_end[last]]
