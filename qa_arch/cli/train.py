"""``qa-arch train``: compose a config, check it, train, and print the results."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qa_arch.cli.jobs import CONFIG, Job, check_jobs, finished, plan_job, require_usable, train_job
from qa_arch.cli.runs import add_config_dir, add_trust, use_config_dir
from qa_arch.config.files import write_json
from qa_arch.config.launched import Launched, launched
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError, RunError
from qa_arch.results.record import RECORD, read_record
from qa_arch.system.garbage import gc_disabled

log = logging.getLogger(__name__)
CONTENDERS = ("albert", "roberta", "distilbert", "bert", "proposed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch train model=proposed experiment=squad2 glove.path=glove.840B.300d.txt"
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as Hydra takes them")
    add(
        "-m",
        "--multirun",
        action="store_true",
        help="train every point of a grid such as seed=1,2,3, each in its own processes (see: sweep)",
    )
    add(
        "--models",
        metavar="A,B,...",
        help=f"train several models and compare them; 'all' is {','.join(CONTENDERS)}",
    )
    add("--config-from", metavar="RUN", help="repeat the config of a run or a record (overrides still apply)")
    add(
        "--if-exists",
        choices=("fail", "replace", "resume"),
        default="fail",
        help="if the run folder exists (default: fail); resume continues an unfinished run of this config,"
        " starts a new one if there is none, and does nothing if it is finished",
    )
    add("--resume", dest="if_exists", action="store_const", const="resume", help="--if-exists resume")
    add("--folder", metavar="DIR", help="the run folder (default: RUNS_DIR/NAME/MODEL-sSEED-HASH)")
    add_config_dir(parser)
    add_trust(parser)
    add("-c", "--cfg", choices=("job", "hydra", "all"), help="print the config, unchecked, and end")
    add(
        "-i",
        "--info",
        nargs="?",
        const="all",
        choices=("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        help="print where Hydra takes the config from, and end (qa-arch list shows what there is)",
    )
    add("--dry-run", action="store_true", help="run all checks that load no weights, print the config")


def run(args: argparse.Namespace) -> int:
    """Train the requested runs; exit code 1 if a run failed."""
    if args.cfg or args.info:
        return _show_config(args)
    launch = launched()
    if args.multirun and launch is not None:
        raise ConfigError("torchrun and srun start the processes of one run; -m asks for several")
    if args.multirun:
        return _sweep(args)
    use_config_dir(args.config_dir, args.trust)
    trusted = (*TRUSTED, *args.trust)
    jobs = _plan(args, launch)
    check_jobs(jobs, args.if_exists, trusted, dry=args.dry_run)
    if args.dry_run:
        return _dry_run(jobs)
    if launch is not None and launch.rank:
        return _follow(jobs[0], args.if_exists, trusted)
    for job in jobs:
        require_usable(job, args.if_exists)
    compared = len(jobs) > 1
    statuses = [train_job(job, args.if_exists, trusted, go_on=compared and not args.debug) for job in jobs]
    _show([job.folder for job in jobs], compared=bool(args.models))
    return 0 if all(status == "ok" for status in statuses) else 1


def _dry_run(jobs: Sequence[Job]) -> int:
    """Print the configs, and warn of word vectors that are not there yet."""
    from qa_arch.cli.compose import to_yaml
    from qa_arch.features.packaged_vectors import PACKAGES

    used = dict.fromkeys(job.config.glove.path for job in jobs if job.config.glove.use)
    for path in used:
        if path and path not in PACKAGES and not Path(path).exists():
            log.warning("glove.path: %s does not exist yet; the run will read it", path)
    print("---\n".join(to_yaml(job.raw) for job in jobs), end="")
    return 0


def _show_config(args: argparse.Namespace) -> int:
    """Print the config of a single run as Hydra does, or where it comes from."""
    from qa_arch.cli.compose import show

    option = "--cfg" if args.cfg else "--info"
    for other in ("multirun", "models", "config_from", "dry_run"):
        if getattr(args, other):
            raise ConfigError(
                f"{option} shows the config of one run; --{other.replace('_', '-')} does not go with it"
            )
    show(args.overrides, args.config_dir, cfg=args.cfg, info=args.info)
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from qa_arch.cli.sweep import dry_run, multirun

    for option in ("models", "config_from", "folder"):
        if getattr(args, option):
            named = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{named} does not go with -m; a sweep takes model=A,B and sweep.folder=DIR")
    if args.if_exists == "replace":
        raise ConfigError("--if-exists replace: a sweep keeps its results; give another sweep.folder=DIR")
    return (dry_run if args.dry_run else multirun)(args.overrides, args.trust, args.config_dir)


def _plan(args: argparse.Namespace, launch: Launched | None) -> list[Job]:
    """The jobs in order, all validated before a model is imported or trained."""
    if args.models and (args.folder or args.config_from):
        option = "--folder" if args.folder else "--config-from"
        raise ConfigError(f"{option} means one run; it does not go with --models")
    names: list[str | None] = [None]
    if args.models:
        named = (name.strip() for name in args.models.split(","))
        names = list(CONTENDERS) if args.models == "all" else [name for name in named if name]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"--models {args.models}: name each model once")
    if launch is not None and len(names) > 1:
        raise ConfigError("torchrun and srun start the processes of one run; --models asks for several")
    jobs = []
    for name in names:
        raw = _settings(args, name)
        if launch is not None:
            _take_devices(raw, launch)
        jobs.append(plan_job(raw, args.folder))
    return jobs


def _settings(args: argparse.Namespace, model: str | None) -> dict[str, Any]:
    from qa_arch.cli.compose import compose, merge

    if not args.config_from:
        return compose([*args.overrides, *([f"model={model}"] if model else [])], args.config_dir)
    source = Path(args.config_from)
    path = next((path for path in (source / CONFIG, source / RECORD) if path.is_file()), source)
    if not path.is_file():
        raise RunError(f"{source}: no such config; give a run folder, a {CONFIG} or a record's {RECORD}")
    return merge(path, args.overrides)


def _take_devices(raw: dict[str, Any], launch: Launched) -> None:
    """Set ``trainer.devices`` to the number of started processes."""
    devices = raw["trainer"]["devices"]
    if devices not in (1, "auto", launch.world):
        raise ConfigError(
            f"trainer.devices={devices}, but {launch.world} processes were started; leave it out"
        )
    raw["trainer"]["devices"] = launch.world


def _follow(job: Job, if_exists: str, trusted: Sequence[str]) -> int:
    """Take part in a run that rank 0 checks, records and scores."""
    if if_exists == "resume" and finished(job.folder):
        return 0
    logging.getLogger("qa_arch").setLevel(logging.WARNING)
    with gc_disabled():
        from qa_arch.training.ranks import follow

    follow(job.config, job.folder, resume=if_exists == "resume", trusted=trusted)
    return 0


def _show(folders: Sequence[Path], *, compared: bool) -> None:
    from qa_arch.cli.next_steps import next_steps
    from qa_arch.results.comparison import comparison
    from qa_arch.results.render import print_table

    table = comparison([(folder, read_record(folder)) for folder in folders])
    print_table(table)
    if not compared:
        print(f"record: {folders[0] / RECORD}")
    else:
        path = write_json(folders[0].parent / "table.json", table.as_dict())
        print(f"records: {folders[0].parent}/*/{RECORD}; this table: {path}")
    for number, command in enumerate(next_steps(folders)):
        print(f"{'' if number else 'next:':<8}{command}")
