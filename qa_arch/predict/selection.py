"""A trained answer-selection run as a callable: candidates ranked, pairs of questions compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qa_arch.config.files import write_json
from qa_arch.config.schema import Config
from qa_arch.data.selection import selection_set, words
from qa_arch.errors import RunError
from qa_arch.features.glove import WordVectors
from qa_arch.features.sampler import BucketBatchSampler
from qa_arch.features.selection import CandidateCollator, SelectionTable, selection_table, word_rows
from qa_arch.metrics.question_types import question_type
from qa_arch.metrics.selection import METRIC_VERSION, rank_of_right, selection_scores
from qa_arch.predict.precision import Precision
from qa_arch.predict.reading import HALVES
from qa_arch.types.records import RANKED, Point, RunRecord, SplitFacts
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionQuestion, SelectionSet

Scored = dict[int, list[float]]
"""By row of the question: the score of each of its candidates, in their order."""
SELECTIONS = "selections.json"


@dataclass(frozen=True, slots=True)
class Selected:
    """A candidate and its score, the cosine with the question."""

    text: str
    place: int
    """Where it stood among the candidates that were given."""
    score: float


def add_scores(scored: Scored, batch: SelectionBatch, scores: torch.Tensor) -> None:
    """Keep the scores of a batch's questions, each once: a ghost says the same again."""
    counts = batch.offered.sum(1).tolist()
    for row, count, values in zip(batch.index.tolist(), counts, scores.float().tolist(), strict=True):
        scored[row] = values[:count]


def read_scores(
    model: nn.Module,
    table: SelectionTable,
    *,
    batch_size: int = 32,
    precision: Precision = "fp32",
    watch: Callable[[int, int], None] | None = None,
) -> Scored:
    """The score of every candidate of every question. The model is left in the mode in which it came."""
    device = next(model.parameters()).device
    collate = CandidateCollator(table)
    scored: Scored = {}
    was_training = model.training
    model.eval()
    half = HALVES.get(precision)
    with torch.inference_mode(), torch.autocast(device.type, half) if half else nullcontext():
        for rows in BucketBatchSampler(collate.lengths, batch_size=batch_size, seed=0, shuffle=False):
            batch = collate(rows).to(device)
            add_scores(scored, batch, model(batch))
            if watch is not None:
                watch(len(scored), len(table))
    model.train(was_training)
    return scored


def ranks(task: SelectionSet, scored: Mapping[int, Sequence[float]]) -> list[int | None]:
    """The rank of the first right candidate of each question, in order; see ``rank_of_right``."""
    found = []
    for row, question in enumerate(task.questions):
        right = {place for place, answer in enumerate(question.candidates) if answer in question.right}
        found.append(rank_of_right(scored[row], right))
    return found


def main_ranks(task: SelectionSet, scored: Mapping[int, Sequence[float]]) -> list[int | None]:
    """The rank of the first candidate of a right main class, where candidates are sub classes."""
    found = []
    for row, question in enumerate(task.questions):
        main = {task.main[answer] for answer in question.right}
        right = {place for place, answer in enumerate(question.candidates) if task.main[answer] in main}
        found.append(rank_of_right(scored[row], right))
    return found


def score_points(task: SelectionSet, scored: Mapping[int, Sequence[float]]) -> dict[str, Point]:
    """Top-1 accuracy and MRR as a record keeps them; of classes also the accuracy of the main ones."""
    scores = selection_scores(ranks(task, scored)).flat()
    if task.main:
        scores["main_accuracy"] = selection_scores(main_ranks(task, scored)).accuracy
    return {RANKED: Point(protocol=task.protocol, metric_version=METRIC_VERSION, metrics=scores)}


def question_columns(task: SelectionSet, scored: Mapping[int, Sequence[float]]) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: rank of the right candidate and type of the question, no text.

    The type is the right class where the candidates are classes, else found by rules.
    """
    kinds = [
        task.answers[question.right[0]][0] if task.main else question_type(question.question)
        for question in task.questions
    ]
    return {
        "id": [question.id for question in task.questions],
        "kind": kinds,
        "rank": ranks(task, scored),
        "candidates": [len(question.candidates) for question in task.questions],
    }


def write_selections(
    folder: str | os.PathLike[str], task: SelectionSet, scored: Mapping[int, Sequence[float]]
) -> Path:
    """``selections.json``: question id -> the score of each candidate, in the order of the data."""
    by_id = {question.id: scored[row] for row, question in enumerate(task.questions)}
    return write_json(Path(folder) / SELECTIONS, by_id, indent=None)


def set_facts(task: SelectionSet, *, titles: bool) -> SplitFacts:
    """What a record says of a split; ``titles`` tell later whether a scored set was trained on."""
    return SplitFacts(
        name=task.name,
        fingerprint=task.fingerprint,
        protocol=task.protocol,
        questions=len(task),
        candidates=round(sum(len(q.candidates) for q in task.questions) / len(task), 2),
        answers=len(task.answers),
        titles=tuple(sorted(task.titles)) if titles else (),
        left_out=task.left_out,
    )


class SelectionPredictor:
    """Ranks answers to questions, and says how alike two questions are.

    ``predict.question_types.classify`` uses it for a run that classifies.
    """

    def __init__(
        self,
        model: nn.Module,
        vectors: WordVectors,
        config: Config,
        *,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
        typed: Callable[[SelectionSet], SelectionSet] | None = None,
    ) -> None:
        self.model, self.vectors, self.config, self.record = model.eval(), vectors, config, record
        self.precision: Precision = precision
        self.typed = typed
        """Gives questions their class, for a model that reads it."""
        self._row = word_rows(vectors, config.selection.unknown_buckets)

    def __call__(self, question: str, candidates: Sequence[str]) -> list[Selected]:
        """The candidates, best first; equal ones in their order. None are ranked for a blank question."""
        self.require("selection")
        asked = words(question)
        if not asked or not candidates:
            return []
        one = SelectionQuestion("0", asked, range(len(candidates)), ())
        scores = self.read(selection_set("asked", map(words, candidates), [one]))[0]
        found = [Selected(*each) for each in zip(candidates, range(len(scores)), scores, strict=True)]
        return sorted(found, key=lambda each: -each.score)

    def similarity(self, first: str, second: str) -> float:
        """How alike two questions are, from -1 to 1: paraphrases are near 1."""
        return self.similarities([(first, second)])[0]

    def similarities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The same of many pairs; 0 where a question is blank.

        Both go through the same encoder. The attention of some models looks from the one at the other,
        so both directions are taken and averaged.
        """
        self.require("selection")
        texts = [words(text) for pair in pairs for text in pair]
        # Text 2i is asked about text 2i + 1, and the other way round.
        each = [
            SelectionQuestion(str(row), texts[row], (row ^ 1,), ())
            for row in range(len(texts))
            if texts[row] and texts[row ^ 1]
        ]
        if not each:
            return [0.0] * len(pairs)
        scored = self.read(selection_set("pairs", texts, each))
        found = {int(one.id): scored[row][0] for row, one in enumerate(each)}
        return [(found.get(2 * i, 0.0) + found.get(2 * i + 1, 0.0)) / 2 for i in range(len(pairs))]

    def require(self, task: str) -> None:
        """RunError where the run was trained for another task."""
        own = self.config.model["task"]
        if own != task:
            raise RunError(f"this run is of task {own} and one of task {task} is wanted; name another")

    def read(
        self,
        task: SelectionSet,
        *,
        batch_size: int | None = None,
        watch: Callable[[int, int], None] | None = None,
    ) -> Scored:
        """The score of every candidate of every question of a set."""
        task = task if self.typed is None else self.typed(task)
        return read_scores(
            self.model,
            table_of(task, self._row, self.config),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )


def table_of(task: SelectionSet, row: Callable[[str], int], config: Config) -> SelectionTable:
    """The set in numbers, as the config cuts its texts."""
    settings = config.selection
    return selection_table(task, row, max_question=settings.max_question, max_answer=settings.max_answer)
