"""From a predictor and a question set to operating points, rows of questions and prediction files.

The only path of scoring, for every task: the end of training, ``qa-arch evaluate --run``, ensembles and
other decodings of a run use it. ``read`` gives the ranked answers, ``score`` the Scores and the files.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.errors import ConfigError
from qa_arch.results.question_rows import questions_folder
from qa_arch.results.record import write_questions
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Parts, Predictor, Watch, synchronize
from qa_arch.types.records import CALIBRATION, DEV, Answerability, Points, SplitFacts, Threshold

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reading:
    """A model's outputs for every question of a set, not scored yet."""

    questions: Any
    outputs: Any
    facts: SplitFacts
    seconds: float
    """Time of inference and decoding, without making the features."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of calibration and dev, for the record of a run."""

    threshold: Threshold | None
    """The null threshold fitted on calibration; None for a task without a null."""
    answerability: Answerability | None
    """The probability of "answerable" fitted on calibration, where there is one."""
    scores: dict[str, Points]
    """By split."""
    references: dict[str, Points]
    """By split, then by heuristic: scores of heuristics without training on the same questions."""
    seconds: float
    """``Reading.seconds`` of the last split: dev, or calibration where dev stays closed."""


def read(predictor: Predictor, questions: Any, *, table: Any = None, watch: Watch | None = None) -> Reading:
    """The predictor's outputs for a set; ``table`` holds its features where they are made already."""
    task = task_of(predictor.config.model)
    table = predictor.table(questions) if table is None else table
    synchronize()
    begun = time.perf_counter()
    outputs = predictor.read(questions, table=table, watch=watch)
    synchronize()
    seconds = time.perf_counter() - begun
    return Reading(questions, outputs, task.facts(questions, table, titles=False), seconds)


def score(
    predictor: Predictor, reading: Reading, folder: Path, *, split: str, given: float | None = None
) -> Points:
    """Scores at every operating point; rows of questions and predictions are written below ``folder``.

    ``given`` is a further null threshold, an operating point of its own. For the calibration split rows are
    written but no predictions.
    """
    task = task_of(predictor.config.model)
    answered = (reading.questions, reading.outputs, predictor.null_threshold)
    target = questions_folder(folder, split)
    points = task.points(*answered, given)
    if warning := task.warning(*answered):
        log.warning("%s: %s", split, warning)
    if split != CALIBRATION:
        task.write_predictions(target, *answered)
    write_questions(target, task.rows(*answered))
    return points


def evaluate_splits(
    predictor: Predictor, parts: Parts, folder: Path, trusted: Sequence[str] = TRUSTED
) -> Evaluation:
    """Fit the null threshold on calibration, then score calibration and, where it is open, dev at it."""
    task, prior = task_of(predictor.config.model), predictor.config.calibration.prior
    scores, references, seconds = {}, {}, 0.0
    logistic = None
    calibration = parts.sets.get(CALIBRATION)
    for split in (CALIBRATION, DEV):
        if split not in parts.sets:
            continue
        reading = read(predictor, parts.sets[split], table=parts.tables[split])
        if split == CALIBRATION:
            predictor.null_threshold = task.fit_threshold(reading.questions, reading.outputs, prior)
            logistic = task.fit_answerability(reading.questions, reading.outputs, prior)
        scores[split] = score(predictor, reading, folder, split=split)
        references[split] = reference_scores(predictor.config, calibration, parts.sets[split], trusted)
        seconds = reading.seconds
    value = predictor.null_threshold if math.isfinite(predictor.null_threshold) else None
    fitted_on = CALIBRATION if calibration is not None else "nothing"
    threshold = answerability = None
    if task.has_null:
        weighted = prior if logistic else None  # there were two kinds of questions to weigh
        threshold = Threshold(value=value, fitted_on=fitted_on, prior=weighted)
    if logistic:
        answerability = Answerability(
            slope=logistic.slope, intercept=logistic.intercept, fitted_on=fitted_on, prior=prior
        )
    return Evaluation(threshold, answerability, scores, references, seconds)


def reference_scores(
    config: Config, calibration: Any, questions: Any, trusted: Sequence[str] = TRUSTED
) -> Points:
    """Scores of each heuristic in ``config.references`` on ``questions``, fitted on ``calibration`` first."""
    task = task_of(config.model)
    heuristics = load_references(config, trusted)
    return {
        name: task.reference_scores(heuristic, calibration, questions)
        for name, heuristic in heuristics.items()
    }


def load_references(config: Config, trusted: Sequence[str] = TRUSTED) -> dict[str, Any]:
    """The heuristics in ``config.references`` by their names; ConfigError where they are not of its task."""
    task = task_of(config.model)
    heuristics = {}
    for name, section in config.references.items():
        target = locate(section.get("_target_"), trusted, where=f"references.{name}")
        if not hasattr(target, task.reference_method):
            raise ConfigError(
                f"references.{name}: {target.__name__} cannot {task.reference_method}, which task {task.name}"
                " asks for; choose references=spans, candidates or classes"
            )
        heuristics[name] = target(**arguments(target, section, (), where=f"references.{name}"))
    return heuristics
