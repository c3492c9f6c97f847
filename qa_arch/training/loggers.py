"""Loggers: any Lightning logger that a config names, fed while a run trains and after it was scored.

The run's own record is the truth. A logger that cannot start ends the run before it trains; one that fails
later costs the run nothing but the log.
"""

from __future__ import annotations

import csv
import json
import logging
import netrc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import loggers as lightning
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.seed import isolate_rng

from qa_arch.config.extras import require_logger
from qa_arch.config.files import write_atomic, write_json
from qa_arch.config.schema import Config
from qa_arch.config.target import TRUSTED, arguments, locate
from qa_arch.errors import ConfigError, QaArchError, UnavailableError
from qa_arch.records import (
    CALIBRATION,
    DEV,
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    QUESTIONS,
    RECORD,
    RunRecord,
    is_squad,
    questions_folder,
    read_questions,
)
from qa_arch.spans.files import PREDICTIONS
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)
LIGHTNING = "pytorch_lightning.loggers"
"""The package whose loggers a config may name, beside those that are trusted anyway."""
WANDB_RUN = "wandb/run.json"
"""In a run folder: id, project, mode and address of its run of wandb."""
MOST_FAILURES = 3
"""Failed calls in a row after which a logger is left alone: a service may take minutes to time out."""


class RunLogger(lightning.logger.Logger):
    """The logger of the Trainer: forwards every call to ``logger`` and turns its errors into warnings.

    A call leaves the random generators as they were, so that no logger changes what is trained.
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
        """Scores and tables of a finished run, as much of them as the logger takes."""
        self._attempt(self._log_and_save, _log_outcome, self.logger, outcome)

    def save(self) -> None:
        """Nothing: whatever is logged is saved at once, so that a killed run has it."""

    def finalize(self, status: str) -> None:
        """Nothing: Lightning finalizes a logger after the fit, when the run is not scored yet."""

    def close(self, status: Literal["success", "failed"]) -> None:
        """Finalize ``logger``; once, whatever became of the run."""
        self.failures = 0
        self._attempt(self.logger.finalize, status)

    def _log_and_save(self, call: Callable[..., Any], *args: Any) -> None:
        call(*args)
        self.logger.save()

    def _attempt(self, call: Callable[..., Any], *args: Any) -> None:
        if self.failures == MOST_FAILURES:
            return
        with isolate_rng(include_cuda=torch.cuda.is_initialized()):
            try:
                call(*args)
                self.failures = 0
            except Exception as error:  # whatever a service or its library raises, the run goes on
                self.failures += 1
                end = "; nothing more is logged" if self.failures == MOST_FAILURES else ""
                message = f"{self.name}: {_line(error)}"
                log.warning("%s; the run goes on, and its record has everything%s", message, end)


class WandbLogger(lightning.WandbLogger):
    """A wandb run whose mode is its own: Lightning's ``offline=True`` sets that of the whole process.

    ``mode`` auto is online with a login, else offline; WANDB_MODE overrules it. Only rank 0 starts a run,
    and of a run folder whose run was online before, that same run goes on. It also gets a table of
    predictions and, as an artifact, the record.
    """

    def __init__(
        self,
        *,
        project: str,
        mode: Literal["auto", "offline", "online"] = "auto",
        tags: list[str] | None = None,
        name: str | None = None,
        group: str | None = None,
        save_dir: str = ".",
    ) -> None:
        import wandb

        chosen = os.environ.get("WANDB_MODE") or mode
        if chosen == "auto":
            chosen = "online" if os.environ.get("WANDB_API_KEY") or _in_netrc() else "offline"
        run: Any = None
        if getattr(rank_zero_only, "rank", 0) == 0:
            settings = {"project": project, "name": name, "group": group, "tags": tags, "dir": save_dir}
            place = Path(save_dir) / WANDB_RUN
            settings |= {"reinit": "create_new", **_same_run(place, project, chosen)}
            try:
                run = wandb.init(mode=chosen, **settings)  # type: ignore[arg-type]
            except wandb.Error as error:
                raise UnavailableError(
                    f"logger=wandb: no run could be started, mode {chosen} ({_line(error)});"
                    " try wandb login, logger.mode=offline or logger=none"
                ) from error
            # The summary has the scores of the end, not the last point of each curve as well.
            run.define_metric("*", step_metric="trainer/global_step", summary="none")
            write_json(place, {"id": run.id, "project": project, "mode": chosen, "url": run.url})
        super().__init__(experiment=run, project=project, save_dir=save_dir)

    def log_outcome(self, outcome: Outcome) -> None:
        """Scores into the summary, a table of predictions, and the record as an artifact."""
        import wandb

        run = self.experiment
        run.summary.update(outcome.summary())
        if rows := outcome.predictions():
            run.log({"predictions": wandb.Table(columns=list(COLUMNS), data=rows)})
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


class CsvLogger(lightning.logger.Logger):
    """Files in ``folder``: ``epochs.csv`` has a row an epoch, ``steps.csv`` a row for each entry inside one.

    ``table.csv`` is the finished run's row beside the heuristics. The columns of a file are those of its
    first row; a resumed run goes on in the same files.
    """

    name, version = "csv", None

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Nothing: the run folder has its config."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        row = {"step": step, **metrics}
        path = self.folder / ("steps.csv" if "step/loss" in row else "epochs.csv")
        self.folder.mkdir(parents=True, exist_ok=True)
        with path.open("a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            known = next(csv.reader(file), None)
            writer = csv.DictWriter(file, known or list(row), extrasaction="ignore")
            if known is None:
                writer.writeheader()
            writer.writerow(row)

    def log_outcome(self, outcome: Outcome) -> None:
        write_atomic(self.folder / "table.csv", outcome.tables("csv"))


def _same_run(place: Path, project: str, mode: str) -> dict[str, Any]:
    """The arguments by which wandb continues the run that ``place`` notes; none where there is no such run.

    wandb resumes on its server alone: offline every start is a run of its own. A WANDB_RUN_ID, as
    ``wandb agent`` gives one, names the run itself.
    """
    if mode != "online" or os.environ.get("WANDB_RUN_ID") or not place.is_file():
        return {}
    before = json.loads(place.read_text(encoding="utf-8"))
    if before["mode"] != mode or before["project"] != project:
        return {}
    return {"id": before["id"], "resume": "allow"}


@contextmanager
def open_logger(config: Config, folder: Path, trusted: Sequence[str] = TRUSTED) -> Iterator[RunLogger | None]:
    """The logger that the config names, or None; finalized as the body ends.

    Its status is "success", or "failed" for an error or an interrupt. UnavailableError where it cannot be
    started.
    """
    checked = check_logger(config.logger, trusted)
    if checked is None:
        yield None
        return
    target, settings = checked
    places = {
        "{folder}": str(folder.absolute()),
        "{name}": f"{config.model.get('name')}-s{config.seed}",
        "{group}": os.environ.get("WANDB_RUN_GROUP") or config.name,
    }
    with isolate_rng(include_cuda=torch.cuda.is_initialized()):
        try:
            for key, value in settings.items():
                for name, text in places.items() if isinstance(value, str) else ():
                    value = settings[key] = value.replace(name, text)
            service = target(**settings)
            _ = getattr(service, "experiment", None)  # where most loggers begin their run
        except QaArchError:
            raise
        except TypeError as error:
            raise ConfigError(f"logger: {target.__name__} does not take these arguments ({error})") from error
        except Exception as error:
            raise UnavailableError(
                f"{target.__name__} could not be started ({_line(error)}); try logger=none"
            ) from error
    logger = RunLogger(service)
    status: Literal["success", "failed"] = "failed"
    try:
        logger.log_hyperparams(asdict(config))
        yield logger
        status = "success"
    finally:
        logger.close(status)


def check_logger(
    section: Mapping[str, Any], trusted: Sequence[str] = TRUSTED
) -> tuple[type[lightning.logger.Logger], dict[str, Any]] | None:
    """The class that ``section`` names and its checked arguments; None where it names none.

    Starts nothing. ConfigError for what is no logger and for wrong arguments, UnavailableError where the
    logger's package is not installed.
    """
    if section["_target_"] is None:
        return None
    target = locate(section["_target_"], (*trusted, LIGHTNING))
    if not issubclass(target, lightning.logger.Logger):
        raise ConfigError(f"logger._target_: {target.__name__} is no subclass of Lightning's Logger")
    settings = arguments(target, section, (), where="logger", descriptive=("_target_",))
    for base in target.__mro__:
        require_logger(base.__name__)
    return target, settings


def _log_outcome(logger: Any, outcome: Outcome) -> None:
    if hasattr(logger, "log_outcome"):
        logger.log_outcome(outcome)
        return
    record = outcome.record
    step = record.epochs[-1].step if record.epochs else None
    if not isinstance(logger, lightning.TensorBoardLogger):
        logger.log_metrics(outcome.summary(), step)
        return
    shown = {section: record.config[section] for section in ("model", "encoder", "optim")}
    trainer = {key: record.config["trainer"][key] for key in ("epochs", "batch_size", "accumulate")}
    settings = {"seed": record.seed, **shown, "trainer": trainer}
    logger.log_hyperparams(settings, outcome.summary(), step)  # the page HPARAMS, and the scores as scalars
    logger.experiment.add_text("table", outcome.tables("markdown"))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _in_netrc() -> bool:
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


SUMMARY = 20
"""Scores and costs that a service is given of a finished run; the record has all."""
COMPARED_BY = (
    *("f1", "exact", "HasAns_f1", "NoAns_f1", "HasAns_exact", "NoAns_exact"),
    *("answerable_precision", "answerable_recall", "threshold"),
)
OTHER_POINTS = {
    "f1_at_0": (MARGIN_0, "f1"),
    "spans_f1": (NEVER_NULL, "HasAns_f1"),
    "oracle_f1": (ORACLE, "f1"),
}
"""Name of a score -> the operating point that has it, and its key there."""
COLUMNS = ("id", "kind", "question", "gold", "prediction", "exact", "f1", "null_odds", "article")
"""The columns of the table of predictions."""


@dataclass(frozen=True)
class Outcome:
    """The record of a finished run, its folder and the dev set."""

    record: RunRecord
    folder: Path
    questions: Any
    """The dev set, of which a set of SQuAD questions has texts to show; None where it was not opened."""

    def summary(self) -> dict[str, float]:
        """At most ``SUMMARY`` values: the scores that runs are compared by, dev first, and the cost.

        Scores are named as those of epochs are: ``dev/f1``, ``calibration/spans_f1``.
        """
        record, scores = self.record, dict[str, Any]()
        for split in sorted(record.scores, key=lambda split: split != DEV):
            points, point = record.scores[split], record.compared_point(split)
            own = point.flat() if point else {}
            if point and is_squad(point.protocol):
                own = {key: own.get(key) for key in COMPARED_BY}
                for name, (other, key) in OTHER_POINTS.items():
                    own[name] = points[other].metric(key) if other in points else None
            scores |= {f"{split}/{key}": value for key, value in own.items()}
        cost: dict[str, Any] = {
            "seconds/fit": record.seconds.fit,
            "seconds/predict": record.seconds.predict,
            "parameters": record.parameters.total,
            "peak_memory_mb": record.peak_memory_mb,
        }
        numbers = [item for item in scores.items() if type(item[1]) in (int, float)]
        return {**dict(numbers[: SUMMARY - len(cost)]), **cost}

    def tables(self, form: str) -> str:
        """The run's row and those of the heuristics, for each scored set."""
        from qa_arch.results.columns import comparison
        from qa_arch.results.tables import render

        runs = [(Path(self.folder.name), self.record)]
        return render([comparison(runs, split=split) for split in self.record.scores], form)

    def predictions(self) -> list[list[Any]]:
        """A row of ``COLUMNS`` for each question of dev; none where dev was not opened or has no texts."""
        if not isinstance(self.questions, QuestionSet) or not (self.folder / QUESTIONS).is_file():
            return []
        predicted = json.loads((self.folder / PREDICTIONS).read_text(encoding="utf-8"))
        rows = read_questions(self.folder)
        places = {id_: place for place, id_ in enumerate(rows["id"])}
        table = []
        for example in self.questions.examples:
            scored: Mapping[str, Any] = {name: rows[name][places[example.id]] for name in rows}
            gold = " | ".join(dict.fromkeys(answer.text for answer in example.answers))
            texts = [example.question, gold, predicted[example.id]]
            figures = [float(scored[name]) for name in ("exact", "f1", "null_odds")]
            table.append([example.id, example.kind or "", *texts, *figures, example.title])
        return table
