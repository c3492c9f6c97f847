"""``qa-arch sweep``: status of the sweeps that ``train -m`` started, resume and retry."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qa_arch.cli.runs import add_config_dir, add_trust, print_next_steps, use_config_dir
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.results.tables import Table, print_table, text
from qa_arch.sweep import points, runner
from qa_arch.sweep.runner import Grid, PointError, Sweep
from qa_arch.sweep.schedule import Command
from qa_arch.sweep.state import CONFIG, Entry, read_manifest
from qa_arch.sweep.view import Row, as_dict, rows, table
from qa_arch.system import lifeline, lock, terminal

CHECKPOINT = "last.ckpt"
WIDE = 1000
"""Width of a table without a terminal, so that nothing is folded."""
HYDRA = "hydra"
"""Subfolder of the sweep for the files of Hydra's sweeper."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A sweep starts with, for example: qa-arch train -m model=bert,proposed trainer.batch_size=4,8"
        " seed=1,2,3. The same command resumes it, and with more values extends it."
        " sweep.n_jobs=N runs N points at a time, sweep.devices=[0,1] assigns these GPUs to points,"
        " sweep.fail_fast=true stops at the first failure, sweep.folder=DIR sets its folder."
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    status = actions.add_parser("status", help="show every point")
    status.add_argument("--watch", action="store_true", help="refresh every two seconds until the sweep ends")
    resume = actions.add_parser("resume", help="run the points that are queued, were killed or failed")
    retry = actions.add_parser(
        "retry", help="run the points that failed or ran out of memory again, from the start"
    )
    for subparser in (status, resume, retry):
        subparser.add_argument("sweep", metavar="SWEEP", help="the sweep's folder")
        subparser.add_argument("--json", action="store_true", help="print one JSON object: counts and points")
    for subparser in (resume, retry):
        subparser.add_argument(
            "--n-jobs", type=int, metavar="N", help="points at a time (default: as before)"
        )
        subparser.add_argument(
            "--devices", metavar="0,1,...", help="GPUs to assign to points (default: as before)"
        )
        subparser.add_argument(
            "--fail-fast", action="store_true", default=None, help="stop at the first failure"
        )
    dry = actions.add_parser("dry-run", help="print what would be run, and run nothing")
    dry.add_argument("what", nargs="+", metavar="SWEEP|KEY=VALUE", help="a sweep's folder, or a grid")
    dry.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_dir(dry)
    add_trust(dry)


def run(args: argparse.Namespace) -> int:
    if args.action == "dry-run":
        if len(args.what) == 1 and "=" not in Path(args.what[0]).name:
            folder = Path(args.what[0])
            return _print_plan(folder, read_manifest(folder).points, as_json=args.json)
        return dry_run(args.what, args.trust, args.config_dir, as_json=args.json)
    folder = Path(args.sweep)
    if args.action == "status":
        return _status(folder, watch=args.watch, as_json=args.json)
    return _resume(folder, args)


def multirun(overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None = None) -> int:
    """Run or resume a sweep; exit code 1 if a point failed or was not run."""
    sweep = _sweep(overrides, trusted, config_dir, dry=False)
    try:
        _through_hydra(overrides, sweep)
    except PointError:
        pass  # reported below, with all others
    except KeyboardInterrupt:
        if sweep.folder is not None:
            _report(sweep.folder, sweep.requested)
        raise
    assert sweep.folder is not None
    return _report(sweep.folder, sweep.requested)


def dry_run(
    overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None = None, *, as_json: bool = False
) -> int:
    """Check a grid and print the planned actions; nothing is written."""
    sweep = _sweep(overrides, trusted, config_dir, dry=True)
    _through_hydra(overrides, sweep)
    assert sweep.folder is not None
    return _print_plan(sweep.folder, sweep.requested, as_json=as_json)


def point_command(trusted: Sequence[str], config_dir: str | None = None) -> Command:
    """Command that trains or resumes the point in a folder, an ordinary ``qa-arch train``; it can be sent to
    another machine. ``config_dir``: where trusted packages lie, if not among the installed ones."""
    return partial(_point_command, tuple(trusted), config_dir)


def _point_command(trusted: Sequence[str], config_dir: str | None, folder: Path) -> list[str]:
    trust = [word for prefix in trusted for word in ("--trust", prefix)]
    trust += ["--config-dir", config_dir] if config_dir else []
    where = ["--config-from", str(folder / CONFIG), "--folder", str(folder), "--if-exists", "resume"]
    return lifeline.module_command("qa_arch.cli.main", "train", *where, *trust)


def _sweep(overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None, *, dry: bool) -> Sweep:
    from qa_arch.cli.compose import LAUNCHER, split_grid, to_yaml

    for override in overrides:
        if override.startswith(("hydra.sweep.", "hydra.run.")):
            raise ConfigError(f"{override}: say where a sweep is kept with sweep.folder=DIR")
        if override == "hydra/launcher=basic":
            raise ConfigError(f"{override}: would train every point in this process; {LAUNCHER} does not")
    folder = use_config_dir(config_dir, trusted)
    return Sweep(
        Grid(*split_grid(overrides)),
        command=point_command(trusted, folder),
        to_text=to_yaml,
        preflight=points.preflight,
        trusted=list(trusted),
        config_dir=folder,
        dry=dry,
    )


def _through_hydra(overrides: Sequence[str], sweep: Sweep) -> None:
    from qa_arch.cli.compose import multirun as hydra_multirun

    with tempfile.TemporaryDirectory() as temporary:  # Hydra writes before the points are checked
        try:
            hydra_multirun(overrides, sweep, Path(temporary), sweep.config_dir)
        finally:
            if sweep.accepted and sweep.folder is not None:
                shutil.copytree(temporary, sweep.folder / HYDRA, dirs_exist_ok=True)


def _resume(folder: Path, args: argparse.Namespace) -> int:
    devices = None
    if args.devices:
        devices = [int(name) if name.isdecimal() else name for name in args.devices.split(",")]
    with runner.opened(folder) as manifest:
        use_config_dir(manifest.config_dir, manifest.trusted)
        settings = runner.stored_settings(
            manifest, n_jobs=args.n_jobs, devices=devices, fail_fast=args.fail_fast
        )
        command = point_command(manifest.trusted, manifest.config_dir)
        retry = args.action == "retry"
        todo = (runner.unsuccessful if retry else runner.unfinished)(folder, manifest.points)
        if pool := runner.check_devices(todo, settings):
            points.check_pool(pool)
        for entry in todo if retry else ():
            runner.reset_point(folder / entry.name)
        try:
            runner.run_points(folder, manifest, todo, settings, command)
        except KeyboardInterrupt:
            _report(folder, manifest.points, as_json=args.json)
            raise
    return _report(folder, manifest.points, as_json=args.json)


def _status(folder: Path, *, watch: bool, as_json: bool) -> int:
    entries = read_manifest(folder).points
    if watch and sys.stdout.isatty() and not as_json:
        from rich.live import Live

        with Live(auto_refresh=False, transient=True) as live:
            while lock.holder(folder):
                live.update(table(str(folder), rows(folder, entries, parent=True)), refresh=True)
                time.sleep(2)
                entries = read_manifest(folder).points
    points = rows(folder, entries, parent=lock.holder(folder) is not None)
    _print(folder, points, as_json=as_json)
    return 0


def _report(folder: Path, entries: Sequence[Entry], *, as_json: bool = False) -> int:
    """Print the results and the next commands; exit code."""
    points = rows(folder, entries, parent=False)
    _print(folder, points, as_json=as_json)
    states = {row.status for row in points}
    if not as_json:
        done = [Path(row.folder) for row in points if row.status == "ok"]
        print_next_steps([(point, read_record(point)) for point in done])
        if states & {"queued", "killed", "failed"}:
            print(f"go on:   qa-arch sweep resume {folder}")
        if states & {"failed"}:
            failed = next(row for row in points if row.status == "failed")
            print(f"log:     {failed.folder}/log.txt")
    return 0 if states <= {"ok", "oom"} else 1


def _print_plan(folder: Path, entries: Sequence[Entry], *, as_json: bool) -> int:
    plan = [(row, _action(row)) for row in rows(folder, entries, parent=lock.holder(folder) is not None)]
    if as_json:
        points = [{"point": row.point, "action": action, "folder": row.folder} for row, action in plan]
        print(json.dumps({"sweep": str(folder), "points": points}, indent=2, ensure_ascii=False))
        return 0
    planned = [{"point": row.point, "would": action, "folder": Path(row.folder).name} for row, action in plan]
    print_table(Table(str(folder), [text(key, key) for key in ("point", "would", "folder")], planned))
    return 0


def _action(row: Row) -> str:
    known = {"ok": "be skipped: done", "oom": "be skipped: out of memory", "running": "be left: runs"}
    begun = (Path(row.folder) / CHECKPOINT).is_file()
    return known.get(row.status, "go on from its checkpoint" if begun else "run")


def _print(folder: Path, points: Sequence[Row], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(as_dict(folder, points), indent=2, ensure_ascii=False))
    else:
        console = terminal.console(width=None if sys.stdout.isatty() else WIDE)
        console.print(table(str(folder), points))
