"""Answer selection: the right answer among candidates (Tan et al. 2015), or the class of a question."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qa_arch.config.files import write_json
from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.features import (
    CandidateCollator,
    PairCollator,
    SelectionTable,
    candidate_vectors,
    selection_table,
    word_rows,
)
from qa_arch.extras.selection.predictor import ScoreCollector, SelectionPredictor
from qa_arch.extras.selection.rankers import question_type
from qa_arch.extras.selection.scores import Scored, ranks, score_points, selection_scores
from qa_arch.extras.selection.sets import CLASSES, load_splits, open_for
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.vectors import assumed_vectors
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.losses import build_loss
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.records import RANKED, Point, Points, RunRecord, SplitFacts
from qa_arch.tasks import Batches, Parts, Task
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionSet

log = logging.getLogger(__name__)


class SelectionTask(Task):
    """A question and its candidates in, a score for each candidate out."""

    name = "selection"
    output = Float[Tensor, "B N"]
    monitor = "calibration_mrr"
    has_validation_loss = False
    reference_method = "rank"
    wanted: Literal["candidates", "classes"] = "candidates"
    """Kind of question set that the task needs."""

    def open(self, source: str | list[str], *, name: str = "", on_error: Any = "raise") -> SelectionSet:
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
        """Sets, word vectors, texts as rows of these vectors (``tables``), and the model."""
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

    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> dict[str, Any]:
        """On the meta device. Reads the data, as the number of trained vectors depends on its words."""
        if config.glove.use and not config.glove.path:
            vectors = assumed_vectors(config.glove, 0)
        else:
            vectors = candidate_vectors(config, self.load_splits(config.data))
        with torch.device("meta"):
            matrix = torch.empty(vectors.matrix.shape)
            model = build_model(config.model, None, matrix, trusted)
        return asdict(parameter_blocks(model))

    def save(self, folder: Path, parts: Parts) -> None:
        assert parts.vectors is not None
        store.save_vectors(folder, parts.vectors)

    def load(
        self, folder: Path, record: RunRecord, config: Config, device: Any, precision: Precision, trusted: Any
    ) -> SelectionPredictor:
        vectors = store.load_vectors(folder)
        if vectors is None:
            raise RunError(f"{folder}: holds no word vectors; the run is incomplete, train it again")
        model = build_model(config.model, None, vectors, trusted)
        store.load_weights(folder, model)
        model = cast_weights(model.to(device), precision)
        return SelectionPredictor(model, vectors, config, record=record, precision=precision)

    def predictor(self, config: Config, parts: Parts) -> SelectionPredictor:
        precision: Any = config.trainer.precision
        assert parts.vectors is not None
        model = cast_weights(parts.model, precision)
        return SelectionPredictor(model, parts.vectors, config, precision=precision)

    def batches(self, config: Config, parts: Parts) -> Batches:
        """Training pairs with negatives sampled anew each epoch; all candidates for validation."""
        calibration = parts.tables.get("calibration")
        return Batches(
            PairCollator(parts.tables["train"], self.negatives(config, parts), config.seed),
            CandidateCollator(calibration) if calibration is not None else None,
            EpochBatchSampler,
        )

    def negatives(self, config: Config, parts: Parts) -> int:
        """Number of wrong answers sampled for each right answer in training."""
        return config.selection.negatives

    def labels(self, batch: SelectionBatch) -> SelectionBatch:
        return batch  # its fields mark the right candidates and the padding

    def weight(self, batch: SelectionBatch) -> Tensor:
        return batch.weight

    def collector(self, config: Config, parts: Parts, split: str) -> ScoreCollector:
        return ScoreCollector()

    def validation_scores(self, questions: SelectionSet, outputs: Scored) -> dict[str, float]:
        scores = selection_scores(ranks(questions, outputs))
        return {f"calibration_{name}": scores[name] for name in ("accuracy", "mrr")}

    def points(
        self, questions: SelectionSet, outputs: Scored, threshold: float, given: float | None = None
    ) -> Points:
        return score_points(questions, outputs)

    def rows(self, questions: SelectionSet, outputs: Scored, threshold: float) -> dict[str, list[Any]]:
        """The type of a question is its class where the candidates are classes, else that of the rules."""
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
        """``selections.json``: question id -> the score of each candidate, in the order of the data."""
        by_id = {question.id: outputs[row] for row, question in enumerate(questions.questions)}
        write_json(folder / "selections.json", by_id, indent=None)

    def reference_scores(
        self, heuristic: Any, calibration: SelectionSet | None, questions: SelectionSet
    ) -> Point:
        return score_points(questions, heuristic.rank(questions))[RANKED]


class ClassificationTask(SelectionTask):
    """The class of a question: a softmax over the classes, all of which each question sees in training too.

    Every class is a candidate of every question (Di Gennaro et al. 2020).
    """

    name = "classification"
    wanted: Literal["candidates", "classes"] = "classes"

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
        classes = config.model.get("classes", len(CLASSES))
        if classes != len(CLASSES):
            raise ConfigError(f"model.classes: {classes}; there are {len(CLASSES)} classes, leave it so")
        return super().assemble(config, trusted)

    def negatives(self, config: Config, parts: Parts) -> int:
        return len(parts.sets["train"].answers) - 1


TASK, CLASSIFICATION = SelectionTask(), ClassificationTask()
