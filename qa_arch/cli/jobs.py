"""A run from its settings to its folder: what ``qa-arch train`` and ``qa_arch.train`` both do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from qa_arch.cli.required_files import require_files
from qa_arch.cli.runs import use_config_dir
from qa_arch.config.extras import require_for
from qa_arch.config.files import empty_folder, is_unfinished, write_atomic
from qa_arch.config.identity import config_hash
from qa_arch.config.launched import launched
from qa_arch.config.schema import Config, require_trainable, require_vectors, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.models.teacher_files import require_teacher
from qa_arch.results.record import RECORD, read_record
from qa_arch.system.garbage import gc_disabled
from qa_arch.system.lock import LOCK, hold

if TYPE_CHECKING:
    from qa_arch.results.notebooks import Run

log = logging.getLogger(__name__)
CONFIG = "config.yaml"
IfExists = Literal["fail", "replace", "resume"]


@dataclass(frozen=True)
class Job:
    """A run to train: its validated config, the raw config to save, and its folder."""

    config: Config
    raw: dict[str, Any]
    folder: Path


def train(
    overrides: Sequence[str] = (),
    *,
    folder: str | PathLike[str] | None = None,
    if_exists: IfExists = "fail",
    config_dir: str | PathLike[str] | None = None,
    trust: Sequence[str] = (),
) -> Run:
    """Train a model in this process, as ``qa-arch train`` does with the same settings, and return its run.

    ``overrides`` are settings as Hydra takes them: ``["model=bert", "experiment=demo", "seed=14"]``.
    ``folder`` is the run's (default: ``RUNS_DIR/NAME/MODEL-sSEED-HASH``). Where it exists, ``if_exists``
    fails, replaces it, or resumes the run: an unfinished one goes on and a finished one is returned as it is.
    ``config_dir`` holds choices of your own for the config groups, and ``trust`` names packages whose classes
    a config may name.

    All that can be checked without weights is checked first. Raises ConfigError for settings, DataError for
    data and RunError for a folder that cannot be used; a run that fails while it trains is recorded as failed
    and its error raised. A run that is out of memory returns with the status ``oom``.
    """
    if isinstance(overrides, str):
        raise ConfigError(f'overrides: a list of settings is needed, such as ["{overrides}"]')
    if if_exists not in get_args(IfExists):
        raise ConfigError(f"if_exists: '{if_exists}' is none of {', '.join(get_args(IfExists))}")
    if launched() is not None:
        raise ConfigError("torchrun and srun start the command (qa-arch train), not qa_arch.train")
    from qa_arch.cli.compose import compose

    own = None if config_dir is None else str(config_dir)
    use_config_dir(own, trust)
    job = plan_job(compose(overrides, own), folder)
    trusted = (*TRUSTED, *trust)
    check_jobs([job], if_exists, trusted)
    train_job(job, if_exists, trusted)
    from qa_arch.results.notebooks import Run  # no command that trains waits for it

    return Run(job.folder)


def plan_job(raw: dict[str, Any], folder: str | PathLike[str] | None = None) -> Job:
    """A composed config as a job, its settings checked; nothing is imported or read for it."""
    config = validate(raw)
    require_trainable(config)
    require_vectors(config)
    require_teacher(config)
    require_for(config)
    return Job(config, raw, Path(folder) if folder else _folder(config))


def check_jobs(
    jobs: Sequence[Job], if_exists: IfExists, trusted: Sequence[str], *, dry: bool = False
) -> None:
    """Raise an error for whatever would stop a job, the cheap checks of all jobs first.

    With ``dry`` nothing is to be trained: files that a run would read may be missing still.
    """
    for job in jobs:
        if not (dry or (if_exists == "resume" and finished(job.folder))):
            require_files(job.config)
    with gc_disabled():
        from qa_arch.models.build import check_model  # imports torch, so it comes after the cheap checks
        from qa_arch.nn.losses import build_loss
        from qa_arch.training.loggers import check_logger

    for job in jobs:
        check_model(job.config.model, trusted, with_vectors=job.config.glove.use)
        build_loss(job.config, trusted)
        check_logger(job.config.logger, trusted)


def require_usable(job: Job, if_exists: IfExists) -> None:
    """Raise RunError for a folder that would be overwritten or belongs to another config."""
    folder = job.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder}: is a file; choose another --folder")
    if all(path.name == LOCK or is_unfinished(path) for path in folder.iterdir()):
        return
    if if_exists == "fail":
        raise RunError(
            f"{folder}: already exists; --if-exists resume continues it, --if-exists replace starts again"
        )
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder}: holds no {CONFIG}, so it is not a run and was not changed")
    if if_exists == "resume" and (folder / RECORD).is_file():
        begun = config_hash(asdict(validate(read_record(folder).config)))  # with defaults for newer settings
        if begun != config_hash(asdict(job.config)):
            raise RunError(f"{folder}: was begun with another config; resume with --config-from {folder}")


def train_job(job: Job, if_exists: IfExists, trusted: Sequence[str], *, go_on: bool = False) -> str:
    """Status of the run. With ``go_on`` a failure is logged and recorded, and the next model is trained."""
    require_usable(job, if_exists)  # before the folder is made and locked
    with hold(job.folder, "run"):
        require_usable(job, if_exists)  # again: another process may have used the folder meanwhile
        return _train_locked(job, if_exists, trusted, go_on=go_on)


def finished(folder: Path) -> bool:
    """Whether a run in this folder ended well."""
    return (folder / RECORD).is_file() and read_record(folder).status == "ok"


def _train_locked(job: Job, if_exists: IfExists, trusted: Sequence[str], *, go_on: bool) -> str:
    if if_exists == "resume" and finished(job.folder):
        log.info("%s: already finished, nothing to do", job.folder)
        return "ok"
    from qa_arch.cli.compose import to_yaml

    if if_exists == "replace":
        empty_folder(job.folder, keep=(LOCK,))
    write_atomic(job.folder / CONFIG, to_yaml(job.raw))
    log.info("run: %s", job.folder)
    with gc_disabled():
        from qa_arch.training.run import train as train_run

    try:
        record = train_run(job.config, folder=job.folder, resume=if_exists == "resume", trusted=trusted)
    except Exception as error:
        if not go_on:
            raise
        log.error("%s: failed (%s: %s)", job.folder, type(error).__name__, error)
        return "failed"
    return record.status


def _folder(config: Config) -> Path:
    name = config.model.get("name", "model")
    return Path(config.runs_dir) / config.name / f"{name}-s{config.seed}-{config_hash(asdict(config))[:8]}"
