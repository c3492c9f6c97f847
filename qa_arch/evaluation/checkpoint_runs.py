"""The run folder of a downloaded checkpoint, so that it is scored, recorded and compared like any run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from qa_arch.config.checkpoints import CHECKPOINTS
from qa_arch.config.identity import config_hash
from qa_arch.errors import ConfigError, RunError
from qa_arch.evaluation.scoring import calibrate, read, score
from qa_arch.models.checkpoint_files import record_folder
from qa_arch.results.record import RECORD, read_record, write_record
from qa_arch.tasks import task_named
from qa_arch.tasks.base import Predictor, Watch
from qa_arch.types.records import CALIBRATION, DEV, RunRecord, SplitFacts

RUNS = Path("runs") / CHECKPOINTS
Watching = Callable[[], AbstractContextManager[Watch]]


def adopt(
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
    its dev set. What the folder holds of the same checkpoint under the same settings stays; RunError where it
    holds the record of anything else.
    """
    task = task_named("span")
    where = Path(folder) if folder else RUNS / record_folder(source)
    there = read_record(where) if (where / RECORD).is_file() else None
    if data is None and (there is None or DEV not in there.scores):
        raise ConfigError(f"--data: {source} has no dev set of its own; name the set to be scored")
    dev = task.open(list(data), name=DEV) if data else None
    fitted_on = task.open(list(calibration), name=CALIBRATION) if calibration else None
    predictor = load()
    record = _calibrated(predictor, calibration, fitted_on)
    if there is not None:
        _require_same(where, there, record)
        record = there
    elif fitted_on is not None:
        record = _fit(predictor, record, fitted_on, where, watching)
    if dev is not None and DEV not in record.scores:
        record = _with_dev(record, data, dev)
    write_record(where, record)
    predictor.record, predictor.null_threshold = record, record.null_threshold
    predictor.temperature = record.temperature
    return where, predictor


def _calibrated(predictor: Predictor, sources: Sequence[str] | None, questions: Any) -> RunRecord:
    """The predictor's record, which names the set that its threshold is to be fitted on."""
    assert predictor.record is not None
    config = dict(predictor.record.config)
    hashes = {}
    if questions is not None and sources is not None:
        config["data"] = {**config["data"], "calibration": list(sources)}
        hashes[CALIBRATION] = questions.fingerprint
    return replace(predictor.record, config=config, config_hash=config_hash(config, hashes))


def _require_same(folder: Path, there: RunRecord, record: RunRecord) -> None:
    if there.config_hash == record.config_hash:
        return
    raise RunError(
        f"{folder}: holds the record of {there.model} with other files or settings, or calibrated otherwise;"
        f" score that with --run {folder}, or choose another --record"
    )


def _fit(
    predictor: Predictor, record: RunRecord, questions: Any, folder: Path, watching: Watching
) -> RunRecord:
    """``record`` with the null threshold that fits ``questions`` best, and the scores there."""
    with watching() as watch:
        reading = read(predictor, questions, watch=watch)
    fits = calibrate(predictor, reading)
    points = score(predictor, reading, folder, split=CALIBRATION)
    facts = replace(reading.facts, titles=tuple(sorted(questions.titles)))
    return replace(record, data={CALIBRATION: facts}, scores={CALIBRATION: points}, **vars(fits))


def _with_dev(record: RunRecord, sources: Sequence[str] | None, questions: Any) -> RunRecord:
    facts = SplitFacts(name=questions.name, fingerprint=questions.fingerprint, protocol=questions.protocol)
    config = {**record.config, "data": {**record.config["data"], "dev": list(sources or ())}}
    return replace(record, config=config, data={**record.data, DEV: facts})
