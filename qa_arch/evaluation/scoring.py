"""From a predictor and a question set to operating points, rows of questions and prediction files.

The only path of scoring, for every task: the end of training, ``qa-arch evaluate --run``, ensembles and
other decodings of a run use it. ``read`` gives the ranked answers, ``score`` the Scores and the files.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.errors import ConfigError
from qa_arch.records import (
    CALIBRATION,
    DEV,
    TRAIN,
    Answerability,
    Confidence,
    Points,
    SplitFacts,
    Threshold,
    questions_folder,
    write_questions,
)
from qa_arch.tasks import Parts, Predictor, Task, Watch, task_of

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
class Fits:
    """Values fitted after training, for the fields of the same names of a run's record."""

    threshold: Threshold | None = None
    """None for a task without a null."""
    confidence: Confidence | None = None
    """None without a calibration split, or for a task without a confidence."""
    answerability: Answerability | None = None
    """None without both kinds of questions in a calibration split."""


@dataclass(frozen=True)
class Evaluation:
    """Scores of calibration and dev, for the record of a run."""

    fits: Fits
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
    gpu = torch.cuda.is_available()
    if gpu:  # the time of inference includes all work submitted in it, and none from before
        torch.cuda.synchronize()
    begun = time.perf_counter()
    outputs = predictor.read(questions, table=table, watch=watch)
    if gpu:
        torch.cuda.synchronize()
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
    points = {
        name: replace(point, engine=predictor.engine) for name, point in task.points(*answered, given).items()
    }
    warning = task.warning(*answered)
    if warning and split in (TRAIN, CALIBRATION, DEV) and not predictor.config.trainer.is_trial:
        log.warning("%s: %s", split, warning)
    if split != CALIBRATION:
        task.write_predictions(target, *answered)
    rows = task.rows(*answered)
    confidence = task.confidence(reading.outputs, predictor.null_threshold, predictor.temperature)
    write_questions(target, rows if confidence is None else {**rows, "confidence": confidence})
    return points


def evaluate_splits(
    predictor: Predictor, parts: Parts, folder: Path, trusted: Sequence[str] = TRUSTED
) -> Evaluation:
    """Fit what is fitted on calibration, then score calibration and, where it is open, dev with it."""
    task = task_of(predictor.config.model)
    scores, references, seconds = {}, {}, 0.0
    fits = Fits(threshold=Threshold(value=0.0, fitted_on="nothing") if task.has_null else None)
    calibration = parts.sets.get(CALIBRATION)
    for split in (CALIBRATION, DEV):
        if split not in parts.sets:
            continue
        reading = read(predictor, parts.sets[split], table=parts.tables[split])
        if split == CALIBRATION:
            fits = calibrate(predictor, reading)
        scores[split] = score(predictor, reading, folder, split=split)
        references[split] = reference_scores(predictor.config, calibration, parts.sets[split], trusted)
        seconds = reading.seconds
    return Evaluation(fits, scores, references, seconds)


def calibrate(predictor: Predictor, calibration: Reading) -> Fits:
    """Fit what ``fit`` fits, for the config's ``calibration.prior``; the predictor gets it."""
    config = predictor.config
    fits = fit(task_of(config.model), calibration.questions, calibration.outputs, config.calibration.prior)
    if fits.threshold is not None:
        predictor.null_threshold = fits.threshold.limit
    if fits.confidence is not None:
        predictor.temperature = fits.confidence.value
    return fits


def fit(task: Task, questions: Any, outputs: Any, prior: float | None = None) -> Fits:
    """Null threshold and answerability, and the temperature at that threshold, of a calibration split.

    Unanswerable questions count as the share ``prior``, where there are questions of both kinds.
    """
    threshold = task.fit_threshold(questions, outputs, prior)
    logistic = task.fit_answerability(questions, outputs, prior)
    temperature = task.fit_temperature(questions, outputs, threshold)
    null = confidence = answerability = None
    if task.has_null:
        value = threshold if math.isfinite(threshold) else None
        null = Threshold(value=value, fitted_on=CALIBRATION, prior=prior if logistic else None)
    if temperature is not None:
        confidence = Confidence(method="temperature", value=temperature, fitted_on=CALIBRATION)
    if logistic is not None:
        answerability = Answerability(**logistic._asdict(), fitted_on=CALIBRATION, prior=prior)
    return Fits(null, confidence, answerability)


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
    if config.references and task.reference_method is None:
        raise ConfigError(f"references: task {task.name} has no heuristics; choose references=none")
    heuristics = {}
    for name, section in config.references.items():
        target = locate(section.get("_target_"), trusted, where=f"references.{name}")
        if not hasattr(target, str(task.reference_method)):
            raise ConfigError(
                f"references.{name}: {target.__name__} cannot {task.reference_method}, which task {task.name}"
                " asks for; choose references=spans, candidates or classes"
            )
        heuristics[name] = target(**arguments(target, section, (), where=f"references.{name}"))
    return heuristics
