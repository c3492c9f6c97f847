"""A job, which is a run to train: ``plan`` composes it, ``check`` finds what would stop it, ``train`` trains.

What trains a job trusts that it was planned and checked here. Torch and Hydra are imported when needed.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from glob import has_magic
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from qa_arch import hub
from qa_arch.config.find import CONFIG, use_config_dir
from qa_arch.config.machine import lost_logger, machine_overrides, refuse_single_run
from qa_arch.config.schema import Config, changes_of, recipe_of, require_vectors, validate
from qa_arch.config.target import CALLBACKS, TRUSTED, own_options, require_packages_of, require_trusted
from qa_arch.data import sources
from qa_arch.data.files import as_list, packaged_files
from qa_arch.data.sources import split_source
from qa_arch.errors import ConfigError, DataError, QaArchError, RunError, UnavailableError, named, one_line
from qa_arch.features.glove import fetch
from qa_arch.files import LOCK, hold, is_unfinished, read_yaml, user_path, write_atomic
from qa_arch.models.checkpoint_files import names_checkpoint, require_start, require_teacher
from qa_arch.process import gc_disabled, launched
from qa_arch.provenance import ENCODER, identify, new_record, now
from qa_arch.records import (
    CHECKPOINT,
    MODEL,
    RECORD,
    WANDB,
    RunRecord,
    Status,
    clear_run,
    read_record,
    read_trained,
)

log = logging.getLogger(__name__)
IfExists = Literal["fail", "replace", "resume"]


@dataclass(frozen=True)
class Job:
    """A run to train, validated."""

    config: Config
    raw: dict[str, Any]
    """The config as composed, which the run folder keeps."""
    folder: Path
    if_exists: IfExists = "fail"
    trusted: Sequence[str] = TRUSTED
    options: Sequence[str] = ()
    """Options needed to load the run."""
    machine: Sequence[str] = ()
    """Overrides that chose the settings of this machine; with ``options``, the command that resumes it."""
    title: str = ""
    """Name among other jobs, in errors."""

    @property
    def is_done(self) -> bool:
        """Whether to resume it is to do nothing."""
        return self.if_exists == "resume" and finished(self.folder)


def plan(
    overrides: Sequence[str] = (),
    *,
    config_from: str | PathLike[str] | None = None,
    folder: str | PathLike[str] | None = None,
    if_exists: IfExists = "fail",
    config_dir: str | None = None,
    trust: Sequence[str] = (),
    machine: Mapping[str, Any] | None = None,
) -> Job:
    """Compose a job from the default config, or from that of the run or record ``config_from``, and validate
    it; no data is read and no weights are loaded for it.

    ``folder`` is the run folder (default: ``RUNS_DIR/NAME/MODEL-sSEED-HASH``). Among processes that torchrun
    or srun started, it trains on all of them. ``machine``: see ``compose.merge``.
    """
    own_conf = use_config_dir(config_dir, trust)
    if config_from is None:
        from qa_arch.config.compose import compose

        raw = compose(overrides, own_conf)
    else:
        resumes = if_exists == "resume" and not (folder and finished(Path(folder)))
        raw = _repeated(Path(config_from), overrides, own_conf, machine=machine, resumes=resumes)
    if (launch := launched()) is not None:
        trainer = raw["trainer"]
        if trainer["devices"] not in (1, "auto", launch.world):  # 1 is the default
            raise ConfigError(
                f"trainer.devices={trainer['devices']}, but {launch.world} processes were started; leave it"
                " out"
            )
        trainer["devices"] = launch.world
    return plan_composed(
        raw, overrides, folder=folder, if_exists=if_exists, config_dir=config_dir, trust=trust
    )


def plan_composed(
    raw: dict[str, Any],
    overrides: Sequence[str] = (),
    *,
    folder: str | PathLike[str] | None = None,
    if_exists: IfExists = "fail",
    config_dir: str | None = None,
    trust: Sequence[str] = (),
    title: str = "",
) -> Job:
    """``plan`` of a composed config; ``overrides`` only say how the settings of this machine were chosen."""
    config, trusted = validate(raw), (*TRUSTED, *trust)
    require_vectors(config)
    require_teacher(config, trusted)
    require_start(config)
    require_packages_of(config)
    if title:
        refuse_single_run(config.logger)
    for section in ("model", "loss", "references"):
        require_trusted(getattr(config, section), trusted, section)
    require_trusted(config.callbacks, (*trusted, CALLBACKS), "callbacks")
    if folder is None:
        model, digest = config.model.get("name", "model"), identify(asdict(config)).settings_hash
        folder = Path(config.runs_dir) / config.name / f"{model}-s{config.seed}-{digest[:8]}"
    options = own_options(trust, config_dir)
    return Job(config, raw, Path(folder), if_exists, trusted, options, machine_overrides(overrides), title)


def _repeated(source: Path, overrides: Sequence[str], config_dir: str | None, **options: Any) -> dict:
    """The config of a run folder, a record or a file of settings, with ``overrides``."""
    from qa_arch.config.compose import merge
    from qa_arch.results.publish import local

    path = next((path for path in (source / CONFIG, source / RECORD) if path.is_file()), source)
    if not path.is_file():
        raise RunError(f"{source}: no such config; give a run folder, a {CONFIG} or a record's {RECORD}")
    recorded = local(read_trained(path).config) if path.name == RECORD else None  # paths of $QA_ARCH_DATA
    return merge(path, overrides, config_dir, recorded=recorded, **options)


def check(jobs: Sequence[Job], *, missing: list[QaArchError] | None = None) -> None:
    """Raise an error for anything that would stop a job, with the cheap checks of all jobs first.

    With a list ``missing``, as in a dry run, faults of this machine and of run folders are appended to it;
    all others are raised.
    """
    launch = launched()
    if launch is None or not launch.rank:  # other ranks may look when rank 0 has begun in the folder
        for job in jobs:
            with collecting(missing):
                require_usable(job)
    require_runnable([job for job in jobs if not job.is_done], missing=missing)


def require_runnable(
    jobs: Sequence[Job], *, here: bool = True, missing: list[QaArchError] | None = None
) -> None:
    """``check`` of everything but the folders; jobs that are not trained ``here`` are spared the checks of
    files, hub and devices."""
    if here:
        with collecting(missing):
            for job in jobs:
                with named(job.title):
                    require_files(job.config)
            require_hub([job.config for job in jobs])
    with gc_disabled():  # import what trains at once, after the checks that need no torch
        from qa_arch.models.store import check_encoder
        from qa_arch.training.fit import require_machine
    for job in jobs:
        with named(job.title):
            check_components(job.config, job.trusted)
    if not here:
        return
    for job in jobs:
        with collecting(missing), named(job.title):
            require_machine(job.config)
            check_encoder(job.config)
    if missing is None:  # a dry run downloads nothing
        for job in jobs:
            if job.config.glove.use:
                fetch(job.config.glove)


@contextmanager
def collecting(missing: list[QaArchError] | None) -> Iterator[None]:
    """Append an error in the block to ``missing``, unless that is None."""
    try:
        yield
    except QaArchError as error:
        if missing is None:
            raise
        missing.append(error)


def check_components(config: Config, trusted: Sequence[str] = TRUSTED) -> None:
    """Raise ConfigError for the first of model, loss, loggers, callbacks and heuristics that cannot be built.

    Reads no data and loads no weights.
    """
    from qa_arch.evaluation import load_references
    from qa_arch.models.store import check_model
    from qa_arch.nn.losses import build_loss
    from qa_arch.training.fit import build_callbacks
    from qa_arch.training.loggers import check_loggers

    recipe = recipe_of(config.model)
    if recipe is not None:
        recipe.load().check(config, trusted)
    else:
        check_model(config.model, trusted, with_vectors=config.glove.use)
        build_loss(config, trusted)
        load_references(config, trusted)
    check_loggers(config.logger, trusted)
    build_callbacks(config, trusted)
    for change in changes_of(config).values():
        change.check(config)


def require_usable(job: Job) -> None:
    """Raise RunError if the job's folder would be overwritten, belongs to another config, has what the run is
    to read, or is to be replaced and has other runs or exports below it."""
    folder = job.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder}: is a file; choose another --folder")
    # A run that was killed before its config was written may start over.
    if all(path.name == LOCK or is_unfinished(path) for path in folder.iterdir()):
        return
    config = read_yaml(folder / CONFIG) if (folder / CONFIG).is_file() else None
    if not (isinstance(config, dict) and {"model", "trainer"} <= config.keys()):
        raise RunError(f"{folder}: is not a run (it has no {CONFIG} of one); choose another --folder")
    _require_apart(job)
    if job.if_exists == "replace":
        require_alone(folder)
    if job.if_exists == "fail":
        status = _status(folder)
        state = "is finished;" if status == "ok" else "already exists; --if-exists resume continues it,"
        if status == "failed" and not any(folder.glob(f"*{CHECKPOINT}")):  # perhaps by a setting
            state = "failed before its first checkpoint;"
        raise RunError(f"{folder}: {state} --if-exists replace trains it from the beginning")
    if job.if_exists == "resume" and (folder / RECORD).is_file():
        record = read_record(folder)
        started = validate(record.config)  # adds defaults of new settings
        # Where the inputs lie does not matter: their content is compared when they have been read.
        read = {} if record.encoder is None else {ENCODER: record.encoder.run_hash}
        if identify(asdict(started), read).run_hash != identify(asdict(job.config), read).run_hash:
            # Rows given from Python are not found by --config-from: their own error says what to do.
            for setting, source in started.data.opened.items():
                if not sources.recorded_format(source).typed:
                    sources.require_present(source, setting)
            word = shlex.quote(str(folder))
            raise RunError(f"{folder}: was started with another config; resume with --config-from {word}")
        lost = lost_logger(record.config, asdict(job.config), job.machine)
        if lost and record.status != "ok":
            raise RunError(f"{folder}: {lost}")


def _require_apart(job: Job) -> None:
    """Raise RunError for the first thing in the job's folder that the run would read: a run changes its
    folder, and could not read it again when it is resumed or on other ranks."""
    config, own = job.config, job.folder.resolve()
    which = "name" if config.encoder.init == "pretrained" else "tokenizer"
    places: dict[str, Sequence[str]] = {
        "init_from": as_list(config.init_from or ()),
        "distillation.teacher": config.distillation.teachers,
        "glove.path": as_list(config.glove.source or ()) if config.glove.use and not config.init_from else (),
    }
    for setting, source in replace(config.data, open_dev=True).opened.items():  # a closed set is opened later
        # Of any scheme, also those of a recipe: its path is one of the parts, or has colons itself.
        places[setting] = [part for item in as_list(source) for part in (item, *item.split(":")) if part]
    with suppress(QaArchError):  # reported where the encoder is checked
        places[f"encoder.{which}"] = _encoders(config)
    for setting, names in places.items():
        for name in names:
            path = user_path(name)
            if path.resolve().is_relative_to(own) and (path.exists() or has_magic(name)):
                raise RunError(
                    f"{job.folder}: {setting}: {name} belongs to the run folder itself; choose another"
                    " --folder"
                )


def require_alone(folder: Path) -> None:
    """Raise RunError for the first run or checkpoint, such as an export, below a run folder, which would be
    deleted with the run."""
    for path in sorted(folder.glob("*/**/")):
        top = folder / path.relative_to(folder).parts[0]
        if top.name in (MODEL, WANDB) or is_unfinished(top) or top.is_symlink():  # whose target stays
            continue
        if (path / RECORD).is_file() or names_checkpoint(path):
            raise RunError(f"{folder}: {path} would be deleted with the run; move it elsewhere first")


def train(job: Job, *, log_errors: bool = False) -> RunRecord:
    """Train a checked job and return its record; with ``log_errors`` log a failure instead of raising it."""
    begun = now()
    try:
        with hold(job.folder, "run"):
            return _train_locked(job)
    except Exception as error:
        if not log_errors:
            raise
        log.error("%s: failed (%s: %s)", job.folder, type(error).__name__, error)
        with suppress(QaArchError):
            record = read_record(job.folder)
            if record.created >= begun:  # else that of an earlier attempt, if any
                return record
        return new_record(asdict(job.config), status="failed", error=one_line(error))


def _train_locked(job: Job) -> RunRecord:
    """Train in the locked folder of the job, unless it is done."""
    require_usable(job)  # again: another process may have used the folder since it was checked
    if job.is_done:
        record = read_record(job.folder)
        _require_same_inputs(job, record)
        log.info("%s: already finished, nothing to do", job.folder)
        return record
    from qa_arch.config.compose import to_yaml
    from qa_arch.training import run

    def take_over() -> None:
        if job.if_exists == "replace":
            clear_run(job.folder, keep=(LOCK, CONFIG))  # a folder without config would not pass for a run
        write_atomic(job.folder / CONFIG, to_yaml(job.raw))

    # A run in the folder is replaced only once the new one has read its inputs (``run.train``).
    postponed = job.if_exists == "replace" and (job.folder / CONFIG).is_file()
    if not postponed:
        take_over()
    log.info("run: %s", job.folder)
    return run.train(
        job.config,
        folder=job.folder,
        resume=job.if_exists == "resume",
        trusted=job.trusted,
        options=[*job.options, *job.machine],
        take_over=take_over if postponed else None,
    )


def follow(job: Job) -> None:
    """Train as one of the processes that torchrun or srun started, of which rank 0 records the run."""
    if not job.is_done:
        from qa_arch.training.ranks import train_rank

        train_rank(job.config, job.folder, resume=job.if_exists == "resume", trusted=job.trusted)


def _require_same_inputs(job: Job, record: RunRecord) -> None:
    """Raise RunError if a file that the finished run read has changed; only warn if it is not here."""
    try:
        require_files(job.config)
        require_hub([job.config])
    except QaArchError as error:
        log.warning("%s: finished; what it read is not here to be compared (%s)", job.folder, error)
        return
    from qa_arch.training.inputs import require_same_inputs

    require_same_inputs(job.folder, job.config, record)


def finished(folder: Path) -> bool:
    """Whether the folder contains a run that finished successfully."""
    return _status(folder) == "ok"


def _status(folder: Path) -> Status | None:
    """Status of the run in the folder; None before its first record."""
    return read_record(folder).status if (folder / RECORD).is_file() else None


def require_files(config: Config) -> None:
    """Raise an error for the first that is missing: data, word vectors, a local encoder, a classifier's run.

    DataError for data and vectors, and for data that does not fit the model's task, UnavailableError for
    vectors of a package that is not installed, ConfigError for the encoder, RunError for the run.
    """
    from qa_arch.nn.encoder_configs import resolve

    recipe = recipe_of(config.model)
    if recipe is not None:
        import_module(recipe.data).require_files(config)
    else:
        sources.require_passages(config.data.train, "data.train")  # which another model could read
        for setting, source in config.data.opened.items():
            sources.require_present(source, setting)
    if config.init_from:  # has encoder and vectors
        return
    path = config.glove.source if config.glove.use else None
    if path and packaged_files(path) is None:
        if Path(path).exists():
            from qa_arch.features.vectors import check_vectors

            check_vectors(config.glove)
        elif not config.glove.name:  # which are downloaded after all other checks
            raise DataError(f"glove.path: {path} does not exist; check the path, or set glove=none")
    name = str(config.encoder.name if config.encoder.init == "pretrained" else "")
    # A hub id has at most one slash.
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    if is_path and not Path(resolve(name)).is_dir():
        raise ConfigError(f"encoder.name: {name} is not a folder; give one with a config.json and weights")


def _encoders(config: Config) -> list[str]:
    """Folder or hub id of the encoder, or of the tokenizer of a random one, that the run reads, if any."""
    from qa_arch.nn.encoder_configs import resolve

    encoder = config.encoder
    name = encoder.name if encoder.init == "pretrained" else encoder.tokenizer
    reads_none = name is None or config.init_from or not config.has_encoder
    return [] if reads_none else [resolve(str(name))]


def require_hub(configs: Sequence[Config]) -> None:
    """Raise UnavailableError for encoders and data sets that are neither local, cached nor on the hub.

    The hub is asked once whether it answers, and once for each that is not cached. If it does not answer but
    everything is cached, its clients are switched to offline mode: they would retry for a minute.
    """
    from qa_arch.nn.encoder_configs import WITHOUT_HUB

    needed: dict[tuple[hub.Kind, str, str | None], bool] = {}
    for config in configs:
        teachers = [place for place in config.distillation.teachers if names_checkpoint(place)]
        for source in (*_encoders(config), *teachers):
            if not Path(source).is_dir():
                repository, version = hub.split_revision(source)
                needed["models", repository, version] = hub.cached("models", repository, version)
        for part in (part for source in config.data.opened.values() for part in as_list(source)):
            match = re.search(r"(?:^|:)hub:(.+)", part)  # also within squad:
            if match and not Path((data_set := split_source(match[1]))[0]).is_dir():
                repository, version = data_set[0], data_set[1] or None
                needed["datasets", repository, version] = hub.cached("datasets", repository, version)
    problem = hub.state() if needed else ""
    absent = [key for key, is_cached in needed.items() if not is_cached]
    if problem and absent:
        missing = ", ".join(name for _, name, _ in absent)
        raise UnavailableError(
            f"{missing}: no such folder, not downloaded before, and {problem}. Download once while online, or"
            " train from files: data=files data.train=FILE data.dev=FILE encoder.name=FOLDER (for"
            f" encoder=minilm: {WITHOUT_HUB['minilm']}; data=demo needs no download)"
        )
    if faults := list(filter(None, (hub.missing(*key) for key in absent))):
        raise UnavailableError("; ".join(faults))
    if problem and not hub.offline():
        log.info("%s: reading %s from the cache", problem, ", ".join(name for _, name, _ in needed))
        hub.go_offline()
