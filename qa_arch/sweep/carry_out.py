"""Carrying a sweep out: a new one, one that grows, one that was interrupted."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic
from qa_arch.config.identity import NEUTRAL
from qa_arch.errors import ConfigError, QaArchError, RunError
from qa_arch.results import provenance
from qa_arch.sweep import schedule
from qa_arch.sweep.display import watching
from qa_arch.sweep.points import Point, make_points, title
from qa_arch.sweep.settings import Settings, device_pool, read_settings
from qa_arch.sweep.state import (
    CONFIG,
    LOG,
    MANIFEST,
    RESULTS,
    STATUS,
    STUDY,
    Entry,
    Manifest,
    Status,
    believed,
    read_manifest,
    read_status,
    record_of,
    value_of,
)
from qa_arch.system import lock

log = logging.getLogger(__name__)
DRY_VALUE = 0.0
"""What a dry run tells the sweeper of every point."""


class PointError(QaArchError):
    """A point has no value: it failed, ran out of memory or was not run."""


@dataclass(frozen=True)
class Grid:
    """What was asked for on the command line, split into what is fixed and what is swept."""

    fixed: list[str]
    swept: list[str]

    @property
    def identity(self) -> tuple[list[str], list[str]]:
        """What makes two grids the same sweep, whatever values are swept and wherever it is kept."""
        places = ("sweep", *NEUTRAL)
        counting = [one for one in self.fixed if not _within(one.partition("=")[0], places)]
        return sorted(counting), sorted(self.swept)

    def own(self, overrides: Sequence[str]) -> tuple[str, ...]:
        """Those of a point's overrides that not all points have."""
        shared = {one.partition("=")[0] for one in self.fixed}
        named = ((one, one.partition("=")[0]) for one in overrides)
        return tuple(one for one, key in named if key not in shared and not _within(key, ("hydra", "sweep")))

    @property
    def label(self) -> str:
        """Names the sweep's folder: the same for the same sweep, also when its values grow."""
        short = "-".join(key.rpartition(".")[2].rpartition("/")[2] for key in self.swept)
        digest = hashlib.sha256(json.dumps(self.identity).encode()).hexdigest()
        return "-".join(part for part in ("sweep", short[:60], digest[:8]) if part)


@dataclass
class Sweep:
    """A sweep as Hydra's sweepers call it: once with all points, or once for each batch of them."""

    grid: Grid
    command: schedule.Command
    to_text: Callable[[dict[str, Any]], str]
    preflight: Callable[[Sequence[Point], Sequence[str], list[str] | None, bool], Any]
    settings: Settings = field(default_factory=Settings)
    trusted: Sequence[str] = ()
    dry: bool = False
    engine: schedule.Engine = schedule.run
    here: bool = True
    """Whether the points run on this machine, with its devices."""
    folder: Path | None = None
    asked: list[Entry] = field(default_factory=list)
    """Every point of this call, those that were done before as well."""
    accepted: bool = False
    """Whether the folder holds this sweep now; until then nothing is written to it."""

    def configure(self, raw: Mapping[str, Any]) -> None:
        """Take the ``sweep`` section of the config."""
        self.settings = read_settings(raw)

    def launch(self, composed: Sequence[tuple[Sequence[str], dict[str, Any]]]) -> list[float | Exception]:
        """Run what has no result yet; each point's calibration F1, or what stands in its way.

        ``composed``: each point's overrides and its resolved config. Everything that can be checked is
        checked before the first point starts or a file is written.
        """
        points = make_points((self.grid.own(overrides), raw) for overrides, raw in composed)
        entries = [Entry(p.name, p.key, list(p.overrides), p.devices) for p in points]
        self.place(points[0].config.runs_dir, points[0].config.name)
        assert self.folder is not None
        pool = check_devices(entries, self.settings)
        self._manifest(entries)
        self.asked += [entry for entry in entries if entry not in self.asked]
        todo = self._todo(entries)
        waiting = [point for point, entry in zip(points, entries, strict=True) if entry in todo]
        self.preflight(waiting, self.trusted, pool, self.here)
        if self.dry:
            return [DRY_VALUE for _ in entries]
        with lock.hold(self.folder, "sweep"):
            manifest = self._manifest(entries)
            manifest.write(self.folder)
            self.accepted = True
            for point, entry in zip(points, entries, strict=True):
                _prepare(self.folder / entry.name, self.to_text(point.raw))
            # Asked again: the same sweep may have run elsewhere until a moment ago.
            carry_out(self.folder, manifest, self._todo(entries), self.settings, self.command, self.engine)
        return [_value(self.folder / entry.name, entry) for entry in entries]

    def _todo(self, entries: Sequence[Entry]) -> list[Entry]:
        assert self.folder is not None
        return [entry for entry in entries if not _has_result(self.folder / entry.name)]

    def __call__(self, config: Any) -> None:
        """Hydra's own launchers call their task so, with one point and in this process."""
        raise ConfigError(
            "a sweep needs a launcher that gives each point a process: hydra/launcher=isolated,"
            " submitit_local or submitit_slurm"
        )

    def place(self, runs_dir: str, name: str) -> Path:
        """The sweep's folder; once it is known it stays."""
        if self.folder is None:
            base = Path(runs_dir) / name
            self.folder = Path(self.settings.folder) if self.settings.folder else base / self.grid.label
        return self.folder

    def _manifest(self, entries: Sequence[Entry]) -> Manifest:
        """The manifest with these points in it; RunError where the folder cannot take them."""
        assert self.folder is not None
        commit, _ = provenance.commit()
        fixed, swept = self.grid.identity
        new = Manifest(
            fixed=fixed,
            swept=swept,
            created=provenance.now(),
            cwd=str(Path.cwd()),
            trusted=list(self.trusted),
            settings=asdict(self.settings),
            points=list(entries),
            commit=commit,
        )
        require_room(self.folder, new)
        if not (self.folder / MANIFEST).is_file():
            return new
        old = read_manifest(self.folder)
        return replace(new.with_points([]), created=old.created, points=old.with_points(entries).points)


def require_room(folder: Path, new: Manifest) -> None:
    """RunError where the folder holds something else, or cannot be written."""
    if (folder / MANIFEST).is_file():
        old = read_manifest(folder)
        if not old.continued_by(new):
            was = " ".join([*old.fixed, *(f"{key}=..." for key in old.swept)])
            raise RunError(f"{folder}: holds another sweep ({was}); give this one its own sweep.folder=DIR")
        return
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: is a file; give sweep.folder=DIR")
    if folder.is_dir() and any(path.name not in (lock.LOCK, STUDY) for path in folder.iterdir()):
        raise RunError(f"{folder}: is not empty and holds no sweep; give sweep.folder=DIR")
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RunError(f"{folder}: cannot be written (no right to write in {there}); give sweep.folder=DIR")


def check_devices(entries: Sequence[Entry], settings: Settings) -> list[str] | None:
    """The devices to hand out, None where no point takes one; ConfigError where one wants more than all."""
    pool = device_pool(settings)
    if pool is None or not any(entry.devices for entry in entries):
        return None
    for entry in entries:
        if entry.devices > len(pool):
            raise ConfigError(
                f"{title(entry.overrides)}: wants {entry.devices} devices and sweep.devices names {len(pool)}"
            )
    return pool


@contextmanager
def opened(folder: Path) -> Iterator[Manifest]:
    """A sweep that is there already, held for as long as it is worked on."""
    read_manifest(folder)  # before a lock file is made in a folder that is none
    with lock.hold(folder, "sweep"):
        yield read_manifest(folder)


def carry_out(
    folder: Path,
    manifest: Manifest,
    todo: Sequence[Entry],
    settings: Settings,
    command: schedule.Command,
    engine: schedule.Engine = schedule.run,
) -> None:
    """Run ``todo``, points of the sweep in ``folder`` that the caller holds the lock of."""
    _warn_of_other_code(folder, manifest)
    living = [entry for entry in todo if lock.holder(folder / entry.name)]
    for entry in living:
        log.warning("%s: still runs (%s) and is left alone", entry.name, lock.holder(folder / entry.name))
    cwd = Path(manifest.cwd)
    if not cwd.is_dir():
        log.warning("%s is gone; relative paths now count from %s", cwd, Path.cwd())
        cwd = Path.cwd()
    pool = device_pool(settings)
    plan = schedule.Plan(
        folder=folder.absolute(),
        command=command,
        cwd=cwd,
        jobs=settings.n_jobs or len(pool or [None]),
        pool=pool,
        fail_fast=settings.fail_fast,
        commit=provenance.commit()[0],
    )
    with watching(folder, manifest.points) as watch, schedule.ended_by_signals():
        engine([entry for entry in todo if entry not in living], plan, watch)


def unfinished(folder: Path, manifest: Manifest) -> list[Entry]:
    """The points that have no result yet: queued, killed and failed ones."""
    return [entry for entry in manifest.points if not _has_result(folder / entry.name)]


def unsuccessful(folder: Path, manifest: Manifest) -> list[Entry]:
    """The points that failed or ran out of memory."""
    states = {entry.key: believed(folder / entry.name, parent=False).status for entry in manifest.points}
    return [entry for entry in manifest.points if states[entry.key] in ("failed", "oom")]


def start_anew(folder: Path) -> None:
    """Empty a point's folder but for its config, its log and its count of attempts: it is queued again."""
    with lock.hold(folder, "run"):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in (CONFIG, STATUS, LOG, lock.LOCK):
                path.unlink()
        Status(attempts=read_status(folder).attempts).write(folder)


def stored_settings(manifest: Manifest, **changes: Any) -> Settings:
    """The settings that the sweep was begun with, but for what is given now."""
    given = {key: value for key, value in changes.items() if value is not None}
    return read_settings({**manifest.settings, **given})


def _has_result(folder: Path) -> bool:
    return believed(folder, parent=False).status in RESULTS


def _prepare(folder: Path, text: str) -> None:
    if not (folder / CONFIG).is_file():
        write_atomic(folder / CONFIG, text)
    if not (folder / STATUS).is_file():
        Status().write(folder)


def _value(folder: Path, entry: Entry) -> float | Exception:
    status = believed(folder, parent=False)
    if status.status != "ok":
        return PointError(f"{title(entry.overrides)}: {status.error or status.status}")
    value = value_of(record_of(folder))
    return float("nan") if value is None else value


def _warn_of_other_code(folder: Path, manifest: Manifest) -> None:
    now, _ = provenance.commit()
    known = [believed(folder / entry.name, parent=False) for entry in manifest.points]
    others = [s.commit for s in known if s.status in RESULTS and s.commit not in (None, now)]
    if others:
        log.warning(
            "results kept of %d point(s) that other code ran (commit %s, now %s)",
            len(others),
            ", ".join(sorted({str(commit)[:8] for commit in others})),
            (now or "none")[:8],
        )


def _within(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith((f"{section}.", f"{section}/")) for section in sections)
