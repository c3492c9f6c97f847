"""Loggers: any Lightning logger that a config names, fed during training and after scoring.

The run's own record is authoritative. A logger that cannot start ends the run before training; one that fails
later costs only its log.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import loggers as lightning
from pytorch_lightning.utilities.seed import isolate_rng

from qa_arch.config.check import suggest
from qa_arch.config.machine import logger_sections
from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED, arguments, locate, require_logger
from qa_arch.errors import ConfigError, QaArchError, RunError, UnavailableError, one_line
from qa_arch.files import read_json, write_json
from qa_arch.qa.files import PREDICTIONS
from qa_arch.records import (
    CALIBRATION,
    DEV,
    FORCED,
    MODEL,
    ORACLE,
    QUESTIONS,
    RECORD,
    THRESHOLD_0,
    WANDB,
    RunRecord,
    is_squad,
    questions_folder,
    read_questions,
)
from qa_arch.types import QuestionSet

log = logging.getLogger(__name__)
LIGHTNING = "pytorch_lightning.loggers"
"""Package whose loggers a config may name, in addition to the trusted packages."""
WANDB_RUN = f"{WANDB}/run.json"
"""File in a run folder: id, project, mode and URL of its wandb run."""
MLFLOW_RUN = "mlflow.json"
"""File in a run folder: id of its MLflow run, and the config's URI of the store."""
WANDB_MODES = ("disabled", "dryrun", "offline", "online", "run", "shared")
"""Values of WANDB_MODE."""
MAX_FAILURES = 3
"""Consecutive failures after which a logger is disabled: a service may take minutes to time out."""


class RunLogger(lightning.logger.Logger):
    """Logger of the Trainer: forwards every call to ``logger`` and turns its errors into warnings.

    Calls do not change the random state, so that no logger affects training.
    """

    def __init__(self, logger: lightning.logger.Logger) -> None:
        super().__init__()
        self.logger = logger
        self.failures = 0

    @property
    def name(self) -> str:
        return type(self.logger).__name__

    @property
    def version(self) -> None:
        return None

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        self._attempt(self.logger.log_hyperparams, params)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._attempt(self._log_and_save, self.logger.log_metrics, dict(metrics), step)

    def log_outcome(self, outcome: Outcome) -> None:
        """Log scores and tables of a finished run, as far as the logger supports them."""
        self._attempt(self._log_and_save, _log_outcome, self.logger, outcome)

    def save(self) -> None:
        """Do nothing: entries are saved as they are logged, so that a killed run keeps them."""

    def finalize(self, status: str) -> None:
        """Do nothing: Lightning finalizes loggers after the fit, before the run is scored."""

    def close(self, status: Literal["success", "failed"]) -> None:
        """Finalize ``logger`` once, whatever the outcome of the run."""
        self.failures = 0  # a logger that was disabled is finalized, too
        self._attempt(self.logger.finalize, status)

    def _log_and_save(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)
        self.logger.save()

    def _attempt(self, call: Callable[..., Any], *args: Any) -> None:
        if self.failures == MAX_FAILURES:
            return
        # Reading the state of CUDA's generators would start CUDA.
        with isolate_rng(include_cuda=torch.cuda.is_initialized()):
            try:
                call(*args)
                self.failures = 0
            except Exception as error:  # whatever a service or its library raises, the run continues
                self.failures += 1
                end = "; nothing more will be logged" if self.failures == MAX_FAILURES else ""
                message = f"{self.name}: {one_line(error)}"
                log.warning("%s; the run continues, and its record is complete%s", message, end)


class WandbLogger(lightning.WandbLogger):
    """A wandb run with its own mode: Lightning's ``offline=True`` sets that of the whole process.

    ``mode`` auto is online with a login, else offline; WANDB_MODE overrides it. A run ``folder`` whose wandb
    run was online continues that run. Only with ``texts`` is text of the data set logged: a table of
    predictions, the record, which has the titles of articles, as an artifact, and what the run prints. With
    ``log_model`` the trained model becomes an artifact. ``init`` are arguments of ``wandb.init``.
    """

    def __init__(
        self,
        *,
        folder: Path,
        project: str,
        mode: Literal["auto", "offline", "online"] = "auto",
        texts: bool = False,
        log_model: bool = False,
        id: str | None = None,
        settings: dict[str, Any] | None = None,
        save_dir: str = ".",
        **init: Any,
    ) -> None:
        import wandb

        chosen = os.environ.get("WANDB_MODE") or mode
        if not texts:
            settings = {**(settings or {}), "console": "off"}  # an error may cite a question
        run_file = folder / WANDB_RUN
        try:
            if chosen == "auto":
                chosen = "online" if wandb.login(prompt=False, verify=False) else "offline"
            # Offline, every start is a new run; WANDB_RUN_ID, as set by `wandb agent`, already names the run.
            if chosen == "online" and not os.environ.get("WANDB_RUN_ID"):
                id = id or _earlier_run(run_file, mode=chosen, project=project)
                init = {"resume": "allow" if id else None, **init}
            ours: dict[str, Any] = {"mode": chosen, "dir": save_dir, "reinit": "create_new"}
            run = wandb.init(project=project, id=id, settings=settings, **ours, **init)
        except wandb.Error as error:
            raise UnavailableError(
                f"logger=wandb: cannot start a run in mode {chosen} ({one_line(error)});"
                " try wandb login, logger.mode=offline or logger=none, with --if-exists resume"
            ) from error
        # Keep the last point of each curve out of the summary, which holds the final scores.
        run.define_metric("*", step_metric="trainer/global_step", summary="none")
        write_json(run_file, {"id": run.id, "project": project, "mode": chosen, "url": run.url})
        super().__init__(experiment=run, project=project, save_dir=save_dir)
        self.texts, self.log_model = texts, log_model

    def log_outcome(self, outcome: Outcome) -> None:
        """Write scores to the summary; with ``log_model`` also the model, with ``texts`` also a table of
        predictions and the record."""
        import wandb

        run = self.experiment
        run.summary.update(outcome.summary())
        if self.log_model:
            model = wandb.Artifact(f"model-{run.id}", type="model")
            model.add_dir(str(outcome.folder / MODEL))
            run.log_artifact(model, aliases=["latest", "best"])
        if not self.texts:
            return
        if rows := outcome.predictions():
            table = wandb.Table(columns=list(COLUMNS), data=rows)
            run.log({"predictions": table})
            run.summary["predictions"] = table  # where wandb's table panel reads it
        record = wandb.Artifact(f"record-{run.id}", type="record")
        questions = [questions_folder(outcome.folder, split) / QUESTIONS for split in (DEV, CALIBRATION)]
        for path in (outcome.folder / RECORD, *questions):
            if path.is_file():
                record.add_file(str(path), name=path.relative_to(outcome.folder).as_posix())
        run.log_artifact(record)

    def finalize(self, status: str) -> None:
        """Finish the run, with exit code 1 unless ``status`` is "success"."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=None if status == "success" else 1)


def _earlier_run(run_file: Path, **facts: str | None) -> str | None:
    """Id in ``run_file``, if the file exists and holds these ``facts``; else None. RunError if it is
    damaged."""
    if not run_file.is_file():
        return None
    remedy = "restore it, or delete it to log a new run"
    earlier = read_json(run_file, remedy)
    if not isinstance(earlier, dict) or not isinstance(earlier.get("id"), str):
        raise RunError(f"{run_file}: names no run of the logger; {remedy}")
    return earlier["id"] if earlier.items() >= facts.items() else None


@contextmanager
def open_loggers(
    config: Config, folder: Path, trusted: Sequence[str] = TRUSTED
) -> Iterator[Sequence[RunLogger]]:
    """Yield the loggers that the config names, and finalize them when the body ends.

    The final status is "success", or "failed" after an error or an interrupt. Raises UnavailableError if one
    cannot be started.
    """
    loggers: list[RunLogger] = []
    status: Literal["success", "failed"] = "failed"
    try:
        for target, settings in check_loggers(config.logger, trusted):
            loggers.append(RunLogger(_start(target, settings, config, folder)))
            loggers[-1].log_hyperparams(asdict(config))
        yield loggers
        status = "success"
    finally:
        for logger in loggers:
            logger.close(status)


def _start(target: type, settings: dict[str, Any], config: Config, folder: Path) -> Any:
    """Start a logger of the class ``target``, with placeholders in ``settings`` filled in."""
    placeholders = {
        "{folder}": str(folder.absolute()),
        "{name}": f"{config.model.get('name')}-s{config.seed}",
        "{group}": os.environ.get("WANDB_RUN_GROUP") or config.name,
    }
    run_file, uri = folder / MLFLOW_RUN, settings.get("tracking_uri")
    with isolate_rng(include_cuda=torch.cuda.is_initialized()):
        try:
            for key, value in settings.items():
                for name, text in placeholders.items() if isinstance(value, str) else ():
                    value = settings[key] = value.replace(name, text)
            if issubclass(target, WandbLogger):
                settings["folder"] = folder
            elif issubclass(target, (lightning.CSVLogger, lightning.TensorBoardLogger)):
                place, own = settings.get("save_dir"), folder.resolve()
                if place and not Path(place).resolve().is_relative_to(own):  # which other runs may name, too
                    digest = hashlib.sha256(str(own).encode()).hexdigest()[:8]
                    settings["save_dir"] = f"{place}/{own.name}-{digest}"
            mlflow = issubclass(target, lightning.MLFlowLogger)
            if mlflow and (earlier := _earlier_run(run_file, tracking_uri=uri)):
                settings.setdefault("run_id", earlier)
            service: Any = target(**settings)
            _ = getattr(service, "experiment", None)  # most loggers start their run here
            if mlflow:
                service.experiment.update_run(service.run_id, status="RUNNING")  # it may have failed before
                write_json(run_file, {"id": service.run_id, "tracking_uri": uri})
        except QaArchError:
            raise
        except TypeError as error:
            raise ConfigError(f"logger: {target.__name__} does not take these arguments ({error})") from error
        except Exception as error:
            raise UnavailableError(
                f"{target.__name__} could not be started ({one_line(error)});"
                " try logger=none with --if-exists resume"
            ) from error
    return service


def check_loggers(
    section: Mapping[str, Any], trusted: Sequence[str] = TRUSTED
) -> list[tuple[type[lightning.logger.Logger], dict[str, Any]]]:
    """Classes named by the section ``logger``, one or several, and their checked arguments.

    Starts nothing. Raises ConfigError for a class that is not a logger and for wrong arguments,
    UnavailableError if a logger's package is not installed.
    """
    sections = logger_sections(section).items()
    return [_checked(where, own, trusted) for where, own in sections if own["_target_"] is not None]


def _checked(where: str, section: Mapping[str, Any], trusted: Sequence[str]) -> tuple[type, dict[str, Any]]:
    target = locate(section["_target_"], (*trusted, LIGHTNING), where)
    if not issubclass(target, lightning.logger.Logger):
        raise ConfigError(f"{where}._target_: {target.__name__} is not a subclass of Lightning's Logger")
    for base in target.__mro__:
        require_logger(base.__name__)
    further = None
    if issubclass(target, lightning.WandbLogger):
        import wandb

        further = signature(wandb.init).parameters.keys() - {"dir", "reinit"}  # which are chosen here
    given = ("folder",) if issubclass(target, WandbLogger) else ()  # see ``_start``
    settings = arguments(target, section, given, where=where, descriptive=("_target_",), further=further)
    if issubclass(target, WandbLogger):
        mode, console = os.environ.get("WANDB_MODE"), (settings.get("settings") or {}).get("console", "off")
        if mode and mode not in WANDB_MODES:
            raise ConfigError(f"WANDB_MODE: {mode!r} is not a mode of wandb{suggest(mode, WANDB_MODES)}")
        if console != "off" and not settings.get("texts"):
            remedy = f"what a run prints may cite a question; add {where}.texts=true"
            raise ConfigError(f"{where}.settings.console: {console!r}: {remedy}")
    return target, settings


def _log_outcome(logger: Any, outcome: Outcome) -> None:
    if hasattr(logger, "log_outcome"):
        logger.log_outcome(outcome)
        return
    record = outcome.record
    step = record.epochs[-1].step if record.epochs else None
    # Not as further points of the epochs' curves: the run has the scores of its best epoch, not of the last.
    curves = {key.replace("_", "/", 1) for epoch in record.epochs for key in epoch.metrics}
    scores = {f"best/{name}" if name in curves else name: value for name, value in outcome.summary().items()}
    if not isinstance(logger, lightning.TensorBoardLogger):
        logger.log_metrics(scores, step)
        return
    shown = {section: record.config[section] for section in ("model", "encoder", "optim")}
    trainer = {"epochs": record.config["trainer"]["epochs"], "batch": record.batch.global_size}
    settings = {"seed": record.seed, **shown, "trainer": trainer}
    logger.log_hyperparams(settings, scores, step)  # the HPARAMS tab, with the scores as scalars
    logger.experiment.add_text("table", outcome.tables("markdown"))


MAX_SUMMARY = 20
"""Largest number of scores and costs of a finished run sent to a service; the record has all."""
COMPARED_BY = (
    *("f1", "exact", "HasAns_f1", "NoAns_f1", "HasAns_exact", "NoAns_exact"),
    *("answerable_precision", "answerable_recall", "threshold"),
)
OTHER_POINTS = {
    "threshold_0_f1": (THRESHOLD_0, "f1"),
    "forced_f1": (FORCED, "HasAns_f1"),
    "oracle_f1": (ORACLE, "f1"),
}
"""Score name -> the operating point it is taken from, and its key there."""
COLUMNS = ("id", "kind", "question", "gold", "prediction", "exact", "f1", "null_odds", "article")
"""Columns of the table of predictions."""


@dataclass(frozen=True)
class Outcome:
    """Record of a finished run, its folder and the dev set."""

    record: RunRecord
    folder: Path
    questions: Any
    """The dev set, whose texts are logged if it is a QuestionSet; None if it was not opened."""

    def summary(self) -> dict[str, float]:
        """At most ``MAX_SUMMARY`` values: the scores that runs are compared by, dev first, and the cost.

        Scores are named like those of epochs: ``dev/f1``, ``calibration/forced_f1``.
        """
        record, scores = self.record, dict[str, Any]()
        for split in sorted(record.scores, key=lambda split: split != DEV):
            points, point = record.scores[split], record.compared_point(split)
            metrics = point.flat() if point else {}
            if point and is_squad(point.protocol):
                metrics = {key: metrics.get(key) for key in COMPARED_BY}
                for name, (other, key) in OTHER_POINTS.items():
                    metrics[name] = points[other].metric(key) if other in points else None
            scores |= {f"{split}/{key}": value for key, value in metrics.items()}
        cost: dict[str, Any] = {
            "seconds/fit": record.seconds.fit,
            "seconds/predict": record.seconds.predict,
            "parameters": record.parameters.total,
            "peak_memory_mb": record.peak_memory_mb,
        }
        numbers = [item for item in scores.items() if type(item[1]) in (int, float)]
        return {**dict(numbers[: MAX_SUMMARY - len(cost)]), **cost}  # costs always have room

    def tables(self, form: str) -> str:
        """One table per scored set, with the row of the run and those of the heuristics."""
        from qa_arch.results.columns import runs_table
        from qa_arch.results.tables import render

        runs = [(Path(self.folder.name), self.record)]
        return render([runs_table(runs, split=split) for split in self.record.scores], form)

    def predictions(self) -> list[list[Any]]:
        """One row of ``COLUMNS`` per dev question; empty if dev was not opened or has no texts."""
        if not isinstance(self.questions, QuestionSet) or not (self.folder / QUESTIONS).is_file():
            return []
        predicted = json.loads((self.folder / PREDICTIONS).read_text(encoding="utf-8"))
        rows = read_questions(self.folder)
        row_of = {id_: row for row, id_ in enumerate(rows["id"])}
        table = []
        for example in self.questions.examples:
            scored: Mapping[str, Any] = {name: rows[name][row_of[example.id]] for name in rows}
            gold = " | ".join(dict.fromkeys(answer.text for answer in example.answers))
            texts = [example.question, gold, predicted[example.id]]
            scores = [float(scored[name]) for name in ("exact", "f1", "null_odds")]
            table.append([example.id, example.kind or "", *texts, *scores, example.title])
        return table
