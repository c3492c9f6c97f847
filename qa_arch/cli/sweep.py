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
from collections.abc import Sequence
from contextlib import chdir
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.cli.runs import print_next_steps, require_files, require_hub, use_config_dir
from qa_arch.config.identity import config_hash
from qa_arch.config.schema import validate
from qa_arch.config.target import own_options
from qa_arch.errors import QaArchError, RunError
from qa_arch.records import read_record
from qa_arch.results.tables import Table, print_table, text
from qa_arch.sweep import points, runner
from qa_arch.sweep.points import Point
from qa_arch.sweep.runner import Grid, PointError, Sweep
from qa_arch.sweep.schedule import Command, read_settings
from qa_arch.sweep.state import CONFIG, Entry, read_manifest
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
    with lock.hold(folder, "sweep"):
        manifest = read_manifest(folder)
        use_config_dir(manifest.config_dir, manifest.trusted)
        settings = read_settings({**manifest.settings, **changes})
        command = point_command(manifest.trusted, manifest.config_dir)
        retry = args.action == "retry"
        to_run = (runner.unsuccessful if retry else runner.unfinished)(folder, manifest.points)
        begun = [_read_point(folder, entry) for entry in to_run if (folder / entry.name / CONFIG).is_file()]
        pool = runner.check_devices(to_run, settings)
        with chdir(manifest.cwd if Path(manifest.cwd).is_dir() else "."):  # base of relative paths
            preflight(begun, manifest.trusted, pool, True)
            _require_unchanged(folder, manifest.points, to_run)
        for entry in to_run if retry else ():
            runner.reset_point(folder / entry.name)
        try:
            runner.run_points(folder, manifest, to_run, settings, command)
        except KeyboardInterrupt:
            _report(folder, manifest.points, as_json=args.json)
            raise
    return _report(folder, manifest.points, as_json=args.json)


def multirun(
    overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None = None, *, dry: bool = False
) -> int:
    """Run or resume a sweep; exit code 1 if a point failed or was not run. With ``dry``, only check it and
    print what would be done."""
    from qa_arch.cli.compose import NOT_FOR_SWEEPS, refuse, split_grid, to_yaml
    from qa_arch.cli.compose import multirun as hydra_multirun

    refuse(overrides, NOT_FOR_SWEEPS)
    folder = use_config_dir(config_dir, trusted)
    sweep = Sweep(
        Grid(*split_grid(overrides)),
        command=point_command(trusted, folder),
        to_text=to_yaml,
        preflight=partial(preflight, dry=dry),
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
                _report(sweep.folder, sweep.requested)
            raise
        finally:
            if sweep.accepted and sweep.folder is not None:
                shutil.copytree(temporary, sweep.folder / "hydra", dirs_exist_ok=True)
    assert sweep.folder is not None
    # A search that has ended requests nothing.
    entries = sweep.requested or read_manifest(sweep.folder).points
    return (_print_plan if dry else _report)(sweep.folder, entries)


def preflight(
    waiting: Sequence[Point],
    trusted: Sequence[str],
    pool: list[str] | None,
    local: bool,
    *,
    dry: bool = False,
) -> None:
    """``points.preflight``, after checking files, and that encoders and data sets are cached or available.

    With ``dry``, only warn of what this machine lacks, and do not ask the hub.
    """
    try:
        if local:  # machines of a cluster may have another cache and other access to the hub
            for point in waiting:
                _require_files(point)
            if not dry:
                require_hub([point.config for point in waiting])
        points.preflight(waiting, trusted, pool, local)
    except QaArchError as error:
        if not (dry and local):
            raise
        points.preflight(waiting, trusted, None, False)  # raises the errors of any other machine
        log.warning("training on this machine would fail: %s", error)


def _require_files(point: Point) -> None:
    try:
        require_files(point.config)
    except QaArchError as error:
        raise type(error)(f"{points.title(point.overrides)}: {error}") from error


def _read_point(folder: Path, entry: Entry) -> Point:
    """A point that was started, with the config in its folder."""
    from qa_arch.cli.compose import merge

    raw = merge(folder / entry.name / CONFIG, ())
    return Point(tuple(entry.overrides), raw, validate(raw), entry.key)


def _require_unchanged(folder: Path, entries: Sequence[Entry], to_run: Sequence[Entry]) -> None:
    """Raise RunError for the first point, also a finished one, whose files have changed since it was started.

    Files of finished points that are no longer here are only warned of.
    """
    for entry in entries:
        if not (folder / entry.name / CONFIG).is_file():
            continue
        try:
            config = _read_point(folder, entry).config
            key = config_hash(asdict(config), points.sources(config))
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


def point_command(trusted: Sequence[str], config_dir: str | None) -> Command:
    """Function from a point's folder to the ``qa-arch train`` command that trains or resumes it."""
    options = own_options(trusted, config_dir)

    def command(folder: Path) -> list[str]:
        run = ["--config-from", str(folder / CONFIG), "--folder", str(folder), "--if-exists", "resume"]
        return lifeline.module_command("qa_arch.cli.main", "train", *run, *options)

    return command


def _report(folder: Path, entries: Sequence[Entry], *, as_json: bool = False) -> int:
    """Print the results and the next commands, and return the exit code."""
    results = rows(folder, entries, parent=False)
    _print_rows(folder, results, as_json=as_json)
    states = {row.status for row in results}
    if not as_json:
        finished = [Path(row.folder) for row in results if row.status == "ok"]
        if finished:
            manifest = read_manifest(folder)
            options = own_options(manifest.trusted, manifest.config_dir)
            print_next_steps([(run, read_record(run)) for run in finished], options)
        if states & {"queued", "killed", "failed"}:
            print(f"resume:  qa-arch sweep resume {shlex.quote(str(folder))}")
        for failed in [row for row in results if row.status == "failed"][:1]:
            print(f"log:     {failed.folder}/log.txt")
    return 0 if states <= {"ok", "oom"} else 1


def _print_plan(folder: Path, entries: Sequence[Entry]) -> int:
    """Print what would be done with each point."""
    skipped = {"ok": "skip: done", "oom": "skip: out of memory", "running": "skip: running"}
    plan = []
    for row in rows(folder, entries, parent=lock.holder(folder) is not None):
        has_checkpoint = (Path(row.folder) / CHECKPOINT).is_file()
        action = skipped.get(row.status, "resume from its checkpoint" if has_checkpoint else "run")
        plan.append({"point": row.point, "action": action, "folder": Path(row.folder).name})
    print_table(Table(str(folder), [text(key, key) for key in ("point", "action", "folder")], plan))
    return 0


def _print_rows(folder: Path, results: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        counts = Counter(row.status for row in results)
        status = {"sweep": str(folder), "counts": counts, "points": list(map(asdict, results))}
        print(json.dumps(status, indent=2, ensure_ascii=False))
    else:
        console = terminal.console(width=None if sys.stdout.isatty() else WIDE)
        console.print(table(str(folder), results))
