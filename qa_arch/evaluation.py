"""Score run folders: which set a run may be scored on, its operating points, rows of questions and files.

The only scoring path of spans, at the end of training (``train_spans``) and by ``qa-arch evaluate``
(``evaluate_run``); ``adopt`` makes a run of a checkpoint, an ensemble or another system's answers.
``read_set`` runs a model over a set, ``score`` turns its outputs into scores and files, and ``score_opened``
adds those to an existing run, with this ``score`` or a recipe's. A set may be scored if the run was not
trained on its articles and the config leaves it open: with ``data.open_dev: false`` the dev set is closed,
only ``--final`` scores it, and each access is logged in ``experiments/<name>/dev_openings.jsonl``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qa_arch.config.schema import Config, refuse_recipe
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.data.files import OnError
from qa_arch.data.sources import open_listed, open_passages
from qa_arch.data.splits import load_splits, shared_articles
from qa_arch.errors import ConfigError, DataError, RunError, UnavailableError
from qa_arch.files import file_stem
from qa_arch.models.checkpoint_files import is_checkpoint, run_config
from qa_arch.nn.reading import Watch
from qa_arch.provenance import dev_access, experiment_folders, log_dev_access, require_registered
from qa_arch.qa import task
from qa_arch.qa.files import mass_abstention, operating_points, question_rows, threshold_on, write_parts
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
    CalibrationFits,
    Point,
    Points,
    RunRecord,
    SplitFacts,
    changing,
    questions_folder,
    read_record,
    write_questions,
    write_record,
)
from qa_arch.results.systems import open_to_score
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)
Watching = Callable[[], AbstractContextManager[Watch]]
FEW_STEPS = 300
"""Optimizer steps below which a model that has learned nothing needs longer training first."""
_facts_of = partial(task.facts, titles=False)


# Runs ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Permission:
    """Sets that may be scored beyond those that are open and share no article with the training data."""

    final: bool = False
    """The dev set that the config keeps closed (``data.open_dev: false``); each access is logged."""
    experiments: str | None = None
    """Folder that has registrations and logs for ``final``, by default the checkout's."""
    allow_overlap: bool = False
    """Sets with articles that the run was trained on, which the scores then record."""


OPEN_SETS = Permission()


@dataclass(frozen=True)
class Opened:
    """A set that may be scored."""

    questions: Any
    split: str | None
    """Its name in the record; None for a set that is not the run's own."""
    overlap: tuple[str, ...] = ()
    """Titles that it shares with the run's training and calibration articles."""


@dataclass(frozen=True)
class Reading:
    """A model's outputs for every question of a set, not scored yet."""

    questions: Any
    outputs: Any
    """A ``Ranking`` of spans, or what ``rank`` of another recipe's predictor returns."""
    facts: SplitFacts
    seconds: float
    """Time of inference and decoding, without feature extraction."""


def evaluate_run(
    folder: Path,
    load: Callable[[], Reader],
    watching: Watching,
    *,
    data: Sequence[str] | None = None,
    on_error: OnError | None = None,
    language: str | None = None,
    train: bool = False,
    permission: Permission = OPEN_SETS,
    null_threshold: float | None = None,
    trust: Sequence[str] = (),
) -> tuple[RunRecord, str]:
    """Score the run in ``folder`` on ``data``, its dev set by default; write the scores to record and files.

    ``load`` builds the predictor, after the cheap checks; ``watching`` shows progress. ``train`` scores the
    questions that the run was trained on; ``null_threshold`` is one more threshold to score at. Returns and
    raises as ``open_set`` and ``score_opened``.
    """
    record = read_record(folder)
    config = run_config(record.config)
    refuse_recipe(folder, config.model)
    opened = open_set(record, config, data, permission, on_error=on_error, language=language, train=train)
    questions = opened.questions
    if null_threshold is not None and questions.protocol != "2.0":
        raise ConfigError(
            f"--null-threshold: {questions.name} has no unanswerable questions ({questions.protocol}); leave"
            " it out"
        )

    def heuristics() -> Points | None:
        if not config.references or train:
            return None
        calibration = recorded_calibration(record, config)
        # Without their fit, heuristics would be others than on the run's other sets.
        if calibration is None and record.fingerprint(CALIBRATION) is not None:
            return None
        return reference_scores(config, calibration, questions, (*TRUSTED, *trust))

    return score_opened(
        folder,
        record,
        opened,
        load,
        watching,
        permission=permission,
        data=data,
        score=partial(score, given=null_threshold),
        heuristics=heuristics,
    )


def score_opened(
    folder: Path,
    record: RunRecord,
    opened: Opened,
    load: Callable[[], Any],
    watching: Watching,
    *,
    permission: Permission,
    data: Sequence[str] | None,
    score: Callable[..., tuple[Points, str]],
    heuristics: Callable[[], Points | None],
    facts_of: Callable[..., SplitFacts] = _facts_of,
) -> tuple[RunRecord, str]:
    """Score a run on the set that ``data`` opened, and add that to its files and its record as it then is.

    ``score`` is that of this module or a recipe's, which brings its ``facts_of`` too. Returns the record and
    the name of the set in it. Raises RunError if a held-out set is opened by a run that is not registered, or
    the run is gone.
    """
    predictor, accesses = load(), []  # first, as it finds packages of the user, whose code is compared
    logs = _access_logs(folder, record, opened.questions.fingerprint, permission)
    if logs:
        accesses.append(dev_access(folder.resolve().name, record.run_hash, opened.questions))
        log.info("%s: one more access to dev", log_dev_access(logs[0], accesses[0]))
    with watching() as watch:
        reading = read_set(predictor, opened.questions, watch=watch, facts_of=facts_of)
    references = heuristics()
    with changing(folder, patience=WRITING) as current:  # another set may have been scored meanwhile
        if current is None or current.created != record.created:
            raise RunError(f"{folder}: is no longer the run that was scored; score it again")
        record, split = _named(current, opened, data)
        points, rows_hash = score(predictor, reading, folder, split=split)
        if opened.overlap:
            points = {name: replace(point, overlap=opened.overlap) for name, point in points.items()}
        if split == DEV:
            record = replace(record, seconds=replace(record.seconds, predict=round(reading.seconds, 3)))
        record = replace(
            record,
            scores={**record.scores, split: points},
            rows={**record.rows, split: rows_hash},
            # Facts of train have the titles that reveal an overlap; those of a reading have none.
            data=record.data if split == TRAIN else {**record.data, split: reading.facts},
            references=record.references if references is None else {**record.references, split: references},
            dev_accesses=(*record.dev_accesses, *accesses),
        )
        write_record(folder, record)
    return record, split


def open_set(
    record: RunRecord,
    config: Config,
    data: Sequence[str] | None,
    permission: Permission,
    *,
    on_error: OnError | None = None,
    language: str | None = None,
    train: bool = False,
) -> Opened:
    """Open questions to score, as ``open_permitted``, or with ``train`` those that the run was trained on.

    The run's own sets are read as its config says. Of ``data`` without ``on_error`` every question that can
    be scored counts, as for other runs, unless it is the dev set.
    """
    if train:
        questions = load_splits(replace(config.data, dev=None))[TRAIN]  # dev is not needed
        if questions.fingerprint != record.fingerprint(TRAIN):
            raise DataError(f"--train: {config.data.train} is no longer the data that the run was trained on")
        return Opened(questions, TRAIN)
    how, own = on_error or config.data.on_error, [record.fingerprint(DEV)]

    def dev(source: Any) -> QuestionSet:
        questions = open_listed(source, use="scoring", name=DEV, on_error=how, language=config.data.language)
        own.append(questions.fingerprint)  # of a closed one, which the record lacks
        return questions

    def given() -> QuestionSet:
        questions = open_to_score(
            data or (),
            how,
            None if on_error else own,
            name=DEV if _takes_dev(record) else "",
            language=language or config.data.language,
        )
        for problem in questions.skipped:
            log.warning("left out: %s", problem)
        return questions

    return open_permitted(record, config, permission, dev=dev, data=given if data else None)


def open_permitted(
    record: RunRecord,
    config: Config,
    permission: Permission,
    *,
    dev: Callable[[Any], Any],
    data: Callable[[], Any] | None,
) -> Opened:
    """Open the set of ``data``, or without it the run's dev set, and check that it may be scored.

    ``dev`` opens the config's dev set. Raises DataError or ConfigError, naming the option that helps, for a
    set with articles that the run was trained or calibrated on, for a dev set that is not the recorded one,
    and for one that is closed. The record knows these articles by their titles alone.
    """
    if data is None and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    own, held_out = None, record.held_out
    # A closed set that the record does not describe is read, too: ``data`` may be it, or share its articles.
    if config.data.dev is not None and (data is None or not (config.data.open_dev or held_out)):
        own = dev(config.data.dev)
    questions: Any = own if data is None else data()
    name, hidden = questions.name, held_out or (None if config.data.open_dev else own)
    known = (record.data.get(DEV) or held_out or SplitFacts()).fingerprint
    if data is None and known not in (None, questions.fingerprint):
        raise DataError(
            f"data.dev: {config.data.dev} is not the run's dev set (hashes {known[:8]} and"
            f" {questions.fingerprint[:8]}); restore it, start this in the folder that has it, or score this"
            " one as a further set with --data"
        )
    is_dev = questions.fingerprint == (known or (own and own.fingerprint))
    closed = hidden is not None and (
        questions.fingerprint == hidden.fingerprint or bool(shared_articles(hidden, questions))
    )
    overlap = tuple(sorted(shared_articles(record.trained_titles, questions)))
    if overlap and not permission.allow_overlap:
        listed = ", ".join(map(repr, overlap[:5])) + (", ..." if len(overlap) > 5 else "")
        shared = counted(len(overlap), "article")
        raise DataError(
            f"{name}: shares {shared} with the run's training and calibration data ({listed});"
            " score another set, or add --allow-overlap, which the scores then record"
        )
    if closed != permission.final:
        raise ConfigError(
            f"{name}: the run's config holds its dev set out (data.open_dev: false); --final scores it once"
            " all decisions are made, and logs the access"
            if closed
            else f"--final: {name} is not held out for this run; leave it out"
        )
    if is_dev and DEV in record.data:  # whatever the file is called now
        questions = replace(questions, name=record.data[DEV].name or DEV)
    return Opened(questions, DEV if is_dev else None, overlap)


def _takes_dev(record: RunRecord) -> bool:
    """Whether the next set that is scored becomes the run's dev set: a downloaded checkpoint has none."""
    return is_checkpoint(record.config) and not record.members and DEV not in record.scores


def _named(record: RunRecord, opened: Opened, data: Sequence[str] | None) -> tuple[RunRecord, str]:
    """The record as it is now, and the name of the opened set in it."""
    questions, split = opened.questions, opened.split
    if data and _takes_dev(record):
        config = {
            **record.config,
            "data": {**record.config["data"], "dev": list(data), "language": questions.language},
        }
        return replace(record, config=config), DEV
    if split is None and record.fingerprint(DEV) == questions.fingerprint:  # by another command meanwhile
        return record, DEV
    return record, split or split_name(questions, record)


def _access_logs(folder: Path, record: RunRecord, fingerprint: str, permission: Permission) -> list[Path]:
    """Folders of the experiment that log the access to a held-out set; empty if the set is open.

    Raises RunError if one of them does not list the run, or a member of an ensemble.
    """
    if not permission.final:
        return []
    logs = experiment_folders(record.config["name"], permission.experiments)
    members = [*map(read_record, member_runs(folder))] if (folder / MEMBERS).is_file() else [record]
    for experiment in logs:
        for member in members:
            require_registered(experiment, member, fingerprint)
    return logs


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


def recorded_calibration(record: RunRecord, config: Config) -> QuestionSet | None:
    """The run's calibration set; None, with a warning, if it is missing or not the recorded one."""
    recorded = record.fingerprint(CALIBRATION)
    if recorded is None:
        return None
    data = config.data
    options: Any = {"on_error": data.on_error, "language": data.language}
    try:
        if data.calibration is None:  # it was held out of the training set
            calibration = load_splits(replace(data, dev=None)).get(CALIBRATION)
        else:
            calibration = open_passages(data.calibration, name=CALIBRATION, use="scoring", **options)
    except (DataError, UnavailableError) as error:
        log.warning("fitted no threshold and scored no heuristic: no calibration set (%s)", error)
        return None
    if calibration is None or calibration.fingerprint != recorded:
        log.warning("fitted no threshold and scored no heuristic: the calibration set is not the run's own")
        return None
    return calibration


# Scores ------------------------------------------------------------------------------------------


def read_set(
    predictor: Any,
    questions: Any,
    *,
    table: Any = None,
    watch: Watch | None = None,
    facts_of: Callable[..., SplitFacts] = _facts_of,
) -> Reading:
    """Run the predictor on a set; ``table`` holds its features if they already exist.

    The predictor is a ``Reader``, or that of a recipe, which brings its ``facts_of(questions, table)``.
    """
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
    facts = facts_of(questions, table)
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
    """Score a reading at the null threshold of the predictor, and write its files (``write_scored``).

    Warns of a model that only abstains. ``steps``: those of the training that has just ended.
    """
    questions, outputs = reading.questions, reading.outputs
    threshold = threshold_on(questions, predictor.null_threshold)
    fact = mass_abstention(questions, outputs.best_predictions, threshold)
    if fact and not predictor.config.trainer.is_trial:
        # Fine-tuning sometimes fails to learn anything (google-research/albert#135).
        few = steps is not None and steps < FEW_STEPS
        cut = steps == predictor.config.trainer.max_steps
        more = "a larger trainer.max_steps" if cut else "more trainer.epochs or more questions"
        longer = f"train longer than {steps} steps, with {more}"
        remedy = longer if few else "try a lower optim.lr, a longer optim.warmup or another seed"
        learned = "the model has learned nothing else, or texts unlike these"
        log.warning("%s: %s: %s; %s", split, fact, learned, remedy)
    points, rows_hash = write_scored(
        folder, split, questions, outputs, threshold, predictor.temperature, given
    )
    return {name: replace(point, engine=predictor.engine) for name, point in points.items()}, rows_hash


def write_scored(
    folder: Path,
    split: str,
    questions: QuestionSet,
    outputs: Ranking,
    threshold: float,
    temperature: float,
    given: float | None = None,
    without: Collection[str] = (),
) -> tuple[Points, str]:
    """Score at every operating point, and write rows of questions and predictions below ``folder``.

    Returns the scores and the hash of the rows. ``given`` is a further null threshold, scored as an operating
    point of its own. The rows lack the columns ``without``. The calibration split gets rows but no
    predictions.
    """
    target, answers = questions_folder(folder, split), outputs.best_predictions
    points = operating_points(questions, answers, threshold, given)
    rows = question_rows(questions, answers, threshold)
    rows["confidence"] = outputs.confidence(threshold, temperature).round(6).tolist()
    # The rows first: from here until the record is written, their hash tells a kill.
    rows_hash = write_questions(target, {key: rows[key] for key in rows if key not in without})
    if split != CALIBRATION:
        write_parts(target, [outputs], threshold, candidates=False)  # those are 20 times larger
    return points, rows_hash


def calibrate(predictor: Reader, calibration: Reading) -> CalibrationFits:
    """Fit as the config's ``calibration`` says, and set the fitted values on the predictor."""
    fits = task.fit_calibration(calibration.questions, calibration.outputs, predictor.config.calibration)
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
    """Scores of each heuristic in ``config.references`` on ``questions``, fitted on ``calibration`` first."""
    return {
        name: point_of(heuristic, calibration, questions)
        for name, heuristic in load_references(config, trusted, method).items()
    }


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
