"""Whether an exported model gives what its torch model gives, on real questions."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from qa_arch.config.schema import Config
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import subset
from qa_arch.data.synthetic import generate
from qa_arch.decode.candidates import Ranking
from qa_arch.decode.collector import SpanCollector
from qa_arch.errors import QaArchError, RunError
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.metrics.squad import score
from qa_arch.models.onnx_model import Equality, OnnxModel
from qa_arch.tasks.base import Watch
from qa_arch.tasks.reading import read_table
from qa_arch.tasks.span_predictor import SpanPredictor
from qa_arch.types.tensors import Batch, SpanLogits, StepLogits
from qa_arch.types.text import Prediction, QuestionSet

QUESTIONS = 200
LARGEST = 1e-4
"""Logits of a graph in fp32 differ by no more than this."""
TIES = 0.01
"""Share of answers that may differ all the same: spans whose scores are as near may change places."""
log = logging.getLogger(__name__)
Logits = SpanLogits | StepLogits


def check(
    predictor: SpanPredictor, model: OnnxModel, questions: QuestionSet, watch: Watch | None = None
) -> Equality:
    """What both give for ``questions``, read in the same batches.

    RunError where a graph in fp32 differs by more than ``LARGEST`` or in more than ``TIES`` of the answers.
    One in int8 is only measured.
    """
    table = predictor.table(questions, cache=False)
    ours, theirs, largest = read_table(
        predictor.model,
        Collator(table, vector_rows(predictor.vectors, table), labels=False),
        _Comparison(model, *(SpanCollector(questions, table, predictor.config.decode) for _ in range(2))),
        batch_size=predictor.config.trainer.eval_batch_size,
        watch=watch,
    )
    threshold = predictor.null_threshold
    answers = [_answers(ranking.best_predictions, threshold) for ranking in (ours, theirs)]
    same = sum(a == b for a, b in zip(*answers, strict=True))
    result = Equality(
        data=questions.name,
        questions=len(questions),
        windows=len(table),
        largest_difference=largest,
        same_answers=same,
        torch_scores=_scores(questions, ours, threshold),
        onnx_scores=_scores(questions, theirs, threshold),
    )
    exact = model.description.precision == "fp32"
    if exact and (largest > LARGEST or len(questions) - same > TIES * len(questions)):
        raise RunError(
            f"the graph does not give what the model gives: on {len(questions)} questions of"
            f" {questions.name} logits differ by up to {largest:.2g}, answers in {len(questions) - same};"
            " nothing was written, please report it"
        )
    return result


def check_questions(config: Config) -> QuestionSet:
    """Up to 200 questions of the run's calibration or open dev set, or else generated ones."""
    for source in (config.data.calibration, config.data.dev if config.data.open_dev else None):
        if source is not None:
            try:
                questions = open_passages(source, on_error=config.data.on_error)
            except QaArchError as error:
                log.warning("the export is not checked on the run's own questions: %s", error)
            else:
                return subset(questions, min(QUESTIONS, len(questions)), config.seed)
    return subset(generate(15, 0), QUESTIONS, config.seed)


class _Comparison:
    """Collects the spans of torch's logits and of the graph's for the same batches."""

    def __init__(self, model: nn.Module, ours: SpanCollector, theirs: SpanCollector) -> None:
        self.model, self.ours, self.theirs = model, ours, theirs
        self.largest = 0.0
        self.parts: list[Any] = []

    def add(self, batch: Batch, logits: Logits) -> None:
        others = self.model(batch)
        self.largest = max(self.largest, largest_difference(logits, others))
        self.ours.add(batch, logits)
        self.theirs.add(batch, others)

    def merge(self, others: Iterable[list[Any]]) -> None:
        """A single process reads."""

    def result(self) -> tuple[Ranking, Ranking, float]:
        return self.ours.result(), self.theirs.result(), self.largest


def largest_difference(first: Logits, second: Logits) -> float:
    """Of any two logits; ``inf`` where only one of them is open (finite)."""
    return max(_difference(a, b) for a, b in zip(_scored(first), _scored(second), strict=True))


def _scored(logits: Logits) -> tuple[Tensor, ...]:
    if isinstance(logits, StepLogits):
        return logits.token, logits.stop
    pair = () if logits.pair is None else (logits.pair,)
    return (logits.start, logits.end, logits.null, logits.null_end, *pair)


def _difference(first: Tensor, second: Tensor) -> float:
    real = first.isfinite()
    if not torch.equal(real, second.isfinite()) or not torch.equal(first[~real], second[~real]):
        return float("inf")
    return float((first - second)[real].abs().max()) if real.any() else 0.0


def _answers(predictions: Sequence[Prediction], threshold: float) -> list[tuple[int, int] | None]:
    chosen = [prediction.at(threshold) for prediction in predictions]
    return [None if span is None else (span.start, span.end) for span in chosen]


def _scores(questions: QuestionSet, ranking: Ranking, threshold: float) -> dict[str, float]:
    scores = score(questions, {answer.id: answer.text(threshold) for answer in ranking.best_predictions})
    return {"exact": scores.exact, "f1": scores.f1}
