"""Score run folders: which set a run may be scored on, its operating points, rows of questions and files.

The only scoring path of spans, at the end of training (``evaluate_splits``) and by ``qa-arch evaluate``
(``evaluate_run``); ``adopt`` makes a run of whatever is none. ``predict`` returns the ranked answers,
``score`` the scores and writes the files. A set may be scored if the run was not trained on its articles and
the config leaves it open: with ``data.open_dev: false`` the dev set is closed, only ``--final`` scores it,
and each access is logged in ``experiments/<name>/dev_openings.jsonl``.
"""

from __future__ import annotations

import inspect
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.schema import Config, refuse_recipe
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.data.files import OnError, content_hash
from qa_arch.data.question_sets import article_names
from qa_arch.data.sources import open_passages
from qa_arch.data.splits import load_splits
from qa_arch.errors import ConfigError, DataError, RunError, UnavailableError
from qa_arch.features.cache import cache_file, read_or_build, read_sealed, write_sealed
from qa_arch.features.windows import FeatureTable
from qa_arch.files import file_stem, json_text
from qa_arch.metrics import squad
from qa_arch.models.checkpoint_files import is_checkpoint, run_config
from qa_arch.nn.reading import Watch
from qa_arch.provenance import dev_access, experiment_folders, log_dev_access, require_registered
from qa_arch.qa import task
from qa_arch.qa.files import question_rows, threshold_on, write_parts
from qa_arch.qa.loading import member_runs
from qa_arch.qa.ranking import Ranking
from qa_arch.qa.reader import Reader
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MEMBERS,
    MODEL,
    TRAIN,
    WRITING,
    Fits,
    Point,
    Points,
    RunRecord,
    SplitFacts,
    Threshold,
    changing,
    questions_folder,
    read_record,
    write_questions,
    write_record,
)
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)
Watching = Callable[[], AbstractContextManager[Watch]]
FEW_STEPS = 300
"""Optimizer steps below which a model that has learned nothing needs longer training first."""


# Runs ---------------------------------------------------------------------------------------------


def evaluate_run(
    folder: Path,
    load: Callable[[], Reader],
    watching: Watching,
    *,
    data: Sequence[str] | None = None,
    on_error: OnError | None = None,
    language: str | None = None,
    train: bool = False,
    final: bool = False,
    experiments: str | None = None,
    allow_overlap: bool = False,
    null_threshold: float | None = None,
    trust: Sequence[str] = (),
) -> tuple[RunRecord, str]:
    """Score the run in ``folder`` on ``data``, its dev set by default; write the scores to record and files.

    Returns the record and the name of the set in it. ``load`` builds the predictor, after the cheap checks;
    ``watching`` shows progress. ``train`` and ``final`` are those of ``open_set``; ``experiments`` is the
    folder that has registrations and logs for ``final``, by default the checkout's. ``null_threshold`` is one
    more threshold to score at. Raises ConfigError or DataError if the set may not be scored, RunError if it
    cannot.
    """
    record = read_record(folder)
    config = run_config(record.config)
    refuse_recipe(folder, config.model)
    options: Any = {"on_error": on_error, "language": language, "train": train, "final": final}
    questions, split, overlap = open_set(record, config, data, allow_overlap=allow_overlap, **options)
    if null_threshold is not None and questions.protocol != "2.0":
        raise ConfigError(
            f"--null-threshold: {questions.name} has no unanswerable questions ({questions.protocol}); leave"
            " it out"
        )
    logs = experiment_folders(config.name, experiments) if final else []
    for experiment in logs:
        for member in _registrable(folder, record):
            require_registered(experiment, member, questions.fingerprint)
    predictor = load()
    accesses = []
    if final:
        accesses.append(dev_access(folder.resolve().name, record.run_hash, questions))
        log.info("%s: one more access to dev", log_dev_access(logs[0], accesses[0]))
    compares = bool(config.references) and not train
    calibration = recorded_calibration(record, config) if compares else None
    with watching() as watch:
        reading = predict(predictor, questions, watch=watch)
    heuristics = None
    if compares and (calibration is not None or record.fingerprint(CALIBRATION) is None):
        heuristics = reference_scores(config, calibration, questions, (*TRUSTED, *trust))
    with changing(folder, patience=WRITING) as current:  # another set may have been scored meanwhile
        if current is None or current.created != record.created:
            raise RunError(f"{folder}: is no longer the run that was scored; score it again")
        record, split = _named(current, questions, split, data)
        points, rows = score(predictor, reading, folder, split=split, given=null_threshold)
        if overlap:
            points = {name: replace(point, overlap=overlap) for name, point in points.items()}
        references = {name: scores for name, scores in record.references.items() if name != split}
        if heuristics is not None:
            references[split] = heuristics
        if split == DEV:
            record = replace(record, seconds=replace(record.seconds, predict=round(reading.seconds, 3)))
        record = replace(
            record,
            scores={**record.scores, split: points},
            rows={**record.rows, split: rows},
            data=record.data if split == TRAIN else {**record.data, split: reading.facts},
            references=references,
            dev_accesses=(*record.dev_accesses, *accesses),
        )
        write_record(folder, record)
    return record, split


def open_set(
    record: RunRecord,
    config: Config,
    data: Sequence[str] | None = None,
    *,
    on_error: OnError | None = None,
    language: str | None = None,
    train: bool = False,
    final: bool = False,
    allow_overlap: bool = False,
) -> tuple[QuestionSet, str | None, tuple[str, ...]]:
    """Open ``data``, or the config's dev set, or with ``train`` the questions that the run was trained on;
    return it, its name in the record (None for a set that is not the run's own), and the titles that it
    shares with the run's training and calibration articles.

    A dev set that the config keeps closed is opened only with ``final``, and articles that the run was
    trained on only with ``allow_overlap``. Raises DataError or ConfigError, naming the option that helps, if
    the set may not be scored as requested.
    """
    on_error = on_error or config.data.on_error
    if not train and not data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    dev = None
    if train:
        questions = load_splits(replace(config.data, dev=None))[TRAIN]
        if questions.fingerprint != record.fingerprint(TRAIN):
            raise DataError(f"--train: {config.data.train} is no longer the data that the run was trained on")
    else:
        if config.data.dev is not None and (not data or not config.data.open_dev):
            options: Any = {"on_error": on_error, "language": config.data.language}
            dev = open_passages(config.data.dev, name=DEV, use="scoring", **options)
        options = {"on_error": on_error, "language": language or config.data.language}
        own = DEV if _takes_dev(record) else ""
        opened = open_passages(list(data), name=own, use="scoring", **options) if data else dev
        assert opened is not None
        questions = opened
    # Training data of a single article is split by passage.
    titles = frozenset[str]() if train else article_names(questions)
    permission = {"final": final, "allow_overlap": allow_overlap}
    is_dev, overlap = require_permitted(record, config, questions, dev, titles, **permission)
    if is_dev and DEV in record.data:  # whatever the file is called now
        questions = replace(questions, name=record.data[DEV].name or DEV)
    return questions, TRAIN if train else DEV if is_dev else None, overlap


def require_permitted(
    record: RunRecord,
    config: Config,
    questions: Any,
    dev: Any,
    titles: Collection[str],
    *,
    final: bool,
    allow_overlap: bool,
) -> tuple[bool, tuple[str, ...]]:
    """Whether a set is the run's dev set, and which ``titles`` of it the run was trained or calibrated on.

    ``dev`` is the config's dev set, if it may be that. Raises DataError or ConfigError, naming the option
    that helps, if the set may not be scored.
    """
    name = questions.name
    is_dev = questions.fingerprint == (dev.fingerprint if dev else record.fingerprint(DEV))
    closed = not config.data.open_dev and dev is not None and (is_dev or bool(dev.titles & questions.titles))
    overlap = tuple(sorted(record.trained_titles.intersection(titles)))
    if overlap and not allow_overlap:
        listed = ", ".join(map(repr, overlap[:5])) + (", ..." if len(overlap) > 5 else "")
        raise DataError(
            f"{name}: shares {len(overlap)} articles with the run's training and calibration data ({listed});"
            " score another set, or add --allow-overlap, which the scores then record"
        )
    if closed != final:
        raise ConfigError(
            f"{name}: the run's config holds its dev set out (data.open_dev: false); --final scores it once"
            " all decisions are made, and logs the access"
            if closed
            else f"--final: {name} is not held out for this run; leave it out"
        )
    return is_dev, overlap


def _takes_dev(record: RunRecord) -> bool:
    """Whether the next set that is scored becomes the run's dev set: a downloaded checkpoint has none."""
    return is_checkpoint(record.config) and not record.members and DEV not in record.scores


def _named(
    record: RunRecord, questions: Any, split: str | None, data: Sequence[str] | None
) -> tuple[RunRecord, str]:
    """The record as it is now, and the name of the set in it, which ``split`` is unless it is None."""
    if split is None and data and _takes_dev(record):
        config = {
            **record.config,
            "data": {**record.config["data"], "dev": list(data), "language": questions.language},
        }
        return replace(record, config=config), DEV
    if split is None and record.fingerprint(DEV) == questions.fingerprint:  # by another command meanwhile
        return record, DEV
    return record, split or split_name(questions, record)


def _registrable(folder: Path, record: RunRecord) -> list[RunRecord]:
    """The records that a registration lists: those of the members of an ensemble."""
    return [*map(read_record, member_runs(folder))] if (folder / MEMBERS).is_file() else [record]


def split_name(questions: Any, record: RunRecord) -> str:
    """Name of the set as record key and folder, distinct from the run's own splits and folders.

    The start of its fingerprint is appended if the record has another set of this name.
    """
    name = file_stem(questions.name)
    if name in (TRAIN, CALIBRATION, DEV, MODEL):
        name = f"{name}-set"
    if record.fingerprint(name) in (None, questions.fingerprint):
        return name
    split = f"{name}-{questions.fingerprint[:8]}"
    log.info("%s: recorded as %s, since the run was scored on another set of that name", name, split)
    return split


def calibration_set(config: Config) -> QuestionSet | None:
    """Open the run's calibration set; reads the training set only if calibration was held out of it."""
    data = config.data
    if data.calibration is not None:
        options: Any = {"on_error": data.on_error, "language": data.language}
        return open_passages(data.calibration, name=CALIBRATION, use="scoring", **options)
    return load_splits(replace(data, dev=None)).get(CALIBRATION)


def recorded_calibration(record: RunRecord, config: Config) -> QuestionSet | None:
    """The run's calibration set; None, with a warning, if it is missing or not the recorded one."""
    recorded = record.fingerprint(CALIBRATION)
    if recorded is None:
        return None
    try:
        calibration = calibration_set(config)
    except (DataError, UnavailableError) as error:
        log.warning("fitted no threshold and scored no heuristic: no calibration set (%s)", error)
        return None
    if calibration is None or calibration.fingerprint != recorded:
        log.warning("fitted no threshold and scored no heuristic: the calibration set is not the run's own")
        return None
    return calibration


# Scores ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """A model's outputs for every question of a set, not scored yet."""

    questions: QuestionSet
    outputs: Ranking
    facts: SplitFacts
    seconds: float
    """Time of inference and decoding, without feature extraction."""


def predict(
    predictor: Reader,
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
    outputs = predictor.rank(questions, table=table, watch=watch)
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
    predictor: Reader,
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
    predictor: Reader,
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
        reading = predict(predictor, parts.sets[split], table=parts.tables[split])
        if split == CALIBRATION:
            fits = calibrate(predictor, reading)
        scores[split], rows[split] = score(predictor, reading, folder, split=split, steps=steps)
        references[split] = reference_scores(predictor.config, calibration, parts.sets[split], trusted)
        seconds = round(reading.seconds, 3)
    times = replace(record.seconds, predict=seconds)
    return replace(record, scores=scores, rows=rows, references=references, seconds=times, **vars(fits))


def calibrate(predictor: Reader, calibration: Reading) -> Fits:
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
