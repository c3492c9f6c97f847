"""``qa-arch train``: plan and check the requested runs, train them, print the results; ``params`` counts
parameters."""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import get_args

from qa_arch.cli.runs import add_options, print_next_steps, refuse_options, report_missing
from qa_arch.config.check import key_of, refuse_repeated
from qa_arch.config.find import use_config_dir
from qa_arch.config.machine import refuse_single_run
from qa_arch.config.schema import Config, recipe_of, refuse_without_effect, validate
from qa_arch.config.target import TRUSTED, require_trusted
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.files import write_json
from qa_arch.process import launched
from qa_arch.records import RECORD, RunRecord
from qa_arch.terminal import counted
from qa_arch.training import jobs
from qa_arch.training.jobs import IfExists, Job

log = logging.getLogger(__name__)
ALL_MODELS = ("albert", "roberta", "distilbert", "bert", "proposed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch train model=proposed experiment=squad2 glove.name=840B.300d"
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
    add("--if-exists", choices=get_args(IfExists), help=if_exists)
    resume = "the same as --if-exists resume"
    add("--resume", dest="if_exists", action="store_const", const="resume", help=resume)
    add("--folder", metavar="DIR", help="run folder (default: RUNS_DIR/NAME/MODEL-sSEED-HASH)")
    add_options(parser, "--config-dir", "--trust")
    dry = (
        "run all checks that read no data and load no weights, and print the config; the last lines are the"
        " settings that matter and why training would fail here, and the exit code is that of training"
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
        if args.if_exists in ("replace", "fail"):
            remedy = "a sweep keeps its results and continues; give another sweep.folder=DIR"
            raise ConfigError(f"--if-exists {args.if_exists}: {remedy}")
        return multirun(args.overrides, args.trust, args.config_dir, dry=args.dry_run)
    planned = _plan(args)
    refuse_without_effect(args.overrides, [job.config for job in planned])
    if args.dry_run:
        return _dry_run(planned, args.overrides)
    jobs.check(planned)
    _warn_of_max_steps(planned, args.overrides)
    if launch is not None and launch.rank:
        logging.getLogger("qa_arch").setLevel(logging.WARNING)
        jobs.follow(planned[0])
        return 0
    log_errors = len(planned) > 1 and not args.debug  # one that fails does not stop the others
    records = [jobs.train(job, log_errors=log_errors) for job in planned]
    _print_results(planned, records, compared=bool(args.models))
    return 0 if all(record.status == "ok" for record in records) else 1


def _dry_run(planned: Sequence[Job], overrides: Sequence[str]) -> int:
    """Check the jobs, and print their configs and what would stop them on this machine; the exit code is that
    of training."""
    from qa_arch.config.compose import to_yaml

    missing: list[QaArchError] = []
    jobs.check(planned, missing=missing)
    print("---\n".join(to_yaml(job.raw) for job in planned), end="", flush=True)  # before the log
    for job in planned:
        log.info("%s: %s", job.folder, _brief(job.config))
    _warn_of_max_steps(planned, overrides)
    return report_missing(missing)


def _warn_of_max_steps(planned: Sequence[Job], overrides: Sequence[str]) -> None:
    trainer = planned[0].config.trainer
    if trainer.max_steps > 0 and trainer.epochs and "trainer.epochs" in map(key_of, overrides):
        log.warning(
            "trainer.max_steps=%d may end training before epoch %d; trainer.max_steps=-1 sets no limit",
            trainer.max_steps,
            trainer.epochs,
        )


def _plan(args: argparse.Namespace) -> list[Job]:
    """The jobs, in order."""
    options = {"if_exists": args.if_exists or "fail", "config_dir": args.config_dir, "trust": args.trust}
    if not args.models:
        options |= {"config_from": args.config_from, "folder": args.folder, "machine": args.machine}
        return [jobs.plan(args.overrides, **options)]
    if args.folder or args.config_from:
        option = "--folder" if args.folder else "--config-from"
        raise ConfigError(f"{option} is for one run and cannot be combined with --models")
    names = ALL_MODELS if args.models == "all" else [name.strip() for name in args.models.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ConfigError(f"--models {args.models}: name each model once")
    refuse_repeated([*args.overrides, f"model={names[0]}"])
    planned = [jobs.plan([*args.overrides, f"model={name}"], **options) for name in names]
    if len(planned) > 1:
        os.environ.pop("WANDB_RUN_ID", None)  # as of the points of a sweep
        for job in planned:
            refuse_single_run(job.config.logger)
    return planned


def _brief(config: Config) -> str:
    """The settings to look at before a run starts."""
    trainer, data, optim = config.trainer, config.data, config.optim
    articles, share = data.hold_out_articles, data.hold_out_share
    held_out = f"{share:.0%} of the training questions" if share else "nothing"
    if articles:
        held_out = counted(articles, "training article")
    return (
        f"{config.title}, {data.train} to {data.dev or 'no dev set'},"
        f" calibrated on {data.calibration or held_out},"
        f" {counted(trainer.epochs, 'epoch')} of batch {trainer.batch_size} x {trainer.accumulate},"
        f" optim.lr={optim.lr:g} optim.head_lr={optim.head_lr or optim.lr:g} seed={config.seed}"
    )


def _print_results(planned: Sequence[Job], records: Sequence[RunRecord], *, compared: bool) -> None:
    """Print the table of the runs, the paths of their records, and the next commands."""
    from qa_arch.results.columns import runs_table
    from qa_arch.results.tables import print_table

    runs = [(job.folder, record) for job, record in zip(planned, records, strict=True)]
    table, first = runs_table(runs), planned[0]
    print_table(table)
    if compared:
        path = write_json(first.folder.parent / "table.json", table.as_dict())
        print(f"records: {first.folder.parent}/*/{RECORD}; this table: {path}")
    else:
        print(f"record: {first.folder / RECORD}")
    print_next_steps(runs, first.options)


def add_params_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch params model=proposed model.hidden=300 glove=none --json"
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings, as for train")
    counts = "print one JSON object: total, trainable, blocks, word_vectors, notes"
    parser.add_argument("--json", action="store_true", help=counts)
    add_options(parser, "--config-dir", "--trust")


def run_params(args: argparse.Namespace) -> int:
    """Print parameter counts; fixed word vectors are not parameters and are listed separately."""
    from qa_arch.config.compose import compose

    trusted = (*TRUSTED, *args.trust)
    config = validate(compose(args.overrides, use_config_dir(args.config_dir, args.trust)))
    refuse_without_effect(args.overrides, [config])
    require_trusted(config.model, trusted, "model")
    if config.init_from:
        raise ConfigError("init_from: params counts those of new models; qa-arch show RUN has a run's own")
    if (recipe := recipe_of(config.model)) is not None:
        parameters = recipe.load().count_parameters(config, trusted)
    else:
        from qa_arch.qa.task import count_parameters

        parameters = count_parameters(config, trusted)
    counts = asdict(parameters)
    del counts["nonzero"]  # meaningful only for pruned runs
    note = "word vectors are not counted: a run keeps those of its data and the first"
    has_vectors = recipe is None and config.glove.use
    counts["notes"] = [f"{note} {config.glove.keep:,} (glove.keep)"] if has_vectors else []
    if args.json:
        print(json.dumps(counts, indent=2))
        return 0
    from qa_arch.results.columns import select_columns
    from qa_arch.results.tables import Table, print_table, text

    rows = [{"model": name, "parameters": n} for name, n in counts["blocks"].items()]
    rows += [{"model": name, "parameters": counts[name]} for name in ("total", "trainable", "word_vectors")]
    columns = [text("model", "block"), *select_columns(["parameters"])]
    print_table(Table(config.title, columns, rows, notes=counts["notes"]))
    return 0
