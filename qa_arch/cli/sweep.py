"""``qa-arch sweep``: show, resume or retry a sweep that ``train -m`` started."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import (
    add_options,
    print_next_steps,
    report_missing,
    require_files,
    require_hub,
    use_config_dir,
)
from qa_arch.config.machine import MACHINE, machine_overrides, machine_settings
from qa_arch.config.schema import validate
from qa_arch.config.target import own_options
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.provenance import identify
from qa_arch.records import read_record
from qa_arch.results.tables import Table, print_table, text
from qa_arch.sweep import points, runner
from qa_arch.sweep.points import Point
from qa_arch.sweep.runner import Grid, PointError, Sweep
from qa_arch.sweep.schedule import Command, read_settings
from qa_arch.sweep.state import CONFIG, MANIFEST, Entry, Manifest, read_manifest
from qa_arch.sweep.view import Row, rows, table
from qa_arch.system import lifeline, lock, terminal

log = logging.getLogger(__name__)
CHECKPOINT = "last.ckpt"
WIDE = 1000
"""Table width without a terminal, so that no line is folded."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A sweep starts with, for example: qa-arch train -m model=bert,proposed trainer.batch_size=4,8"
        " seed=1,2,3. The same command resumes it, and with more values extends it; --dry-run shows what it"
        " would run. sweep.n_jobs=N runs N points at a time, sweep.devices=[0,1] assigns these GPUs to"
        " points, sweep.fail_fast=true stops at the first failure, sweep.folder=DIR sets its folder."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="show every point")
    resume = actions.add_parser("resume", help="run the points that are queued, were killed or failed")
    retry = actions.add_parser("retry", help="run failed and out-of-memory points again, from the beginning")
    for subparser in (status, resume, retry):
        add = subparser.add_argument
        add("sweep", metavar="SWEEP", help="the sweep's folder")
        add("--json", action="store_true", help="print one JSON object: counts and points")
        if subparser is not status:
            add("--n-jobs", type=int, metavar="N", help="points at a time (default: as before)")
            add("--devices", metavar="0,1,...", help="GPUs to assign to points (default: as before)")
            add_options(subparser, "--config-dir", "--trust")
            settings = f"logger and folders ({', '.join(MACHINE)}) as they were given to train -m"
            add("overrides", nargs="*", metavar="KEY=VALUE", help=settings)


def run(args: argparse.Namespace) -> int:
    folder = Path(args.sweep)
    manifest = read_manifest(folder)  # before a lock file is written into a folder that is not a sweep
    if args.action == "status":
        status = rows(folder, manifest.points, parent=lock.holder(folder) is not None)
        _print_rows(folder, status, as_json=args.json)
        return 0
    changes: dict[str, Any] = {} if args.n_jobs is None else {"n_jobs": args.n_jobs}
    if args.devices:
        names = args.devices.split(",")
        changes["devices"] = [int(name) if name.isdecimal() else name for name in names]
    machine = machine_overrides(args.overrides)
    if other := [word for word in args.overrides if word not in machine]:
        raise ConfigError(f"{other[0]}: points keep their settings, except for {', '.join(MACHINE)}")
    options = own_options(args.trust, args.config_dir)
    with lock.hold(folder, "sweep"):
        manifest = read_manifest(folder)
        _require_same_start(folder / MANIFEST, manifest, args.trust, args.config_dir)
        config_dir = use_config_dir(args.config_dir, args.trust)
        settings = read_settings({**manifest.settings, **changes})
        retry = args.action == "retry"
        to_run = (runner.unsuccessful if retry else runner.unfinished)(folder, manifest.points)
        begun = {
            entry.name: _read_point(folder, entry, machine, config_dir)
            for entry in to_run
            if (folder / entry.name / CONFIG).is_file()
        }
        command = point_command(
            [*own_options(args.trust, config_dir), *machine],
            {name: machine_settings(point.raw) for name, point in begun.items()},
        )
        pool = runner.check_devices(to_run, settings)
        preflight([*begun.values()], args.trust, pool, True)
        _require_unchanged(folder, manifest.points, to_run, machine, config_dir)
        for entry in to_run if retry else ():
            runner.reset_point(folder / entry.name)
        try:
            runner.run_points(folder, manifest, to_run, settings, command)
        except KeyboardInterrupt:
            _report(folder, manifest.points, options, machine, as_json=args.json)
            raise
    return _report(folder, manifest.points, options, machine, as_json=args.json)


def _require_same_start(
    path: Path, manifest: Manifest, trusted: Sequence[str], config_dir: str | None
) -> None:
    """Raise ConfigError if the sweep was started in another working folder, or with packages or a config
    folder that the command line does not name: the manifest may come from anyone, and both execute code."""
    untold = own_options(
        [prefix for prefix in manifest.trusted if prefix not in trusted],
        None if config_dir else manifest.config_dir,
    )
    if untold:
        raise ConfigError(
            f"{path}: was started with {shlex.join(untold)}, which is not taken from a file; if you trust it,"
            " add it to this command"
        )
    if manifest.cwd != str(Path.cwd()):
        raise ConfigError(
            f"{path}: was started in {manifest.cwd}, where its relative paths begin; run this command there,"
            " or repeat here the train -m that started it"
        )


def multirun(
    overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None = None, *, dry: bool = False
) -> int:
    """Run or resume a sweep; exit code 1 if a point failed or was not run. With ``dry``, only check it and
    print what would be done."""
    from qa_arch.cli.compose import multirun as hydra_multirun
    from qa_arch.cli.compose import split_grid, sweep_arguments, to_yaml

    folder, machine = use_config_dir(config_dir, trusted), machine_overrides(overrides)
    options = own_options(trusted, config_dir)
    overrides = sweep_arguments(overrides, folder)
    missing: list[QaArchError] | None = [] if dry else None
    sweep = Sweep(
        Grid(*split_grid(overrides)),
        command=partial(point_command, [*own_options(trusted, folder), *machine]),
        to_text=to_yaml,
        preflight=partial(preflight, missing=missing),
        trusted=list(trusted),
        config_dir=folder,
        dry=dry,
    )
    with tempfile.TemporaryDirectory() as temporary:  # Hydra writes before the points are checked
        try:
            hydra_multirun(overrides, sweep, Path(temporary), sweep.config_dir)
        except PointError:
            pass  # reported below with all other points
        except KeyboardInterrupt:
            if sweep.folder is not None:
                _report(sweep.folder, sweep.requested, options, machine)
            raise
        finally:
            if sweep.accepted and sweep.folder is not None:
                shutil.copytree(temporary, sweep.folder / "hydra", dirs_exist_ok=True)
    assert sweep.folder is not None
    # A search that has ended requests nothing.
    entries = sweep.requested or read_manifest(sweep.folder).points
    if missing is None:
        return _report(sweep.folder, entries, options, machine)
    _print_plan(sweep.folder, entries)
    return report_missing(missing)


def preflight(
    waiting: Sequence[Point],
    trusted: Sequence[str],
    pool: list[str] | None,
    local: bool,
    *,
    missing: list[QaArchError] | None = None,
) -> None:
    """``points.preflight``, after checking files, and that encoders and data sets are cached or available.

    With a list ``missing``, of a dry run, append what this machine lacks, and do not ask the hub.
    """
    try:
        if local:  # machines of a cluster may have another cache and other access to the hub
            for point in waiting:
                _require_files(point)
            if missing is None:
                require_hub([point.config for point in waiting])
        points.preflight(waiting, trusted, pool, local)
    except QaArchError as error:
        if missing is None or not local:
            raise
        points.preflight(waiting, trusted, None, False)  # raises the errors of any other machine
        missing.append(error)


def _require_files(point: Point) -> None:
    try:
        require_files(point.config)
    except QaArchError as error:
        raise type(error)(f"{points.title(point.overrides)}: {error}") from error


def _read_point(folder: Path, entry: Entry, machine: Sequence[str], config_dir: str | None) -> Point:
    """A point that was started, with the config in its folder and the settings ``machine``."""
    from qa_arch.cli.compose import merge

    raw = merge(folder / entry.name / CONFIG, machine, config_dir, resumes=True)
    return Point(tuple(entry.overrides), raw, validate(raw), entry.key)


def _require_unchanged(
    folder: Path,
    entries: Sequence[Entry],
    to_run: Sequence[Entry],
    machine: Sequence[str],
    config_dir: str | None,
) -> None:
    """Raise RunError for the first point, also a finished one, whose files have changed since it was started.

    Files of finished points that are no longer here are only warned of.
    """
    for entry in entries:
        if not (folder / entry.name / CONFIG).is_file():
            continue
        try:
            config = _read_point(folder, entry, machine, config_dir).config
            key = identify(asdict(config), points.sources(config)).run_hash
        except QaArchError as error:
            if entry in to_run:
                raise
            log.warning("%s: what it read is not here to be compared (%s)", entry.name, error)
            continue
        if key != entry.key:
            read = [*config.data.opened.values(), config.glove.path, config.encoder.name]
            files = ", ".join(str(source) for source in (*read, config.distillation.teacher) if source)
            raise RunError(
                f"{folder}: {entry.name}: what it reads ({files}) or its {CONFIG} has changed since the sweep"
                " began; restore it, or start the sweep in another folder (sweep.folder=DIR)"
            )


def point_command(options: Sequence[str], machine: Mapping[str, Any]) -> Command:
    """Function from a point's folder to the ``qa-arch train`` command that trains or resumes it.

    ``options`` are those of the sweep, ``machine`` the ``machine_settings`` of each point, by name.
    """

    def command(folder: Path) -> list[str]:
        run = ["--config-from", str(folder / CONFIG), "--folder", str(folder), "--if-exists", "resume"]
        run += ["--machine", json.dumps(machine[folder.name])] if folder.name in machine else []
        return lifeline.module_command("qa_arch.cli.main", "train", *run, *options)

    return command


def _report(
    folder: Path,
    entries: Sequence[Entry],
    options: Sequence[str],
    machine: Sequence[str],
    *,
    as_json: bool = False,
) -> int:
    """Print the results and the next commands, and return the exit code.

    ``options`` are those needed to load a run; to resume, the settings ``machine`` are too.
    """
    results = rows(folder, entries, parent=False)
    _print_rows(folder, results, as_json=as_json)
    states = {row.status for row in results}
    if not as_json:
        finished = [Path(row.folder) for row in results if row.status == "ok"]
        if finished:
            print_next_steps([(run, read_record(run)) for run in finished], options)
        if states & {"queued", "killed", "failed"}:
            print(f"resume:  {shlex.join(['qa-arch', 'sweep', 'resume', str(folder), *options, *machine])}")
        for failed in [row for row in results if row.status == "failed"][:1]:
            print(f"log:     {failed.folder}/log.txt")
    return 0 if states <= {"ok", "oom"} else 1


def _print_plan(folder: Path, entries: Sequence[Entry]) -> None:
    """Print what would be done with each point."""
    skipped = {"ok": "skip: done", "oom": "skip: out of memory", "running": "skip: running"}
    plan = []
    for row in rows(folder, entries, parent=lock.holder(folder) is not None):
        has_checkpoint = (Path(row.folder) / CHECKPOINT).is_file()
        action = skipped.get(row.status, "resume from its checkpoint" if has_checkpoint else "run")
        plan.append({"point": row.point, "action": action, "folder": Path(row.folder).name})
    print_table(Table(str(folder), [text(key, key) for key in ("point", "action", "folder")], plan))


def _print_rows(folder: Path, results: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        counts = Counter(row.status for row in results)
        status = {"sweep": str(folder), "counts": counts, "points": list(map(asdict, results))}
        print(json.dumps(status, indent=2, ensure_ascii=False))
    else:
        console = terminal.console(width=None if sys.stdout.isatty() else WIDE)
        console.print(table(str(folder), results))
