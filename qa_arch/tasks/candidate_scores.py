"""Scores of ranked candidates, of a whole set and of single questions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_json
from qa_arch.metrics.question_types import question_type
from qa_arch.metrics.selection_scores import METRIC_VERSION, rank_of_right, selection_scores
from qa_arch.types.records import RANKED, Point, SplitFacts
from qa_arch.types.text import SelectionSet

Scored = Mapping[int, Sequence[float]]
"""By row of the question: the score of each of its candidates, in their order."""
SELECTIONS = "selections.json"


def ranks(questions: SelectionSet, scored: Scored) -> list[int | None]:
    """The rank of the first right candidate of each question, in order; see ``rank_of_right``."""
    result = []
    for row, question in enumerate(questions.questions):
        right = {place for place, answer in enumerate(question.candidates) if answer in question.right}
        result.append(rank_of_right(scored[row], right))
    return result


def main_ranks(questions: SelectionSet, scored: Scored) -> list[int | None]:
    """The rank of the first candidate of a right main class, where candidates are sub classes."""
    result = []
    for row, question in enumerate(questions.questions):
        main = {questions.main[answer] for answer in question.right}
        places = enumerate(question.candidates)
        right = {place for place, answer in places if questions.main[answer] in main}
        result.append(rank_of_right(scored[row], right))
    return result


def score_points(questions: SelectionSet, scored: Scored) -> dict[str, Point]:
    """Top-1 accuracy and MRR for the record; for classes also the accuracy of the main classes."""
    scores = selection_scores(ranks(questions, scored)).flat()
    if questions.main:
        scores["main_accuracy"] = selection_scores(main_ranks(questions, scored)).accuracy
    return {RANKED: Point(protocol=questions.protocol, metric_version=METRIC_VERSION, metrics=scores)}


def question_columns(questions: SelectionSet, scored: Scored) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: rank of the right candidate and type of the question, no text.

    The type is the right class where the candidates are classes, else that of the rules.
    """
    kinds = [
        questions.answers[question.right[0]][0] if questions.main else question_type(question.question)
        for question in questions.questions
    ]
    return {
        "id": [question.id for question in questions.questions],
        "kind": kinds,
        "rank": ranks(questions, scored),
        "candidates": [len(question.candidates) for question in questions.questions],
    }


def write_selections(folder: str | os.PathLike[str], questions: SelectionSet, scored: Scored) -> Path:
    """``selections.json``: question id -> the score of each candidate, in the order of the data."""
    by_id = {question.id: scored[row] for row, question in enumerate(questions.questions)}
    return write_json(Path(folder) / SELECTIONS, by_id, indent=None)


def set_facts(questions: SelectionSet, *, titles: bool) -> SplitFacts:
    """Facts of a split for the record; with its article titles if ``titles``, to detect later overlaps."""
    return SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol=questions.protocol,
        questions=len(questions),
        candidates=round(sum(len(q.candidates) for q in questions.questions) / len(questions), 2),
        answers=len(questions.answers),
        titles=tuple(sorted(questions.titles)) if titles else (),
        left_out=questions.left_out,
    )
