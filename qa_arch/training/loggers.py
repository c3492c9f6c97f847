"""The mirror of a run in wandb. The run's own record is the truth; this may be off or fail."""

from __future__ import annotations

import netrc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wandb
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from qa_arch.config.schema import Logger
from qa_arch.errors import UnavailableError
from qa_arch.results.questions import questions_folder
from qa_arch.results.record import QUESTIONS, RECORD
from qa_arch.training.mirrors import COLUMNS, Results
from qa_arch.types.records import CALIBRATION, DEV


@contextmanager
def wandb_logger(
    settings: Logger, folder: Path, *, name: str, group: str, config: dict[str, Any]
) -> Iterator[WandbLogger]:
    """A Lightning logger whose run is finished in every case, as failed where an error passes through.

    ``group`` counts where no sweep names its own (WANDB_RUN_GROUP). Only rank 0 starts a run. Offline is
    asked for by the run's own mode: Lightning's ``offline=True`` would set the mode of the whole process
    and so of every later run. UnavailableError where wandb refuses to start one.
    """
    mode = os.environ.get("WANDB_MODE") or settings.mode
    if mode == "auto":
        mode = "online" if logged_in() else "offline"
    run = None
    if getattr(rank_zero_only, "rank", 0) == 0:
        try:
            run = wandb.init(
                project=settings.project,
                name=name,
                group=os.environ.get("WANDB_RUN_GROUP") or group,
                tags=settings.tags,
                config=config,
                dir=folder,
                mode=mode,  # type: ignore[arg-type]
                reinit="create_new",
            )
        except wandb.Error as error:
            said = " ".join(str(error).split())
            raise UnavailableError(
                f"logger=wandb: no run could be started, mode {mode} ({said});"
                " try wandb login, logger.mode=offline or logger=none"
            ) from error
    try:
        yield WandbLogger(experiment=run)
    except BaseException:
        if run is not None:
            run.finish(exit_code=1)
        raise
    if run is not None:
        run.finish()


def log_results(run: Any, results: Results) -> None:
    """Scores into the summary, a table of predictions, and as artifacts the record and the run's tables."""
    run.summary.update(results.scalars())
    if rows := results.predictions():
        run.log({"predictions": wandb.Table(columns=list(COLUMNS), data=rows)})
    record = wandb.Artifact(f"record-{run.id}", type="record")
    kept = [questions_folder(results.folder, split) / QUESTIONS for split in (DEV, CALIBRATION)]
    for path in (results.folder / RECORD, *kept):
        if path.is_file():
            record.add_file(str(path), name=path.relative_to(results.folder).as_posix())
    run.log_artifact(record)
    tables = wandb.Artifact(f"tables-{run.id}", type="tables")
    for suffix, form in (("md", "markdown"), ("tex", "latex"), ("csv", "csv")):
        with tables.new_file(f"table.{suffix}", encoding="utf-8") as file:
            file.write(results.tables(form))
    run.log_artifact(tables)


def logged_in() -> bool:
    """Whether a wandb key is at hand, in the environment or in the netrc file, without asking for one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False
