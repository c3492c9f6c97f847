"""Run a sweep: a new one, one with added points, or one that was interrupted."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from qa_arch import provenance
from qa_arch.config.files import is_unfinished, write_atomic, write_json
from qa_arch.config.machine import machine_settings, within
from qa_arch.config.schema import SweepSettings, refuse_ignored_encoder, refuse_mixed_sources
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.provenance import NEUTRAL
from qa_arch.records import RECORD, clear_run
from qa_arch.sweep import schedule
from qa_arch.sweep.points import Point, make_points, title
from qa_arch.sweep.state import (
    CONFIG,
    DAMAGED,
    LOG,
    MANIFEST,
    RESULTS,
    STATUS,
    STUDY,
    Entry,
    Manifest,
    Status,
    actual_status,
    read_manifest,
    read_status,
    record_of,
    value_of,
)
from qa_arch.sweep.view import watching
from qa_arch.system import lock

log = logging.getLogger(__name__)


class PointError(QaArchError):
    """A point without a value: it failed, ran out of memory or was not run."""


@dataclass(frozen=True)
class Grid:
    """Overrides of a sweep, split into fixed ones and the names of the swept settings."""

    fixed: list[str]
    swept: list[str]

    @property
    def identity(self) -> tuple[list[str], list[str]]:
        """Key of the sweep, independent of the swept values and of the folder."""
        ignored = ("sweep", *NEUTRAL)
        relevant = [override for override in self.fixed if not within(override.partition("=")[0], ignored)]
        return sorted(relevant), sorted(self.swept)

    def point_overrides(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """Overrides of a point that are not shared by all points."""
        shared = {override.partition("=")[0] for override in self.fixed}
        keyed = ((word, word.partition("=")[0]) for word in overrides)
        own = [
            word
            for word, key in keyed
            if (key not in shared or (key == "seed" and overrides.count(word) > self.fixed.count(word)))
            and not within(key, ("hydra", "sweep"))
        ]
        return tuple(word for n, word in enumerate(own) if word not in own[n + 1 :])  # one of sweep.seeds

    def folder_in(self, base: Path) -> Path:
        """Folder of the sweep below ``base``, independent of the swept values; a sweep that was started with
        its settings in another order keeps its folder."""
        digest = hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()[:8]
        short = "-".join(key.rpartition(".")[2].rpartition("/")[2] for key in self.swept)
        folder = base / "-".join(part for part in ("sweep", short[:60], digest) if part)
        candidates = [folder, *sorted(base.glob(f"sweep-*{digest}"))]
        return next(filter(Path.is_dir, candidates), folder)


@dataclass
class Sweep:
    """Task of Hydra's sweepers, called once with all points or once per batch of points."""

    grid: Grid
    command: Callable[[Mapping[str, Any]], schedule.Command]
    """Function from the ``machine_settings`` of points, by name, to the command that runs one."""
    to_text: Callable[[dict[str, Any]], str]
    preflight: Callable[[Sequence[Point], Sequence[str], list[str] | None, bool], Any]
    settings: SweepSettings = field(default_factory=SweepSettings)
    trusted: Sequence[str] = ()
    config_dir: str | None = None
    """Folder with additional choices for the config groups, and possibly trusted packages."""
    dry: bool = False
    engine: schedule.Engine = schedule.run
    local: bool = True
    """Whether points run on this machine and its devices."""
    folder: Path | None = None
    requested: list[Entry] = field(default_factory=list)
    """Every point of this call, including finished ones."""
    accepted: bool = False
    """Whether the folder is known to belong to this sweep; before that nothing is written to it."""

    def launch(self, composed: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> list[float | Exception]:
        """Run points without a result; returns the value of every point, or the exception that prevented it.

        ``composed``: overrides and resolved config of each point. All checks run before the first point
        starts and before any file is written.
        """
        for overrides, raw in composed:
            refuse_ignored_encoder(overrides, raw["encoder"])
            refuse_mixed_sources(overrides, raw["data"])
        points = make_points((self.grid.point_overrides(overrides), raw) for overrides, raw in composed)
        entries = [Entry(p.name, p.key, list(p.overrides), p.devices) for p in points]
        folder = self.set_folder(points[0].config.runs_dir, points[0].config.name)
        pool = check_devices(entries, self.settings)
        known = {entry.key: entry for entry in self._manifest(folder, entries).points}
        entries = [known[entry.key] for entry in entries]
        self.requested += [entry for entry in entries if entry not in self.requested]
        to_run = unfinished(folder, entries)
        waiting = [point for point, entry in zip(points, entries, strict=True) if entry in to_run]
        if waiting:
            self.preflight(waiting, self.trusted, pool, self.local)
        if self.dry:
            return [0.0] * len(entries)  # the sweeper needs a value of every point
        with lock.hold(folder, "sweep"):
            manifest = self._manifest(folder, entries)
            write_json(folder / MANIFEST, asdict(manifest))
            self.accepted = True
            for point, entry in zip(points, entries, strict=True):
                point_folder = folder / entry.name
                if not (point_folder / CONFIG).is_file():
                    write_atomic(point_folder / CONFIG, self.to_text(point.raw))
                if not (point_folder / STATUS).is_file():
                    Status().write(point_folder)
            # Checked again under the lock: another process may have run the same sweep meanwhile.
            to_run = unfinished(folder, entries)
            machine = {e.name: machine_settings(p.raw) for p, e in zip(points, entries, strict=True)}
            run_points(folder, manifest, to_run, self.settings, self.command(machine), self.engine)
        results: list[float | Exception] = []
        for entry in entries:
            status = actual_status(folder / entry.name, parent=False)
            value = value_of(record_of(folder / entry.name))
            if status.status == "ok":
                results.append(float("nan") if value is None else value)
            else:
                results.append(PointError(f"{title(entry.overrides)}: {status.error or status.status}"))
        return results

    def __call__(self, config: Any) -> None:
        """Reject Hydra's own launchers, which call the task with one point in this process."""
        raise ConfigError(
            "a sweep needs a launcher that runs each point in its own process: hydra/launcher=isolated,"
            " submitit_local or submitit_slurm"
        )

    def set_folder(self, runs_dir: str, name: str) -> Path:
        """Set the folder of the sweep at the first call, and return it."""
        if self.folder is None:
            base = Path(runs_dir) / name
            self.folder = Path(self.settings.folder) if self.settings.folder else self.grid.folder_in(base)
        return self.folder

    def _manifest(self, folder: Path, entries: Sequence[Entry]) -> Manifest:
        """Manifest that includes these points; RunError if the folder contains something else."""
        fixed, swept = self.grid.identity
        new = Manifest(
            fixed=fixed,
            swept=swept,
            created=provenance.now(),
            cwd=str(Path.cwd()),
            trusted=list(self.trusted),
            config_dir=self.config_dir,
            settings=asdict(self.settings),
            points=list(entries),
            commit=provenance.commit()[0],
        )
        if (folder / MANIFEST).is_file():
            old = read_manifest(folder)
            if not old.continued_by(new):
                existing = " ".join([*old.fixed, *(f"{key}=..." for key in old.swept)])
                raise RunError(
                    f"{folder}: contains another sweep ({existing}); give this one its own sweep.folder=DIR"
                )
            points = old.with_points(entries).points
            return replace(new, created=old.created, points=points)
        preliminary = (lock.LOCK, STUDY)  # may exist before the manifest, as may temporary files
        if folder.exists() and not folder.is_dir():
            raise RunError(f"{folder}: is a file; give sweep.folder=DIR")
        if folder.is_dir() and not all(p.name in preliminary or is_unfinished(p) for p in folder.iterdir()):
            raise RunError(f"{folder}: is not empty and contains no sweep; give sweep.folder=DIR")
        return new


def check_devices(entries: Sequence[Entry], settings: SweepSettings) -> list[str] | None:
    """Devices to assign to points; None if no point needs any. ConfigError if a point needs too many."""
    pool = schedule.device_pool(settings)
    if pool is None or not any(entry.devices for entry in entries):
        return None
    for entry in entries:
        if entry.devices > len(pool):
            raise ConfigError(
                f"{title(entry.overrides)}: needs {entry.devices} devices, sweep.devices lists {len(pool)}"
            )
    return pool


def run_points(
    folder: Path,
    manifest: Manifest,
    to_run: Sequence[Entry],
    settings: SweepSettings,
    command: schedule.Command,
    engine: schedule.Engine = schedule.run,
) -> None:
    """Run the points ``to_run`` of the sweep in ``folder``, whose lock the caller holds."""
    current, _ = provenance.commit()
    statuses = [actual_status(folder / entry.name, parent=False) for entry in manifest.points]
    outdated = [s.commit for s in statuses if s.status in RESULTS and s.commit not in (None, current)]
    if outdated:
        log.warning(
            "kept the results of %d point(s) run with other code (commit %s, now %s)",
            len(outdated),
            ", ".join(sorted({str(commit)[:8] for commit in outdated})),
            (current or "none")[:8],
        )
    running = [entry for entry in to_run if lock.holder(folder / entry.name)]
    for entry in running:
        log.warning("%s: is still running (%s), skipped", entry.name, lock.holder(folder / entry.name))
    to_run = [entry for entry in to_run if entry not in running]
    for point in [folder / entry.name for entry in to_run]:
        if _is_damaged(point):  # nothing to go on from
            reset_point(point)
    pool = schedule.device_pool(settings)
    plan = schedule.Plan(
        folder=folder.absolute(),
        command=command,
        cwd=Path.cwd(),
        jobs=settings.n_jobs or len(pool or [None]),
        pool=pool,
        fail_fast=settings.fail_fast,
        commit=current,
    )
    with watching(folder, manifest.points) as watch, schedule.ended_by_signals():
        engine(to_run, plan, watch)


def unfinished(folder: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Points without a result: queued, killed or failed."""
    return [e for e in entries if actual_status(folder / e.name, parent=False).status not in RESULTS]


def unsuccessful(folder: Path, entries: Sequence[Entry]) -> list[Entry]:
    """Points that failed or ran out of memory."""
    return [e for e in entries if actual_status(folder / e.name, parent=False).status in ("failed", "oom")]


def reset_point(folder: Path) -> None:
    """Queue a point again: clear its folder except for config, log and number of attempts.

    If its record is damaged, everything is moved into the sweep's folder ``DAMAGED`` instead.
    """
    if folder.is_symlink():
        raise RunError(f"{folder}: is a link, whose target is not cleared; put the folder itself here")
    remaining = (CONFIG, STATUS, LOG, lock.LOCK)
    with lock.hold(folder, "run"):
        if _is_damaged(folder):
            names = (folder.parent / DAMAGED / f"{folder.name}-{n}" for n in count(1))
            aside = next(path for path in names if not path.exists())
            aside.mkdir(parents=True)
            paths = [path for path in folder.iterdir() if path.name not in remaining]
            for path in sorted(paths, key=lambda path: path.name == RECORD):  # last, in case of a kill
                path.rename(aside / (f"{path.name}.{DAMAGED}" if path.name == RECORD else path.name))
            log.warning(
                "%s: its %s is not JSON; the run starts over, its files are in %s", folder, RECORD, aside
            )
        clear_run(folder, keep=remaining)
        Status(attempts=read_status(folder).attempts).write(folder)


def _is_damaged(folder: Path) -> bool:
    return (folder / RECORD).exists() and record_of(folder) is None
