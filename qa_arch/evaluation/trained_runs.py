"""Scoring trained runs on a set that a user names, and adding the result to their record.

A set may be scored where the run was not trained on its articles and where the config leaves it open. A
config with ``data.open_dev: false`` keeps its dev set closed: only ``--final`` scores on it, and each time
a line in ``experiments/<name>/dev_openings.jsonl`` says so.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch.config.checkpoints import run_config
from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, DataError, UnavailableError
from qa_arch.evaluation.combined import combined_record, record_folder, with_fits
from qa_arch.evaluation.scoring import read, reference_scores, score
from qa_arch.results import provenance
from qa_arch.results.dev_access_log import EXPERIMENTS, DevAccess, log_dev_access
from qa_arch.results.record import MODEL, ONNX, RECORD, read_record, write_record
from qa_arch.tasks import task_of
from qa_arch.tasks.base import Predictor, Watch
from qa_arch.types.records import CALIBRATION, DEV, TRAIN, Points, RunRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """The runs and the set to score, and the options of ``qa-arch evaluate --run``."""

    runs: Sequence[str]
    """Run folders; several are an ensemble."""
    data: Sequence[str] | None = None
    """The set; None: the run's dev set."""
    decode: str | None = None
    """The name of another decoding, and its ``settings``."""
    settings: Mapping[str, Any] | None = None
    record: str | None = None
    """Folder for the record of an ensemble or of another decoding."""
    null_threshold: float | None = None
    """A null threshold to score at, in addition to the fitted one."""
    train: bool = False
    """Score the questions that the run was trained on, in place of ``data``."""
    final: bool = False
    """Open a dev set that the config keeps closed, and log that."""
    allow_overlap: bool = False
    trust: Sequence[str] = ()


@dataclass(frozen=True)
class Target:
    """The set to be scored and what is known of it."""

    questions: Any
    split: str
    """``dev`` and ``train`` for the run's own, else as ``_split_name`` has it: where the record keeps the
    scores."""
    closed: bool
    """Whether it is the dev set that the config keeps closed, or shares articles with it."""
    overlap: tuple[str, ...]
    """Titles that it shares with the run's training and calibration articles."""


def evaluate_runs(
    request: Request,
    load: Callable[[], Predictor],
    watching: Callable[[], AbstractContextManager[Watch]],
) -> Points:
    """Score ``request.runs`` at every operating point; also writes the scores to record and files.

    ``load`` makes the predictor, after the cheap checks; ``watching`` shows progress.
    Raises ConfigError and DataError for what may not be scored, RunError for what cannot.
    """
    folder = record_folder(request.runs, request.decode, request.record)
    record = (
        combined_record(request.runs, request.decode, request.settings, folder)
        if request.record
        else read_record(folder)
    )
    config = run_config(record.config)
    task = task_of(config.model)
    if request.decode and not task.has_search:
        raise ConfigError(
            f"--decode: {request.runs[0]} is of task {task.name}, and only spans are searched for;"
            " leave it out"
        )
    target = training_target(record, config) if request.train else open_target(record, config, request.data)
    check_target(
        target,
        null_threshold=request.null_threshold,
        final=request.final,
        allow_overlap=request.allow_overlap,
    )
    predictor = load()
    predictor.config = replace(predictor.config, decode=config.decode)
    if request.final:
        _log_dev_access(folder, record, config, target.questions)
    with watching() as watch:
        reading = read(predictor, target.questions, watch=watch)
    points = score(predictor, reading, folder, split=target.split, given=request.null_threshold)
    if target.overlap:
        points = {name: replace(point, overlap=target.overlap) for name, point in points.items()}
    references = {} if request.train else _references(record, config, target.questions, request.trust)
    if (folder / RECORD).is_file():
        record = read_record(folder)  # another set may have been scored meanwhile
    if len(request.runs) > 1:
        record = with_fits(record, request.runs, predictor)
    seconds = record.seconds
    others = {name: points for name, points in record.references.items() if name != target.split}
    changed = replace(
        record,
        scores={**record.scores, target.split: points},
        data=record.data if target.split == TRAIN else {**record.data, target.split: reading.facts},
        references={**others, **({target.split: references} if references else {})},
        seconds=replace(seconds, predict=round(reading.seconds, 3)) if target.split == DEV else seconds,
    )
    write_record(folder, changed)
    return points


def open_target(record: RunRecord, config: Config, data: Sequence[str] | None) -> Target:
    """The set that ``data`` names, or the config's dev set; ConfigError where there is neither."""
    if not data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    task, on_error = task_of(config.model), config.data.on_error
    dev: Any = None
    if config.data.dev is not None and (not data or not config.data.open_dev):
        dev = task.open(config.data.dev, name=DEV, on_error=on_error)
    questions: Any = task.open(list(data), on_error=on_error) if data else dev
    recorded = record.fingerprint(DEV)
    is_dev = questions.fingerprint == (dev.fingerprint if dev else recorded)
    return Target(
        questions,
        DEV if is_dev else _split_name(questions, record),
        closed=not config.data.open_dev
        and dev is not None
        and (is_dev or bool(dev.titles & questions.titles)),
        overlap=tuple(sorted(record.trained_titles & questions.titles)),
    )


def training_target(record: RunRecord, config: Config) -> Target:
    """The questions that the run was trained on; DataError where its config no longer gives the same."""
    questions = task_of(config.model).load_splits(replace(config.data, dev=None))[TRAIN]
    if questions.fingerprint != record.fingerprint(TRAIN):
        raise DataError(f"--train: {config.data.train} is not the data that the run was trained on any more")
    return Target(questions, TRAIN, closed=False, overlap=())


def check_target(target: Target, *, null_threshold: float | None, final: bool, allow_overlap: bool) -> None:
    """Raise DataError or ConfigError where the set may not be scored under these options; the message names
    the option that helps."""
    name, protocol = target.questions.name, target.questions.protocol
    if target.overlap and not allow_overlap:
        titles = ", ".join(map(repr, target.overlap[:5])) + (", ..." if len(target.overlap) > 5 else "")
        raise DataError(
            f"{name}: shares {len(target.overlap)} articles with the run's training and calibration data"
            f" ({titles}); score another set, or --allow-overlap, which the scores then say"
        )
    if target.closed and not final:
        raise ConfigError(
            f"{name}: the run's config keeps its dev set closed (data.open_dev: false);"
            " --final scores it once everything is decided, and logs that"
        )
    if null_threshold is not None and protocol == "1.1":
        raise ConfigError(f"--margin: {name} is a SQuAD 1.1 set, where every question is answered")
    if null_threshold is not None and protocol != "2.0":
        raise ConfigError("--margin: this run finds no spans, so it has no null threshold; leave it out")
    if final and not target.closed:
        raise ConfigError(f"--final: nothing keeps {name} closed for this run; leave it out")


def _log_dev_access(folder: Path, record: RunRecord, config: Config, questions: Any) -> None:
    """Add a line to the log of the experiment: its dev set is about to be scored."""
    path = log_dev_access(
        EXPERIMENTS / config.name,
        DevAccess(
            date=provenance.now(),
            commit=provenance.commit()[0],
            config_hash=record.config_hash,
            run=folder.resolve().name,
            data=questions.name,
            fingerprint=questions.fingerprint,
        ),
    )
    log.info("%s: one more opening", path)


def _split_name(questions: Any, record: RunRecord) -> str:
    """The set's name, with the beginning of its fingerprint where the record has another set of this name."""
    name = _folder_name(questions.name)
    if record.fingerprint(name) in (None, questions.fingerprint):
        return name
    split = f"{name}-{questions.fingerprint[:8]}"
    log.info("%s: recorded as %s, as the run was scored on another set of that name", name, split)
    return split


def _folder_name(name: str) -> str:
    """The name of another set as a key of the record and a folder; never that of one of the run's own."""
    plain = re.sub(r"[^\w.+-]", "_", name).strip(".") or "set"
    return f"{plain}-set" if plain in ("train", "calibration", DEV, MODEL, ONNX) else plain


def _references(record: RunRecord, config: Config, questions: Any, trust: Sequence[str]) -> Points:
    """The heuristics on the same questions, fitted on the run's calibration set where it is at hand."""
    recorded = record.fingerprint(CALIBRATION)
    calibration = None
    if recorded is not None:
        try:
            calibration = calibration_set(config)
        except (DataError, UnavailableError) as error:
            log.warning("the heuristics are not scored, as their calibration set is missing: %s", error)
            return {}
        if calibration is None or calibration.fingerprint != recorded:
            log.warning("the heuristics are not scored: the calibration set is not the one of the run")
            return {}
    return reference_scores(config, calibration, questions, (*TRUSTED, *trust))


def calibration_set(config: Config) -> Any:
    """The set that the run was calibrated on; the training set is read only where it was held out of that."""
    task = task_of(config.model)
    if config.data.calibration is not None:
        return task.open(config.data.calibration, name=CALIBRATION, on_error=config.data.on_error)
    return task.load_splits(replace(config.data, dev=None)).get(CALIBRATION)
