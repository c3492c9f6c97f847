"""``qa-arch train``: compose and check a config, train, print the results; ``params`` counts parameters."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

from qa_arch.cli.runs import (
    add_options,
    print_next_steps,
    refuse_options,
    report_missing,
    require_files,
    require_hub,
    use_config_dir,
)
from qa_arch.config.extras import require_extras
from qa_arch.config.files import is_unfinished, read_yaml, write_atomic, write_json
from qa_arch.config.launched import Launched, launched
from qa_arch.config.machine import lost_logger, machine_overrides
from qa_arch.config.schema import Config, require_trainable, require_vectors, validate
from qa_arch.config.target import TRUSTED, own_options, require_trusted
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.models.teacher_files import require_teacher
from qa_arch.provenance import ENCODER, identify
from qa_arch.records import RECORD, RunRecord, Runs, clear_run, read_record
from qa_arch.system.garbage import gc_disabled
from qa_arch.system.lock import LOCK, hold

log = logging.getLogger(__name__)
ALL_MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")
CONFIG = "config.yaml"
IfExists = Literal["fail", "replace", "resume"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch train model=proposed experiment=squad2 glove.path=glove.840B.300d.txt"
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings in Hydra's syntax (see: qa-arch list)")
    grid = "train every point of a grid such as seed=1,2,3, each in its own processes (see: sweep)"
    add("-m", "--multirun", action="store_true", help=grid)
    models = f"train several models and compare them; 'all' is {','.join(ALL_MODELS)}"
    add("--models", metavar="A,B,...", help=models)
    config_from = "repeat the config of a run or a record, but for logger and folders (overrides still apply)"
    add("--config-from", metavar="RUN", help=config_from)
    if_exists = (
        "what to do if the run folder exists (default: fail); resume continues an unfinished run of this"
        " config, starts a new one if there is none, and does nothing if it is finished"
    )
    add("--machine", type=json.loads, help=argparse.SUPPRESS)  # of a sweep's point, as the sweep composed it
    add("--if-exists", choices=get_args(IfExists), default="fail", help=if_exists)
    resume = "the same as --if-exists resume"
    add("--resume", dest="if_exists", action="store_const", const="resume", help=resume)
    add("--folder", metavar="DIR", help="run folder (default: RUNS_DIR/NAME/MODEL-sSEED-HASH)")
    add_options(parser, "--config-dir", "--trust")
    dry = (
        "run all checks that load no weights and print the config; the last lines name what this machine"
        " lacks, and the exit code is that of training"
    )
    add("--dry-run", action="store_true", help=dry)


def run(args: argparse.Namespace) -> int:
    """Train the requested runs; exit code 1 if a run failed."""
    launch = launched()
    if launch is not None and (args.multirun or args.models):
        option = "-m" if args.multirun else "--models"
        raise ConfigError(f"torchrun and srun start the processes of one run; {option} asks for several")
    if args.multirun:
        from qa_arch.cli.sweep import multirun

        reason = "cannot be combined with -m; a sweep takes model=A,B and sweep.folder=DIR"
        refuse_options(args, ("models", "config_from", "folder"), reason)
        if args.if_exists == "replace":
            raise ConfigError("--if-exists replace: a sweep keeps its results; give another sweep.folder=DIR")
        return multirun(args.overrides, args.trust, args.config_dir, dry=args.dry_run)
    use_config_dir(args.config_dir, args.trust)
    trusted = (*TRUSTED, *args.trust)
    jobs = _plan(args, launch, trusted)
    first_rank = launch is None or not launch.rank  # only this process checks, records and scores the run
    for job in jobs if first_rank and not args.dry_run else ():
        require_usable(job, args.if_exists)
    missing: list[QaArchError] | None = [] if args.dry_run else None
    check_jobs(jobs, args.if_exists, trusted, missing=missing)
    if missing is not None:
        from qa_arch.cli.compose import to_yaml

        print("---\n".join(to_yaml(job.raw) for job in jobs), end="", flush=True)
        for job in jobs:
            log.info("%s: %s", job.folder, _brief(job.config))
        _warn_of_max_steps(jobs[0].config, args.overrides)
        return report_missing(missing)
    _warn_of_max_steps(jobs[0].config, args.overrides)
    if not first_rank:
        if args.if_exists != "resume" or not finished(jobs[0].folder):
            from qa_arch.training.ranks import train_rank

            logging.getLogger("qa_arch").setLevel(logging.WARNING)
            train_rank(jobs[0].config, jobs[0].folder, resume=args.if_exists == "resume", trusted=trusted)
        return 0
    log_errors, options = len(jobs) > 1 and not args.debug, own_options(args.trust, args.config_dir)
    runs = [
        (job.folder, train_job(job, args.if_exists, trusted, options, log_errors=log_errors)) for job in jobs
    ]
    _print_results(runs, options, compared=bool(args.models))
    return 0 if all(record.status == "ok" for _, record in runs) else 1


def _plan(args: argparse.Namespace, launch: Launched | None, trusted: Sequence[str]) -> list[Job]:
    """Jobs in order, all validated before a model is imported or trained."""
    from qa_arch.cli.compose import compose, merge

    if args.models and (args.folder or args.config_from):
        option = "--folder" if args.folder else "--config-from"
        raise ConfigError(f"{option} is for one run and cannot be combined with --models")
    if args.config_from:
        source = Path(args.config_from)
        path = next((path for path in (source / CONFIG, source / RECORD) if path.is_file()), source)
        if not path.is_file():
            raise RunError(f"{source}: no such config; give a run folder, a {CONFIG} or a record's {RECORD}")
        resumes = args.if_exists == "resume" and not (args.folder and finished(Path(args.folder)))
        options = {"machine": args.machine, "resumes": resumes}
        composed = [merge(path, args.overrides, args.config_dir, **options)]
    elif args.models:
        names = ALL_MODELS if args.models == "all" else [name.strip() for name in args.models.split(",")]
        if not all(names) or len(set(names)) < len(names):
            raise ConfigError(f"--models {args.models}: name each model once")
        composed = [compose([*args.overrides, f"model={name}"], args.config_dir) for name in names]
    else:
        composed = [compose(args.overrides, args.config_dir)]
    if launch is not None:
        trainer = composed[0]["trainer"]
        if trainer["devices"] not in (1, "auto", launch.world):
            raise ConfigError(
                f"trainer.devices={trainer['devices']}, but {launch.world} processes were started; leave it"
                " out"
            )
        trainer["devices"] = launch.world
    return [plan_job(raw, args.folder, trusted, args.overrides) for raw in composed]


def _warn_of_max_steps(config: Config, overrides: Sequence[str]) -> None:
    trainer = config.trainer
    if trainer.max_steps > 0 and any(word.startswith("trainer.epochs=") for word in overrides):
        log.warning(
            "trainer.max_steps=%d may end training before epoch %d; trainer.max_steps=-1 sets no limit",
            trainer.max_steps,
            trainer.epochs,
        )


def _brief(config: Config) -> str:
    """The settings to look at before a run starts."""
    trainer, data = config.trainer, config.data
    return (
        f"{config.model.get('name')} on {config.encoder.title}, {data.train} to {data.dev}, {trainer.epochs}"
        f" epoch{'s' * (trainer.epochs != 1)} of batch {trainer.batch_size} x {trainer.accumulate},"
        f" optim.lr={config.optim.lr}"
    )


def _print_results(runs: Runs, options: Sequence[str], *, compared: bool) -> None:
    """Print the table of the runs, the paths of their records, and the next commands."""
    from qa_arch.results.columns import comparison
    from qa_arch.results.tables import print_table

    table, first = comparison(runs), runs[0][0]
    print_table(table)
    if compared:
        path = write_json(first.parent / "table.json", table.as_dict())
        print(f"records: {first.parent}/*/{RECORD}; this table: {path}")
    else:
        print(f"record: {first / RECORD}")
    print_next_steps(runs, options)


@dataclass(frozen=True)
class Job:
    """A run to train: its validated config, the raw config to save, its folder, and how it chose the settings
    that belong to this machine."""

    config: Config
    raw: dict[str, Any]
    folder: Path
    machine: Sequence[str] = ()


def plan_job(
    raw: dict[str, Any],
    folder: str | PathLike[str] | None = None,
    trusted: Sequence[str] = TRUSTED,
    overrides: Sequence[str] = (),
) -> Job:
    """Validate a composed config and make it a job; nothing is imported or read for it."""
    config = validate(raw)
    require_trainable(config)
    require_vectors(config)
    require_teacher(config)
    require_extras(config)
    for section in ("model", "loss", "references"):
        require_trusted(getattr(config, section), trusted, section)
    if folder is None:
        model, digest = config.model.get("name", "model"), identify(asdict(config)).settings_hash
        folder = Path(config.runs_dir) / config.name / f"{model}-s{config.seed}-{digest[:8]}"
    return Job(config, raw, Path(folder), machine_overrides(overrides))


def check_jobs(
    jobs: Sequence[Job],
    if_exists: IfExists,
    trusted: Sequence[str],
    *,
    missing: list[QaArchError] | None = None,
) -> None:
    """Raise an error for anything that would stop a job, with the cheap checks of all jobs first.

    With a list ``missing`` nothing will be trained here, and it receives what only this machine lacks.
    """
    to_train = [job.config for job in jobs if not (if_exists == "resume" and finished(job.folder))]
    with _collecting(missing):
        for config in to_train:
            require_files(config)
        require_hub(to_train)
    with gc_disabled():  # import everything for training at once, after the checks that need no torch
        from qa_arch.models.build import check_encoder
        from qa_arch.training import devices
        from qa_arch.training.run import check_components

    for job in jobs:
        check_components(job.config, trusted)
    for config in to_train:
        with _collecting(missing):
            devices.require(config.trainer)
            check_encoder(config)


@contextmanager
def _collecting(missing: list[QaArchError] | None) -> Iterator[None]:
    """Append an error in the block to ``missing``, unless that is None."""
    try:
        yield
    except QaArchError as error:
        if missing is None:
            raise
        missing.append(error)


def require_usable(job: Job, if_exists: IfExists) -> None:
    """Raise RunError if the job's folder would be overwritten or belongs to another config."""
    folder = job.folder
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunError(f"{folder}: is a file; choose another --folder")
    if all(path.name == LOCK or is_unfinished(path) for path in folder.iterdir()):
        return
    config = read_yaml(folder / CONFIG) if (folder / CONFIG).is_file() else None
    if not (isinstance(config, dict) and {"model", "trainer"} <= config.keys()):
        raise RunError(f"{folder}: is not a run (it has no {CONFIG} of one); choose another --folder")
    if if_exists == "fail":
        state = "is finished;" if finished(folder) else "already exists; --if-exists resume continues it,"
        raise RunError(f"{folder}: {state} --if-exists replace trains it from the beginning")
    if if_exists == "resume" and (folder / RECORD).is_file():
        record = read_record(folder)
        started = validate(record.config)  # adds defaults of new settings
        # Where the inputs lie does not matter: their content is compared when they have been read.
        read = {} if record.encoder is None else {ENCODER: record.encoder.run_hash}
        if identify(asdict(started), read).run_hash != identify(asdict(job.config), read).run_hash:
            word = shlex.quote(str(folder))
            raise RunError(f"{folder}: was started with another config; resume with --config-from {word}")
        lost = lost_logger(record.config, asdict(job.config), job.machine)
        if lost and record.status != "ok":
            raise RunError(f"{folder}: {lost}")


def train_job(
    job: Job,
    if_exists: IfExists,
    trusted: Sequence[str],
    options: Sequence[str] = (),
    *,
    log_errors: bool = False,
) -> RunRecord:
    """Train and return the record; with ``log_errors`` log a failure instead of raising it.

    ``options`` are those needed to load the run, which the command that resumes it repeats.
    """
    require_usable(job, if_exists)  # before the folder is created and locked
    with hold(job.folder, "run"):
        require_usable(job, if_exists)  # again: another process may have used the folder meanwhile
        if if_exists == "resume" and finished(job.folder):
            record = read_record(job.folder)
            _require_same_inputs(job, record)
            log.info("%s: already finished, nothing to do", job.folder)
            return record
        from qa_arch.cli.compose import to_yaml
        from qa_arch.training.run import train as train_run

        if if_exists == "replace":
            clear_run(job.folder, keep=(LOCK, CONFIG))  # a folder without config would not pass for a run
        write_atomic(job.folder / CONFIG, to_yaml(job.raw))
        log.info("run: %s", job.folder)
        try:
            resume = if_exists == "resume"
            repeated = [*options, *job.machine]
            return train_run(job.config, folder=job.folder, resume=resume, trusted=trusted, options=repeated)
        except Exception as error:
            if not log_errors:
                raise
            log.error("%s: failed (%s: %s)", job.folder, type(error).__name__, error)
            return read_record(job.folder)


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
    return (folder / RECORD).is_file() and read_record(folder).status == "ok"


def add_params_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch params model=proposed model.hidden=300 glove=none --json"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for train")
    counts = "print one JSON object: total, trainable, blocks, word_vectors"
    parser.add_argument("--json", action="store_true", help=counts)
    add_options(parser, "--config-dir", "--trust")


def run_params(args: argparse.Namespace) -> int:
    """Print parameter counts; fixed word vectors are not parameters and are listed separately."""
    from qa_arch.cli.compose import compose

    trusted = (*TRUSTED, *args.trust)
    config = validate(compose(args.overrides, use_config_dir(args.config_dir, args.trust)))
    require_trusted(config.model, trusted, "model")
    from qa_arch.tasks import task_of

    counts = asdict(task_of(config.model).count_parameters(config, trusted))
    del counts["nonzero"]  # meaningful only for pruned runs
    if args.json:
        print(json.dumps(counts, indent=2))
        return 0
    from qa_arch.results.columns import select_columns
    from qa_arch.results.tables import Table, print_table, text

    rows = [{"model": name, "parameters": n} for name, n in counts["blocks"].items()]
    rows += [{"model": name, "parameters": counts[name]} for name in ("total", "trainable", "word_vectors")]
    title = f"{config.model.get('name')} on {config.encoder.title}"
    print_table(Table(title, [text("model", "block"), *select_columns(["parameters"])], rows))
    return 0
