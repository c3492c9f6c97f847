"""Answer selection: the right answer among candidates (Tan et al. 2015)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.extras.selection.features import (
    CandidateCollator,
    PairCollator,
    SelectionTable,
    candidate_vectors,
    word_rows,
)
from qa_arch.extras.selection.predictor import ScoreCollector, SelectionPredictor, table_of, with_classes
from qa_arch.extras.selection.scores import (
    Scored,
    question_columns,
    ranks,
    score_points,
    selection_scores,
    set_facts,
    write_selections,
)
from qa_arch.extras.selection.sets import load_splits, open_for
from qa_arch.features.batches import EpochBatchSampler
from qa_arch.features.vectors import assumed_vectors
from qa_arch.models import store
from qa_arch.models.build import build_model
from qa_arch.nn.count import parameter_blocks
from qa_arch.nn.losses import build_loss
from qa_arch.nn.precision import Precision, cast_weights
from qa_arch.records import MODEL, RANKED, Point, Points, RunRecord, SplitFacts
from qa_arch.spans.loading import load_predictor
from qa_arch.tasks import Batches, Parts, Task
from qa_arch.types.tensors import SelectionBatch
from qa_arch.types.text import SelectionSet

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SelectionParts(Parts):
    """``tables`` hold texts as rows of the word vectors; ``classifier`` the run that labels questions."""

    classifier: Path | None = None


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
        return set_facts(questions, titles=titles)

    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> SelectionParts:
        """Sets, classes of questions where the model reads them, word vectors, tables, model."""
        sets = self.load_splits(config.data)
        if (classify := _classifier(config, trusted)) is not None:
            sets = {split: classify(questions) for split, questions in sets.items()}
        vectors = candidate_vectors(config, sets)
        row = word_rows(vectors, config.selection.unknown_buckets)
        tables = {split: table_of(questions, row, config) for split, questions in sets.items()}
        for split, questions in sets.items():
            left_out = questions.left_out or "none"
            log.info(
                "%s: %d questions, %d answers, %s left out",
                split,
                len(questions),
                len(questions.answers),
                left_out,
            )
        model = build_model(config.model, None, vectors, trusted)
        run = config.selection.types
        loss = build_loss(config, trusted)
        return SelectionParts(sets, tables, vectors, model, loss, Path(run) if run else None)

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

    def save(self, folder: Path, parts: SelectionParts) -> None:
        assert parts.vectors is not None
        store.save_vectors(folder, parts.vectors)
        if parts.classifier is not None:
            store.save_run(folder / store.CLASSIFIER, parts.classifier, model=MODEL)

    def load(
        self, folder: Path, record: RunRecord, config: Config, device: Any, precision: Precision, trusted: Any
    ) -> SelectionPredictor:
        vectors = store.load_vectors(folder)
        if vectors is None:
            raise RunError(f"{folder}: holds no word vectors; the run is incomplete, train it again")
        model = build_model(config.model, None, vectors, trusted)
        store.load_weights(folder, model)
        classify = None
        if config.selection.types:
            classifier: Any = load_predictor(folder / store.CLASSIFIER, device=device, trust=trusted)
            classify = partial(with_classes, classifier=classifier)
        model = cast_weights(model.to(device), precision)
        return SelectionPredictor(
            model, vectors, config, record=record, precision=precision, classify=classify
        )

    def predictor(self, config: Config, parts: SelectionParts) -> SelectionPredictor:
        precision: Any = config.trainer.precision
        assert parts.vectors is not None
        return SelectionPredictor(
            cast_weights(parts.model, precision), parts.vectors, config, precision=precision
        )

    def batches(self, config: Config, parts: SelectionParts) -> Batches:
        """Training pairs with negatives sampled anew each epoch; all candidates for validation."""
        calibration = parts.tables.get("calibration")
        return Batches(
            PairCollator(parts.tables["train"], self.negatives(config, parts), config.seed),
            CandidateCollator(calibration) if calibration is not None else None,
            EpochBatchSampler,
        )

    def negatives(self, config: Config, parts: SelectionParts) -> int:
        """Number of wrong answers sampled for each right answer in training."""
        return config.selection.negatives

    def labels(self, batch: SelectionBatch) -> SelectionBatch:
        return batch  # its fields mark the right candidates and the padding

    def weight(self, batch: SelectionBatch) -> Tensor:
        return batch.weight

    def collector(self, config: Config, parts: SelectionParts, split: str) -> ScoreCollector:
        return ScoreCollector()

    def validation_scores(self, questions: SelectionSet, outputs: Scored) -> dict[str, float]:
        scores = selection_scores(ranks(questions, outputs))
        return {"calibration_accuracy": scores.accuracy, "calibration_mrr": scores.mrr}

    def points(
        self, questions: SelectionSet, outputs: Scored, threshold: float, given: float | None = None
    ) -> Points:
        return score_points(questions, outputs)

    def rows(self, questions: SelectionSet, outputs: Scored, threshold: float) -> dict[str, list[Any]]:
        return question_columns(questions, outputs)

    def write_predictions(
        self, folder: Path, questions: SelectionSet, outputs: Scored, threshold: float
    ) -> None:
        write_selections(folder, questions, outputs)

    def reference_scores(
        self, heuristic: Any, calibration: SelectionSet | None, questions: SelectionSet
    ) -> Point:
        return score_points(questions, heuristic.rank(questions))[RANKED]


def _classifier(config: Config, trusted: Sequence[str]) -> Callable[[SelectionSet], SelectionSet] | None:
    """Function that labels questions with their class, if the model reads classes."""
    run = config.selection.types
    if bool(run) != bool(config.model.get("type_dim")):
        raise ConfigError(
            "selection.types, model.type_dim: a run that classifies questions and the width of what is"
            " learned of a class go together; set both or neither"
        )
    if not run:
        return None
    classifier = load_predictor(run, device="cpu", trust=trusted)
    if not isinstance(classifier, SelectionPredictor):
        raise RunError(f"selection.types: {run} finds spans; name a run of model=question_types")
    classifier.require("classification")
    return partial(with_classes, classifier=classifier)


TASK = SelectionTask()
