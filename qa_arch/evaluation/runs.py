"""Score runs on a set that the user names, and add the result to their record.

A downloaded checkpoint becomes a run first (``checkpoint_run``). A set may be scored if the run was not
trained on its articles and the config leaves it open: with ``data.open_dev: false`` the dev set is closed,
only ``--final`` scores it, and each access is logged in ``experiments/<name>/dev_openings.jsonl``.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qa_arch import provenance
from qa_arch.config.files import file_stem
from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED
from qa_arch.data.formats import OnError
from qa_arch.data.question_sets import article_names
from qa_arch.errors import ConfigError, DataError, RunError, UnavailableError
from qa_arch.evaluation.registration import require_registered
from qa_arch.evaluation.scoring import calibrate, read, reference_scores, score
from qa_arch.models.checkpoint_files import record_folder, run_config
from qa_arch.provenance import dev_access, experiment_folders, log_dev_access
from qa_arch.records import (
    CALIBRATION,
    CHECKPOINTS,
    DEV,
    MODEL,
    ONNX,
    RECORD,
    TRAIN,
    WRITING,
    Fits,
    Parameters,
    RunRecord,
    Seconds,
    SplitFacts,
    Threshold,
    changing,
    read_record,
    require_same,
    write_record,
)
from qa_arch.tasks import Predictor, Watch, task_named, task_of
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)
Watching = Callable[[], AbstractContextManager[Watch]]


@dataclass(frozen=True)
class Request:
    """The runs and the set to score, and the options of ``qa-arch evaluate --run``."""

    runs: Sequence[str]
    """Run folders; several are an ensemble."""
    data: Sequence[str] | None = None
    """The set; None: the run's dev set."""
    on_error: OnError | None = None
    """Handling of its malformed records; None: as in the config."""
    decode: str | None = None
    """Name of another decoding, with its ``settings``."""
    settings: Mapping[str, Any] | None = None
    record: str | None = None
    """Folder for the record of an ensemble or of another decoding."""
    null_threshold: float | None = None
    """A null threshold to score at, in addition to the fitted one."""
    train: bool = False
    """Score the questions that the run was trained on, instead of ``data``."""
    final: bool = False
    """Open a dev set that the config keeps closed, and log that."""
    experiments: str | None = None
    """Folder of experiments that has registration and log; None: that of the package's own checkout."""
    allow_overlap: bool = False
    trust: Sequence[str] = ()


def evaluate_runs(
    request: Request, load: Callable[[], Predictor], watching: Watching
) -> tuple[RunRecord, str]:
    """Score ``request.runs`` at every operating point; write the scores to record and files.

    Returns the record and the name of the set in it. ``load`` builds the predictor, after the cheap checks;
    ``watching`` shows progress. Raises ConfigError or DataError if the set may not be scored, RunError if it
    cannot.
    """
    if (len(request.runs) > 1 or bool(request.decode)) == (request.record is None):
        raise ConfigError(
            "--record: the scores of a single run, decoded as its config says, go into its own folder;"
            " those of several runs, or of another --decode, need --record DIR"
        )
    folder = Path(request.record or request.runs[0])
    record = combined_record(request, folder) if request.record else read_record(folder)
    config = run_config(record.config)
    task = task_of(config.model)
    if request.decode and not task.has_search:
        raise ConfigError(
            f"--decode: task {task.name} has no search, only spans are searched for; leave it out"
        )
    questions, split, overlap = open_set(record, config, request)
    experiments = experiment_folders(config.name, request.experiments) if request.final else []
    for run in request.runs if request.final else ():
        for experiment in experiments:
            require_registered(experiment, read_record(run), questions.fingerprint)
    predictor = load()
    predictor.config = replace(predictor.config, decode=config.decode)
    accesses = []
    if request.final:
        access = dev_access(folder.resolve().name, record.run_hash, questions)
        log.info("%s: one more access to dev", log_dev_access(experiments[0], access))
        accesses.append(access)
    compares = bool(config.references) and not request.train
    calibration = _recorded_calibration(record, config) if compares or request.decode else None
    fits = _new_fits(request, predictor, calibration, watching)
    with watching() as watch:
        reading = read(predictor, questions, watch=watch)
    heuristics = None
    if compares and (calibration is not None or record.fingerprint(CALIBRATION) is None):
        heuristics = reference_scores(config, calibration, questions, (*TRUSTED, *request.trust))
    with changing(folder, patience=WRITING) as current:  # another set may have been scored meanwhile
        if request.record:
            require_same(current, record, folder, "--record")
        elif current is None or current.created != record.created:
            raise RunError(f"{folder}: is no longer the run that was scored; score it again")
        if current is not None:
            known = {None, record.fingerprint(DEV), questions.fingerprint}
            if split == DEV and current.fingerprint(DEV) not in known:
                split = None  # a checkpoint, of which another set has become the dev set
            record = current
        split = split or _split_name(questions, record)
        points, rows = score(predictor, reading, folder, split=split, given=request.null_threshold)
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
            **({} if fits is None else vars(fits)),
        )
        write_record(folder, record)
    return record, split


# The set ------------------------------------------------------------------------------------------


def open_set(record: RunRecord, config: Config, request: Request) -> tuple[Any, str | None, tuple[str, ...]]:
    """Open the requested set, or the config's dev set; return it, its name in the record (None for a set that
    is not the run's own), and the titles that it shares with the run's training and calibration articles.

    Raises DataError or ConfigError, naming the option that helps, if it may not be scored as requested.
    """
    task, data = task_of(config.model), request.data
    on_error = request.on_error or config.data.on_error
    if not request.train and not data and config.data.dev is None:
        raise ConfigError("data.dev: the run's config names no dev set; give one with --data")
    dev: Any = None
    if request.train:
        questions = task.load_splits(replace(config.data, dev=None))[TRAIN]
        if questions.fingerprint != record.fingerprint(TRAIN):
            raise DataError(f"--train: {config.data.train} is no longer the data that the run was trained on")
    else:
        if config.data.dev is not None and (not data or not config.data.open_dev):
            dev = task.open(config.data.dev, name=DEV, on_error=on_error)
        questions = task.open(list(data), on_error=on_error) if data else dev
    name, protocol = questions.name, questions.protocol
    is_dev = questions.fingerprint == (dev.fingerprint if dev else record.fingerprint(DEV))
    closed = not config.data.open_dev and dev is not None and (is_dev or bool(dev.titles & questions.titles))
    # Training data of a single article is split by passage.
    names = article_names(questions) if isinstance(questions, QuestionSet) else questions.titles
    overlap = () if request.train else tuple(sorted(record.trained_titles & names))
    if overlap and not request.allow_overlap:
        titles = ", ".join(map(repr, overlap[:5])) + (", ..." if len(overlap) > 5 else "")
        raise DataError(
            f"{name}: shares {len(overlap)} articles with the run's training and calibration data ({titles});"
            " score another set, or add --allow-overlap, which the scores then record"
        )
    if closed != request.final:
        raise ConfigError(
            f"{name}: the run's config holds its dev set out (data.open_dev: false); --final scores it once"
            " all decisions are made, and logs the access"
            if closed
            else f"--final: {name} is not held out for this run; leave it out"
        )
    if request.null_threshold is not None and protocol != "2.0":
        raise ConfigError(
            f"--null-threshold: {name} has no unanswerable questions ({protocol}); leave it out"
        )
    if is_dev and DEV in record.data:  # whatever the file is called now
        questions = replace(questions, name=record.data[DEV].name)
    return questions, TRAIN if request.train else DEV if is_dev else None, overlap


def _split_name(questions: Any, record: RunRecord) -> str:
    """Name of the set as record key and folder, distinct from the run's own splits and folders.

    The start of its fingerprint is appended if the record has another set of this name.
    """
    name = file_stem(questions.name)
    if name in (TRAIN, CALIBRATION, DEV, MODEL, ONNX):
        name = f"{name}-set"
    if record.fingerprint(name) in (None, questions.fingerprint):
        return name
    split = f"{name}-{questions.fingerprint[:8]}"
    log.info("%s: recorded as %s, since the run was scored on another set of that name", name, split)
    return split


def calibration_set(config: Config) -> Any:
    """Open the run's calibration set; reads the training set only if calibration was held out of it."""
    task = task_of(config.model)
    if config.data.calibration is not None:
        return task.open(config.data.calibration, name=CALIBRATION, on_error=config.data.on_error)
    return task.load_splits(replace(config.data, dev=None)).get(CALIBRATION)


def _recorded_calibration(record: RunRecord, config: Config) -> Any:
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


# Ensembles and other decodings --------------------------------------------------------------------


def combined_record(request: Request, folder: Path) -> RunRecord:
    """The record in ``folder``, or a new one combined from those of the runs; it is not written yet.

    An ensemble sums the parameters, weights and training time of its members; its training articles are those
    of all members and their teachers. RunError if the folder holds another record.
    """
    records = [read_record(run) for run in request.runs]
    first, several = records[0], len(records) > 1
    config = {**first.config, "decode": request.settings or first.config["decode"]}
    members = tuple(
        f"{Path(run).resolve().name} ({record.run_hash[:8]})"
        for run, record in zip(request.runs, records, strict=True)
    )
    data = {}
    for split in (TRAIN, CALIBRATION):
        facts = [record.data[split] for record in records if split in record.data]
        titles = {title for split_facts in facts for title in split_facts.titles}
        if split == TRAIN:
            titles.update(title for r in records if r.teacher for title in r.teacher.titles)
        if facts:
            data[split] = replace(facts[0], titles=tuple(sorted(titles)))
    commit, dirty = provenance.commit()
    labels = [first.model, f"ensemble-{len(records)}" if several else None, request.decode]
    combined = replace(
        first,
        model="-".join(filter(None, labels)),
        config=config,
        **provenance.identify({**config, "members": list(members)})._asdict(),
        commit=commit,
        dirty=dirty,
        created=provenance.now(),
        data=data,
        scores={},
        references={},
        members=members,
        cost=None,
    )
    if several:
        weights = [record.weights_bytes for record in records]
        combined = replace(
            combined,
            parameters=Parameters(total=sum(record.parameters.total or 0 for record in records)),
            seconds=Seconds(fit=round(sum(record.seconds.fit or 0.0 for record in records), 3)),
            weights_bytes=None if None in weights else sum(filter(None, weights)),
            examples_per_second=None,
            peak_memory_mb=None,
            epochs=(),
            best_epoch=None,
        )
    if not (folder / RECORD).is_file():
        return combined
    existing = read_record(folder)
    require_same(existing, combined, folder, "--record")
    return existing


def _new_fits(
    request: Request, predictor: Predictor, calibration: Any | None, watching: Watching
) -> Fits | None:
    """Null threshold and temperature of an ensemble or of another decoding, which is fitted on
    ``calibration`` if that is known; None for a single run, whose record has them."""
    if request.decode is None:
        return _ensemble_fits(request.runs, predictor) if len(request.runs) > 1 else None
    # Its null odds are on another scale, so the run's threshold does not apply.
    predictor.null_threshold, predictor.temperature = 0.0, 1.0
    if calibration is None:
        return Fits(threshold=Threshold(value=0.0, fitted_on="nothing"))
    with watching() as watch:
        return calibrate(predictor, read(predictor, calibration, watch=watch))


def _ensemble_fits(runs: Sequence[str], predictor: Predictor) -> Fits:
    """Null threshold and temperature of ``predictor``, an ensemble of ``runs``; None if no member has one."""
    members = [read_record(run) for run in runs]
    thresholds = [member.threshold for member in members if member.threshold]
    confidences = [member.confidence for member in members if member.confidence]
    value = predictor.null_threshold
    priors, widths = ({getattr(fit, name) for fit in thresholds} for name in ("prior", "width"))
    threshold = confidence = None
    if thresholds:
        threshold = Threshold(
            value=value if math.isfinite(value) else None,
            fitted_on=" and ".join(sorted({fit.fitted_on for fit in thresholds})),
            prior=priors.pop() if len(priors) == 1 else None,
            width=widths.pop() if len(widths) == 1 else None,
        )
    if confidences:
        fitted_on = " and ".join(sorted({fit.fitted_on for fit in confidences}))
        confidence = replace(confidences[0], value=predictor.temperature, fitted_on=fitted_on)
    return Fits(threshold, confidence)


# Downloaded checkpoints ---------------------------------------------------------------------------


def checkpoint_run(
    source: str,
    folder: str | None,
    load: Callable[[], Predictor],
    watching: Watching,
    *,
    data: Sequence[str] | None,
    calibration: Sequence[str] | None,
) -> tuple[Path, Predictor]:
    """Make ``folder`` (default: below ``runs/checkpoints``) the run of the checkpoint ``source``.

    The null threshold is fitted on ``calibration``, or stays 0. ``data``, the first set that is scored, is
    its dev set. Earlier results of the same checkpoint and settings are kept; RunError if the folder holds
    another record.
    """
    task = task_named("span")
    run = Path(folder) if folder else Path("runs") / CHECKPOINTS / record_folder(source)
    existing = read_record(run) if (run / RECORD).is_file() else None
    if data is None and (existing is None or DEV not in existing.scores):
        raise ConfigError(f"--data: {source} has no dev set of its own; name the set to score")
    dev = task.open(list(data), name=DEV) if data else None
    fitted_on = task.open(list(calibration), name=CALIBRATION) if calibration else None
    predictor = load()
    assert predictor.record is not None
    config = dict(predictor.record.config)
    if calibration:
        config["data"] = {**config["data"], "calibration": list(calibration)}
    hashes = {} if fitted_on is None else {CALIBRATION: fitted_on.fingerprint}
    record = replace(predictor.record, config=config, **provenance.identify(config, hashes)._asdict())
    reading = None
    if existing is None and fitted_on is not None:
        with watching() as watch:
            reading = read(predictor, fitted_on, watch=watch)
    with changing(run, patience=WRITING) as existing:
        if existing is not None:
            if existing.run_hash != record.run_hash:
                raise RunError(
                    f"{run}: holds the record of {existing.model} with other files, settings or calibration;"
                    f" score that with --run {shlex.quote(str(run))}, or choose another --record"
                )
            record = existing
        elif reading is not None:
            fits = calibrate(predictor, reading)
            points, rows = score(predictor, reading, run, split=CALIBRATION)
            facts = replace(reading.facts, titles=tuple(sorted(reading.questions.titles)))
            record = replace(record, data={CALIBRATION: facts}, **vars(fits))
            record = replace(record, scores={CALIBRATION: points}, rows={CALIBRATION: rows})
        if data and dev is not None and DEV not in record.scores:
            facts = SplitFacts(name=dev.name, fingerprint=dev.fingerprint, protocol=dev.protocol)
            config = {**record.config, "data": {**record.config["data"], "dev": list(data)}}
            record = replace(record, config=config, data={**record.data, DEV: facts})
        write_record(run, record)
    predictor.record, predictor.null_threshold = record, record.null_threshold
    predictor.temperature = record.temperature
    return run, predictor
