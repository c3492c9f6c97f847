"""Answer selection tasks: find the right answer among candidates (Tan et al. 2015), or the question's class.

The trained model ranks candidates, compares two questions, or classifies questions.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from qa_arch.config.files import write_json
from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.features import (
    CandidateCollator,
    SelectionBatch,
    SelectionTable,
    candidate_vectors,
    selection_table,
    word_rows,
)
from qa_arch.extras.selection.rankers import question_type
from qa_arch.extras.selection.scores import Scored, ranks, score_points, selection_scores
from qa_arch.extras.selection.sets import (
    CLASSES,
    class_set,
    load_splits,
    open_for,
    selection_set,
    words,
)
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.vectors import GLOVE_DIM, WordVectors
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.losses import build_loss
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.records import RANKED, Parameters, Point, Points, RunRecord, SplitFacts
from qa_arch.tasks import Batches, Parts, Predictor, Task, Watch
from qa_arch.types.text import SelectionQuestion, SelectionSet

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Selected:
    """A candidate and its score, the cosine with the question."""

    text: str
    place: int
    """Its index among the candidates given."""
    score: float


class ScoreCollector:
    """Collects candidate scores by question row, since a padding row repeats a question."""

    def __init__(self) -> None:
        self.parts: list[dict[int, list[float]]] = []

    def add(self, batch: SelectionBatch, scores: Tensor) -> None:
        counts = batch.offered.sum(1).tolist()
        rows = zip(batch.index.tolist(), counts, scores.float().tolist(), strict=True)
        self.parts.append({row: values[:count] for row, count, values in rows})

    def result(self) -> dict[int, list[float]]:
        return {row: values for part in self.parts for row, values in part.items()}


class SelectionPredictor(Predictor):
    """Ranks candidates (call it), compares questions (``similarity``) or classifies them (``classify``)."""

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

    def try_out(self) -> None:
        count = len(CLASSES) if self.config.model["task"] == "classification" else 1
        question = SelectionQuestion("0", ("who",), range(count), ())
        self.read(selection_set("question", [("ada",)] * count, [question]))

    def __call__(self, question: str, candidates: Sequence[str]) -> list[Selected]:
        """Candidates sorted by score, ties in input order; empty for a blank question."""
        self._require("selection")
        question_words = words(question)
        if not question_words or not candidates:
            return []
        single = SelectionQuestion("0", question_words, range(len(candidates)), ())
        scores = self.read(selection_set("question", map(words, candidates), [single]))[0]
        ranked = [Selected(*row) for row in zip(candidates, range(len(scores)), scores, strict=True)]
        return sorted(ranked, key=lambda selected: -selected.score)

    def similarity(self, first: str, second: str) -> float:
        """Similarity of two questions, from -1 to 1 (paraphrases are near 1); 0 if one is blank."""
        return self.similarities([(first, second)])[0]

    def similarities(self, pairs: Sequence[tuple[str, str]], *, watch: Watch | None = None) -> list[float]:
        """``similarity`` of each pair, in order.

        Averages both directions, as attention from question to candidate is not symmetric.
        """
        self._require("selection")
        texts = [words(text) for pair in pairs for text in pair]
        # Texts 2i and 2i + 1 are question and candidate, then the reverse.
        paired = [row for row in range(len(texts)) if texts[row] and texts[row ^ 1]]
        means = [0.0] * len(pairs)
        if paired:
            questions = [SelectionQuestion(str(row), texts[row], (row ^ 1,), ()) for row in paired]
            scores = self.read(selection_set("pairs", texts, questions), watch=watch)
            for number, row in enumerate(paired):
                means[row // 2] += scores[number][0] / 2
        return means

    def classify(self, questions: Sequence[str], *, watch: Watch | None = None) -> list[str]:
        """Most probable class (``MAIN:sub``) of each question, in order."""
        self._require("classification")
        scored = self.read(class_set("questions", [(None, text) for text in questions]), watch=watch)
        return [CLASSES[int(np.argmax(scored[row]))] for row in range(len(questions))]

    def _require(self, task: str) -> None:
        """Raise RunError if the run was trained for another task."""
        trained = self.config.model["task"]
        if trained != task:
            raise RunError(f"the run was trained for task {trained}, not {task}; name another run")

    def table(self, questions: SelectionSet, *, cache: bool = True) -> SelectionTable:
        """Features of a set."""
        return selection_table(questions, self._row, self.config.selection)

    def reading(
        self, questions: SelectionSet, table: SelectionTable
    ) -> tuple[CandidateCollator, ScoreCollector]:
        """``read`` gives the scores of all candidates, by row of the question."""
        return CandidateCollator(table), ScoreCollector()


class SelectionTask(Task):
    """Scores each candidate of a question."""

    name = "selection"
    output = Float[Tensor, "B N"]
    monitor = "calibration_mrr"
    has_validation_loss = False
    reference_method = "rank"
    wanted: Literal["candidates", "classes"] = "candidates"
    """Kind of question set that the task needs."""

    def open(
        self, source: str | list[str], *, name: str = "", on_error: Any = "raise", language: str = "en"
    ) -> SelectionSet:
        return open_for(source, name=name, on_error=on_error, want=self.wanted)

    def load_splits(self, data: Data) -> dict[str, SelectionSet]:
        return load_splits(data, self.wanted)

    def facts(self, questions: SelectionSet, table: SelectionTable, *, titles: bool) -> SplitFacts:
        candidates = sum(len(question.candidates) for question in questions.questions)
        return SplitFacts(
            name=questions.name,
            fingerprint=questions.fingerprint,
            protocol=questions.protocol,
            questions=len(questions),
            candidates=round(candidates / len(questions), 2),
            answers=len(questions.answers),
            titles=tuple(sorted(questions.titles)) if titles else (),
            left_out=questions.left_out,
        )

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
        """Load the sets and word vectors, and build tables, model and loss."""
        sets = self.load_splits(config.data)
        for split, questions in sets.items():
            log.info(
                "%s: %d questions, %d left out, %d answers",
                split,
                len(questions),
                questions.left_out,
                len(questions.answers),
            )
        vectors = candidate_vectors(config, sets)
        row = word_rows(vectors, config.selection.unknown_buckets)
        tables = {
            split: selection_table(questions, row, config.selection) for split, questions in sets.items()
        }
        model = build_model(config.model, None, vectors, trusted)
        return Parts(sets, tables, vectors, model, build_loss(config, trusted))

    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
        """Count on the meta device. Reads the data, whose words determine the number of trained vectors."""
        if config.glove.use and not config.glove.path:
            shape: tuple[int, ...] = 1, config.glove.dim or GLOVE_DIM
        else:
            shape = candidate_vectors(config, self.load_splits(config.data)).matrix.shape
        with torch.device("meta"):
            matrix = torch.empty(shape)
            model = build_model(config.model, None, matrix, trusted)
        return parameter_blocks(model)

    def save(self, folder: Path, parts: Parts) -> None:
        assert parts.vectors is not None
        store.save_vectors(folder, parts.vectors)

    def load(self, folder: Path, config: Config, trusted: Sequence[str]) -> Parts:
        vectors = store.load_vectors(folder)
        if vectors is None:
            raise RunError(f"{folder}: has no word vectors; the run is incomplete, train it again")
        return Parts({}, {}, vectors, build_model(config.model, None, vectors, trusted), None)

    def predictor(
        self, config: Config, parts: Parts, record: RunRecord | None = None, precision: Any = None
    ) -> SelectionPredictor:
        precision = precision or config.trainer.precision
        assert parts.vectors is not None
        model = cast_weights(parts.model, precision)
        return SelectionPredictor(model, parts.vectors, config, record=record, precision=precision)

    def batches(self, config: Config, parts: Parts) -> Batches:
        """Training pairs with negatives sampled anew every epoch; all candidates for validation."""
        calibration = parts.tables.get("calibration")
        return Batches(
            CandidateCollator(parts.tables["train"], self.negatives(config, parts), config.seed),
            CandidateCollator(calibration) if calibration is not None else None,
            EpochBatchSampler,
        )

    def negatives(self, config: Config, parts: Parts) -> int:
        """Number of wrong answers sampled per right answer in training."""
        return config.selection.negatives

    def collector(self, config: Config, parts: Parts, split: str) -> ScoreCollector:
        return ScoreCollector()

    def validation_scores(self, questions: SelectionSet, outputs: Scored) -> dict[str, float]:
        scores = selection_scores(ranks(questions, outputs))
        return {f"calibration_{name}": scores[name] for name in ("accuracy", "mrr")}

    def points(
        self, questions: SelectionSet, outputs: Scored, threshold: float, extra_threshold: float | None = None
    ) -> Points:
        return score_points(questions, outputs)

    def rows(self, questions: SelectionSet, outputs: Scored, threshold: float) -> dict[str, list[Any]]:
        """One row per question; its kind is its class if the candidates are classes, else by the rules."""
        kinds = [
            questions.answers[question.right[0]][0] if questions.main else question_type(question.question)
            for question in questions.questions
        ]
        return {
            "id": [question.id for question in questions.questions],
            "kind": kinds,
            "rank": ranks(questions, outputs),
            "candidates": [len(question.candidates) for question in questions.questions],
        }

    def write_predictions(
        self, folder: Path, questions: SelectionSet, outputs: Scored, threshold: float
    ) -> None:
        """Write ``selections.json``: question id -> scores of its candidates, in the order of the data."""
        by_id = {question.id: outputs[row] for row, question in enumerate(questions.questions)}
        write_json(folder / "selections.json", by_id, indent=None)

    def reference_scores(
        self, heuristic: Any, calibration: SelectionSet | None, questions: SelectionSet
    ) -> Point:
        return score_points(questions, heuristic.rank(questions))[RANKED]


class ClassificationTask(SelectionTask):
    """Question classification: every class is a candidate of every question (Di Gennaro et al. 2020).

    Training uses all wrong classes as negatives, so the loss is a softmax over the classes.
    """

    name = "classification"
    wanted: Literal["candidates", "classes"] = "classes"

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
        classes = config.model.get("classes", len(CLASSES))
        if classes != len(CLASSES):
            raise ConfigError(f"model.classes: must be {len(CLASSES)}, not {classes}; remove the setting")
        return super().assemble(config, trusted)

    def negatives(self, config: Config, parts: Parts) -> int:
        return len(parts.sets["train"].answers) - 1


TASK, CLASSIFICATION = SelectionTask(), ClassificationTask()
