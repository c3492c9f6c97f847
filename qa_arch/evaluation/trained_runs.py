"""Scoring trained runs on a set, and adding the result to their record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from qa_arch.config.schema import Config, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.evaluation.combined import combined_record, record_folder
from qa_arch.evaluation.scoring import read, reference_scores, score
from qa_arch.evaluation.target import check_target, log_dev_access, open_target
from qa_arch.results.record import RECORD, read_record, write_record
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Predictor, Watch
from qa_arch.types.records import CALIBRATION, DEV, Points, RunRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What is to be scored, and how."""

    runs: Sequence[str]
    """Run folders; several are an ensemble."""
    data: Sequence[str] | None = None
    """The set; None: the run's dev set."""
    decode: str | None = None
    """The name of another decoding, and its ``settings``."""
    settings: Mapping[str, Any] | None = None
    record: str | None = None
    """Folder of what is no single run's own result: an ensemble, another decoding."""
    margin: float | None = None
    """A null margin beside the fitted one."""
    final: bool = False
    """Open a dev set that the config keeps closed, and log that."""
    allow_overlap: bool = False
    trust: Sequence[str] = ()


def evaluate_runs(
    request: Request,
    load: Callable[[], Predictor],
    watching: Callable[[], AbstractContextManager[Watch]],
) -> Points:
    """Scores at every operating point, which are also in the record and the files of its folder.

    ``load`` makes the predictor once everything that is cheap was checked; ``watching`` shows progress.
    Raises ConfigError and DataError for what may not be scored, RunError for what cannot.
    """
    folder = record_folder(request.runs, request.decode, request.record)
    record = (
        combined_record(request.runs, request.decode, request.settings, folder)
        if request.record
        else read_record(folder)
    )
    config = validate(record.config)
    task = task_of(config.model)
    if request.decode and not task.has_search:
        raise ConfigError(
            f"--decode: {request.runs[0]} is of task {task.name}, and only spans are searched for;"
            " leave it out"
        )
    target = open_target(record, config, request.data)
    check_target(target, margin=request.margin, final=request.final, allow_overlap=request.allow_overlap)
    predictor = load()
    predictor.config = replace(predictor.config, decode=config.decode)
    if request.final:
        log_dev_access(folder, record, config, target.questions)
    with watching() as watch:
        reading = read(predictor, target.questions, watch=watch)
    points = score(predictor, reading, folder, split=target.split, given=request.margin)
    if target.overlap:
        points = {name: replace(point, overlap=target.overlap) for name, point in points.items()}
    references = _references(record, config, target.questions, request.trust)
    if (folder / RECORD).is_file():
        record = read_record(folder)  # another set may have been scored meanwhile
    seconds = record.seconds
    changed = replace(
        record,
        scores={**record.scores, target.split: points},
        data={**record.data, target.split: reading.facts},
        references={**record.references, **({target.split: references} if references else {})},
        seconds=replace(seconds, predict=round(reading.seconds, 3)) if target.split == DEV else seconds,
    )
    write_record(folder, changed)
    return points


def _references(record: RunRecord, config: Config, questions: Any, trust: Sequence[str]) -> Points:
    """The heuristics on the same questions, fitted on the run's calibration set where it is at hand."""
    recorded = record.fingerprint(CALIBRATION)
    calibration = None
    if recorded is not None:
        try:
            calibration = _calibration(config)
        except (DataError, UnavailableError) as error:
            log.warning("the heuristics are not scored, as their calibration set is missing: %s", error)
            return {}
        if calibration is None or calibration.fingerprint != recorded:
            log.warning("the heuristics are not scored: the calibration set is not the one of the run")
            return {}
    return reference_scores(config, calibration, questions, (*TRUSTED, *trust))


def _calibration(config: Config) -> Any:
    """The set that the run was calibrated on; the training set is read only where it was held out of that."""
    task = task_of(config.model)
    if config.data.calibration is not None:
        return task.open(config.data.calibration, name=CALIBRATION, on_error=config.data.on_error)
    return task.load_splits(replace(config.data, dev=None)).get(CALIBRATION)
