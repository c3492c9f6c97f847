"""Score a predictor on a question set: operating points, rows of questions and prediction files.

The only scoring path of spans, used at the end of training and by ``qa-arch evaluate --run``, also for
ensembles and other decodings. ``read`` returns the ranked answers, ``score`` the scores and writes the files.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.files import json_text
from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.data.input_files import content_hash
from qa_arch.errors import ConfigError
from qa_arch.features.cache import cache_file, read_or_build, read_sealed, write_sealed
from qa_arch.features.windows import FeatureTable
from qa_arch.metrics import squad
from qa_arch.nn.reading import Watch
from qa_arch.records import (
    CALIBRATION,
    DEV,
    Fits,
    Point,
    Points,
    RunRecord,
    SplitFacts,
    Threshold,
    questions_folder,
    write_questions,
)
from qa_arch.spans import task
from qa_arch.spans.files import write_parts
from qa_arch.spans.predictor import SpanPredictor
from qa_arch.spans.ranking import Ranking
from qa_arch.spans.rows import question_rows, threshold_on
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)
FEW_STEPS = 300
"""Optimizer steps below which a model that has learned nothing needs longer training first."""


@dataclass(frozen=True)
class Reading:
    """A model's outputs for every question of a set, not scored yet."""

    questions: QuestionSet
    outputs: Ranking
    facts: SplitFacts
    seconds: float
    """Time of inference and decoding, without feature extraction."""


def read(
    predictor: SpanPredictor,
    questions: QuestionSet,
    *,
    table: FeatureTable | None = None,
    watch: Watch | None = None,
) -> Reading:
    """Run the predictor on a set; ``table`` holds its features if they already exist."""
    known = table is not None
    table = predictor.table(questions) if table is None else table
    gpu = torch.cuda.is_available()
    if gpu:  # time all the work submitted during inference, and nothing from before
        torch.cuda.synchronize()
    begun = time.perf_counter()
    outputs = predictor.read(questions, table=table, watch=watch)
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    facts = task.facts(questions, table, titles=False)
    if facts.truncated_questions and not known:  # else logged with the features
        log.warning(
            "%s: %d questions were cut to the limit of the run", questions.name, facts.truncated_questions
        )
    return Reading(questions, outputs, facts, seconds)


def score(
    predictor: SpanPredictor,
    reading: Reading,
    folder: Path,
    *,
    split: str,
    given: float | None = None,
    steps: int | None = None,
) -> tuple[Points, str]:
    """Score at every operating point, and write rows of questions and predictions below ``folder``.

    Returns the scores and the hash of the rows. ``given`` is a further null threshold, scored as an operating
    point of its own. The calibration split gets rows but no predictions. ``steps``: of the training that has
    just ended.
    """
    outputs, threshold = reading.outputs, threshold_on(reading.questions, predictor.null_threshold)
    answered = (reading.questions, outputs, threshold)
    target = questions_folder(folder, split)
    points = {
        name: replace(point, engine=predictor.engine) for name, point in task.points(*answered, given).items()
    }
    warning = task.warning(*answered)
    if warning and not predictor.config.trainer.is_trial:
        few = steps is not None and steps < FEW_STEPS
        longer = f"train longer than {steps} steps, with more trainer.epochs or more questions"
        remedy = longer if few else "try a lower optim.lr, a longer optim.warmup or another seed"
        log.warning("%s: %s; %s", split, warning, remedy)
    rows = question_rows(reading.questions, outputs.best_predictions, threshold)
    rows["confidence"] = outputs.confidence(threshold, predictor.temperature).round(6).tolist()
    # The rows first: from here until the record is written, their hash tells a kill.
    rows_hash = write_questions(target, rows)
    if split != CALIBRATION:
        write_parts(target, [outputs], threshold, candidates=False)  # those are 20 times larger
    return points, rows_hash


def evaluate_splits(
    record: RunRecord,
    predictor: SpanPredictor,
    parts: task.SpanParts,
    folder: Path,
    trusted: Sequence[str] = TRUSTED,
) -> RunRecord:
    """Fit on calibration, then score calibration and, if it is open, dev; return the record with the results.

    Its ``seconds.predict`` are those of the last split: dev, or calibration if dev stays closed.
    """
    scores, rows, references, seconds = {}, {}, {}, 0.0
    fits = Fits(threshold=Threshold(value=0.0, fitted_on="nothing"))
    calibration = parts.sets.get(CALIBRATION)
    steps = record.epochs[-1].step if record.epochs else None
    for split in (CALIBRATION, DEV):
        if split not in parts.sets:
            continue
        reading = read(predictor, parts.sets[split], table=parts.tables[split])
        if split == CALIBRATION:
            fits = calibrate(predictor, reading)
        scores[split], rows[split] = score(predictor, reading, folder, split=split, steps=steps)
        references[split] = reference_scores(predictor.config, calibration, parts.sets[split], trusted)
        seconds = round(reading.seconds, 3)
    times = replace(record.seconds, predict=seconds)
    return replace(record, scores=scores, rows=rows, references=references, seconds=times, **vars(fits))


def calibrate(predictor: SpanPredictor, calibration: Reading) -> Fits:
    """Fit as the config's ``calibration`` says, and set the fitted values on the predictor."""
    fits = task.fit(calibration.questions, calibration.outputs, predictor.config.calibration)
    if fits.threshold is not None:
        predictor.null_threshold = fits.threshold.limit
    if fits.confidence is not None:
        predictor.temperature = fits.confidence.value
    return fits


PointOf = Callable[[Any, Any, Any], Point]
"""Scores of a heuristic, fitted on a calibration set if that is not None, on a set of questions."""


def reference_scores(
    config: Config,
    calibration: Any,
    questions: Any,
    trusted: Sequence[str] = TRUSTED,
    *,
    method: str = "predict",
    point_of: PointOf = task.reference_point,
) -> Points:
    """Scores of each heuristic in ``config.references`` on ``questions``, fitted on ``calibration`` first.

    They are the same for every model and seed, and are cached with the features.
    """
    return {
        name: _reference_point(config, config.references[name], heuristic, calibration, questions, point_of)
        for name, heuristic in load_references(config, trusted, method).items()
    }


def _reference_point(
    config: Config,
    section: Mapping[str, Any],
    heuristic: Any,
    calibration: Any,
    questions: Any,
    point_of: PointOf,
) -> Point:
    folder = config.features.cache_dir
    if folder is None:
        return point_of(heuristic, calibration, questions)
    key_parts = {
        "heuristic": dict(section),
        "task": config.model["task"],
        "sets": [part and (part.fingerprint, part.protocol) for part in (calibration, questions)],
        "code": [
            content_hash(file)
            for item in (type(heuristic), point_of, squad)
            for file in sorted(Path(inspect.getfile(item)).parent.glob("*.py"))  # and what it imports
        ],
    }
    return read_or_build(
        cache_file(folder, key_parts, ".scores"),
        "reference scores",
        read=lambda path: Point(**Point.nest(json.loads(read_sealed(path)))),
        build=lambda: point_of(heuristic, calibration, questions),
        write=lambda path, point: write_sealed(path, json_text(point.flat()).encode()),
    )


def load_references(
    config: Config, trusted: Sequence[str] = TRUSTED, method: str = "predict"
) -> dict[str, Any]:
    """Heuristics in ``config.references`` by name; ConfigError if one has no ``method``."""
    heuristics = {}
    for name, section in config.references.items():
        target = locate(section.get("_target_"), trusted, where=f"references.{name}")
        if not hasattr(target, method):
            raise ConfigError(
                f"references.{name}: {target.__name__} has no method {method}, which task"
                f" {config.model['task']} needs; choose other references, or references=none"
            )
        heuristics[name] = target(**arguments(target, section, (), where=f"references.{name}"))
    return heuristics
