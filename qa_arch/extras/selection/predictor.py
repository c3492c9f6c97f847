"""A trained selection model that ranks candidates, compares two questions or classifies questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from qa_arch.config.schema import Config
from qa_arch.errors import RunError
from qa_arch.extras.selection.features import CandidateCollator, SelectionTable, selection_table, word_rows
from qa_arch.extras.selection.sets import CLASSES, class_set, selection_set, words
from qa_arch.features.vectors import WordVectors
from qa_arch.nn.precision import Precision
from qa_arch.records import RunRecord
from qa_arch.tasks import Predictor, Watch, read_table
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionQuestion, SelectionSet


@dataclass(frozen=True, slots=True)
class Selected:
    """A candidate and its score, the cosine with the question."""

    text: str
    place: int
    """Where it stood among the candidates that were given."""
    score: float


class ScoreCollector:
    """The scores of each question's candidates, by row of the question: a padding row repeats its own."""

    def __init__(self) -> None:
        self.parts: list[dict[int, list[float]]] = []

    def add(self, batch: SelectionBatch, scores: torch.Tensor) -> None:
        counts = batch.offered.sum(1).tolist()
        rows = zip(batch.index.tolist(), counts, scores.float().tolist(), strict=True)
        self.parts.append({row: values[:count] for row, count, values in rows})

    def merge(self, others: Iterable[list[dict[int, list[float]]]]) -> None:
        self.parts = [part for parts in others for part in parts]

    def result(self) -> dict[int, list[float]]:
        return {row: values for part in self.parts for row, values in part.items()}


class SelectionPredictor(Predictor):
    """Scores candidates: those of a question (by a call), a second question (``similarity``), or classes."""

    null_threshold = 0.0

    def __init__(
        self,
        model: nn.Module,
        vectors: WordVectors,
        config: Config,
        *,
        record: RunRecord | None = None,
        precision: Precision = "fp32",
    ) -> None:
        self.model, self.vectors, self.config, self.record = model.eval(), vectors, config, record
        self.precision: Precision = precision
        self._row = word_rows(vectors, config.selection.unknown_buckets)

    def __call__(self, question: str, candidates: Sequence[str]) -> list[Selected]:
        """The candidates, best first; equal ones in their order. None are ranked for a blank question."""
        self._require("selection")
        question_words = words(question)
        if not question_words or not candidates:
            return []
        single = SelectionQuestion("0", question_words, range(len(candidates)), ())
        scores = self.read(selection_set("question", map(words, candidates), [single]))[0]
        ranked = [Selected(*row) for row in zip(candidates, range(len(scores)), scores, strict=True)]
        return sorted(ranked, key=lambda selected: -selected.score)

    def similarity(self, first: str, second: str) -> float:
        """Similarity of two questions, from -1 to 1: paraphrases are near 1. 0 where one is blank."""
        return self.similarities([(first, second)])[0]

    def similarities(self, pairs: Sequence[tuple[str, str]], *, watch: Watch | None = None) -> list[float]:
        """``similarity`` of each pair, in order.

        The attention of some models looks from the question at the candidate, so both directions are
        averaged.
        """
        self._require("selection")
        texts = [words(text) for pair in pairs for text in pair]
        # Text 2i is the question and text 2i + 1 the candidate, and the other way round.
        paired = [row for row in range(len(texts)) if texts[row] and texts[row ^ 1]]
        means = [0.0] * len(pairs)
        if paired:
            questions = [SelectionQuestion(str(row), texts[row], (row ^ 1,), ()) for row in paired]
            scores = self.read(selection_set("pairs", texts, questions), watch=watch)
            for place, row in enumerate(paired):
                means[row // 2] += scores[place][0] / 2
        return means

    def classify(self, questions: Sequence[str], *, watch: Watch | None = None) -> list[str]:
        """The class (``MAIN:sub``) that each question most probably has, in order."""
        self._require("classification")
        scored = self.read(class_set("questions", [(None, text) for text in questions]), watch=watch)
        return [CLASSES[int(np.argmax(scored[row]))] for row in range(len(questions))]

    def _require(self, task: str) -> None:
        """RunError where the run was trained for another task."""
        own = self.config.model["task"]
        if own != task:
            raise RunError(f"this run is of task {own} and one of task {task} is wanted; name another")

    def table(self, questions: SelectionSet, *, cache: bool = True) -> SelectionTable:
        """The features of a set."""
        return selection_table(questions, self._row, self.config.selection)

    def read(
        self,
        questions: SelectionSet,
        *,
        table: SelectionTable | None = None,
        batch_size: int | None = None,
        watch: Watch | None = None,
    ) -> dict[int, list[float]]:
        """The score of every candidate of every question of a set, by row of the question."""
        return read_table(
            self.model,
            CandidateCollator(self.table(questions) if table is None else table),
            ScoreCollector(),
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )
