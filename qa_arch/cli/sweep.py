"""``train -m`` and ``qa-arch sweep``: start, show, resume or retry a sweep."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qa_arch import sweep, terminal
from qa_arch.cli.runs import add_options, print_next_steps, report_missing
from qa_arch.config.find import use_config_dir
from qa_arch.config.machine import MACHINE, machine_overrides
from qa_arch.config.target import own_options
from qa_arch.files import plain_json
from qa_arch.records import read_record
from qa_arch.results.tables import Column, Table, number, print_table, text
from qa_arch.sweep import PointState, SweepPoint

CHECKPOINT = "last.ckpt"
STATES: tuple[sweep.State, ...] = ("ok", "running", "queued", "oom", "failed", "killed")
"""Order of the counts."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A sweep starts with, for example: qa-arch train -m model=bert,roberta trainer.batch_size=4,8"
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
    if args.action == "status":
        _print_rows(folder, _rows(folder, sweep.read_manifest(folder).points), as_json=args.json)
        return 0
    changes: dict[str, Any] = {} if args.n_jobs is None else {"n_jobs": args.n_jobs}
    if args.devices:
        names = args.devices.split(",")
        changes["devices"] = [int(name) if name.isdecimal() else name for name in names]
    started, again = {"trust": args.trust, "config_dir": args.config_dir}, args.action == "retry"
    repeated = [*own_options(args.trust, args.config_dir), *args.overrides]
    try:
        sweep.resume(folder, args.overrides, changes, again=again, **started)
    except KeyboardInterrupt:
        _report(folder, sweep.read_manifest(folder).points, repeated, as_json=args.json)
        raise
    return _report(folder, sweep.read_manifest(folder).points, repeated, as_json=args.json)


def multirun(
    overrides: Sequence[str], trusted: Sequence[str], config_dir: str | None = None, *, dry: bool = False
) -> int:
    """Run or resume a sweep; exit code 1 if a point failed or was not run. With ``dry``, only check it and
    print what would be done."""
    from qa_arch.config import compose

    folder = use_config_dir(config_dir, trusted)
    repeated = [*own_options(trusted, config_dir), *machine_overrides(overrides)]
    with compose.multirun(overrides, folder) as given:
        started = sweep.Sweep.of(given, overrides=overrides, trust=trusted, config_dir=folder, dry=dry)
        try:
            started.run(given)
        except KeyboardInterrupt:
            if (started.folder / sweep.MANIFEST).is_file():  # else nothing was begun
                _report(started.folder, [*started.requested.values()], repeated)
            raise
    # A search that has ended requests nothing.
    points = [*started.requested.values()] or sweep.read_manifest(started.folder).points
    if started.missing is None:
        return _report(started.folder, points, repeated)
    skipped = {"ok": "skip: done", "oom": "skip: out of memory", "running": "skip: running"}
    plan = []
    for row in _rows(started.folder, points):
        has_checkpoint = (Path(row.folder) / CHECKPOINT).is_file()
        action = skipped.get(row.status, "resume from its checkpoint" if has_checkpoint else "run")
        plan.append({"point": row.point, "action": action, "folder": Path(row.folder).name})
    print_table(Table(str(started.folder), [text(key, key) for key in ("point", "action", "folder")], plan))
    return report_missing(started.missing)


def _rows(folder: Path, points: Sequence[SweepPoint]) -> list[PointState]:
    return [sweep.row(folder, point) for point in points]


def _report(
    folder: Path, points: Sequence[SweepPoint], repeated: Sequence[str], *, as_json: bool = False
) -> int:
    """Print the results and the next commands, and return the exit code.

    ``repeated`` are the options and settings of this machine, which a sweep's folder does not keep.
    """
    rows = _rows(folder, points)
    _print_rows(folder, rows, as_json=as_json)
    states = {row.status for row in rows}
    if not as_json:
        finished = [Path(row.folder) for row in rows if row.status == "ok"]
        if finished:
            options = [word for word in repeated if word not in machine_overrides(repeated)]
            print_next_steps([(run, read_record(run)) for run in finished], options)
        if states & {"queued", "killed", "failed"}:
            print(f"resume:  {shlex.join(['qa-arch', 'sweep', 'resume', str(folder), *repeated])}")
        for failed in [row for row in rows if row.status == "failed"][:1]:
            print(f"log:     {failed.folder}/log.txt")
    return 0 if states <= {"ok", "oom"} else 1


def _print_rows(folder: Path, rows: Sequence[PointState], *, as_json: bool) -> None:
    counts = Counter(row.status for row in rows)
    if as_json:
        status = {"sweep": str(folder), "counts": counts, "points": list(map(asdict, rows))}
        print(plain_json(status))
        return
    columns: list[Column] = [
        text("point", "point"),
        text("status", "status", weight=2),
        number("epoch", "epoch", "{}/{}".format, ("epoch", "epochs")),
        number("f1", sweep.score_name(rows), weight=1),
        number("seconds", "time", terminal.clock),
        number("memory_mb", "MiB", "{:,.0f}".format),
        *([text("note", "note", weight=2)] if any(row.note for row in rows) else []),
    ]
    states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    note = f"{terminal.counted(len(rows), 'point')}: {states}"
    print_table(Table(str(folder), columns, [{**asdict(row), "note": row.note} for row in rows], [note]))
