"""Files of a sweep: the manifest, and the status of each point.

``sweep.json`` lists the points. Each has an ordinary run folder with a ``status.json`` beside the record. A
stored status may be outdated: a point is ``running`` while its lock is held, and ``ok`` if its record is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from json import JSONDecodeError
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from qa_arch.config.check import FolderName, read
from qa_arch.config.files import read_json, write_json
from qa_arch.config.schema import objective
from qa_arch.errors import ConfigError, RunError
from qa_arch.records import CALIBRATION, RECORD, RunRecord, read_record
from qa_arch.system import lock

SCHEMA_VERSION = 1
MANIFEST = "sweep.json"
STATUS = "status.json"
LOG = "log.txt"
DAMAGED = "damaged"
"""Folder of a sweep with what was moved out of points whose records are damaged."""
CONFIG = "config.yaml"
TRACEBACK = "traceback.txt"
STUDY = "study.journal"
"""Optuna's journal, if Optuna chose the points."""
State = Literal["queued", "running", "ok", "oom", "failed", "killed"]
VISIBLE = "CUDA_VISIBLE_DEVICES"
ALL_DEVICES = -1
"""``Entry.devices`` of a point that takes all devices it sees."""
RESULTS = ("ok", "oom")
"""States with a result: such points run again only on request."""
AGAIN = "start the sweep again in another folder"
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A point in the manifest; ``name`` is its folder."""

    name: Annotated[str, FolderName()]
    key: str
    overrides: list[str]
    devices: int


@dataclass(frozen=True)
class Manifest:
    """A sweep: fixed overrides, swept settings, and every point requested so far."""

    fixed: list[str]
    """Overrides that all points share."""
    swept: list[str]
    """Names of the swept settings."""
    created: str
    cwd: str
    """Base folder of relative paths in the configs; only there can the sweep be resumed."""
    trusted: list[str]
    """The ``--trust`` it was started with; this and ``config_dir`` must be given again to resume it."""
    settings: dict[str, Any]
    points: list[Entry] = field(default_factory=list)
    commit: str | None = None
    config_dir: str | None = None
    """The ``--config-dir``, from which points also import trusted packages."""
    schema: int = SCHEMA_VERSION

    def continued_by(self, other: Manifest) -> bool:
        """Whether ``other`` is the same sweep, possibly with more points."""
        if (self.fixed, self.swept) == (other.fixed, other.swept):
            return True
        return {point.key for point in self.points} <= {point.key for point in other.points}

    def with_points(self, entries: Sequence[Entry]) -> Manifest:
        """Add or update ``entries``; a known point keeps its folder, even if its name has changed."""
        points = {point.key: point for point in self.points}
        names = {key: point.name for key, point in points.items()}
        points |= {entry.key: replace(entry, name=names.get(entry.key, entry.name)) for entry in entries}
        return replace(self, points=list(points.values()))


@dataclass(frozen=True)
class Status:
    """Status of a point."""

    status: State = "queued"
    attempts: int = 0
    started: str | None = None
    ended: str | None = None
    error: str | None = None
    commit: str | None = None
    """Commit of the last attempt."""

    def write(self, folder: Path) -> None:
        write_json(folder / STATUS, asdict(self))


def read_manifest(folder: Path) -> Manifest:
    """Manifest of the sweep in ``folder``; RunError if it is missing or unreadable."""
    path = folder / MANIFEST
    if not path.is_file():
        raise RunError(f"{folder}: contains no sweep ({MANIFEST} is missing); give a sweep's folder")
    raw = read_json(path, AGAIN)
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_VERSION:
        raise RunError(f"{path}: is not of schema {SCHEMA_VERSION}, which this version reads; {AGAIN}")
    return _build(Manifest, raw, path)


def read_status(folder: Path) -> Status:
    """Stored status of a point, which may be outdated."""
    path = folder / STATUS
    if not path.is_file():
        return Status()
    return _build(Status, read_json(path, AGAIN), path)


def actual_status(folder: Path, *, parent: bool) -> Status:
    """Actual status of a point. ``parent``: whether the sweep is alive and will write the final status."""
    status = read_status(folder)
    if lock.holder(folder):
        return replace(status, status="running", error=None)
    record = record_of(folder)
    if record is not None and record.status == "ok":
        return replace(status, status="ok", error=None)
    if status.status == "ok":
        return replace(status, status="failed", error=f"its {RECORD} is missing or damaged")
    if status.status != "running" or parent:
        return status
    if record is not None and record.status in ("oom", "failed"):
        return replace(status, status=record.status, error=record.error)
    return replace(status, status="killed", error="the sweep was killed while it ran")


def record_of(folder: Path) -> RunRecord | None:
    """Record of the run; None if there is none yet, or if its file is not JSON.

    Raises RunError for a record that may be a good one: of another version, or unreadable for the moment.
    """
    try:
        return read_record(folder) if (folder / RECORD).exists() else None
    except OSError as error:
        raise RunError(f"{folder / RECORD}: cannot be read ({error.strerror}); correct the folder") from error
    except RunError as error:
        if isinstance(error.__cause__, JSONDecodeError):
            return None
        raise


def value_of(record: RunRecord | None) -> float | None:
    """Calibration score that a sweeper maximises, at the fitted null threshold if there is one; None if not
    yet known."""
    if record is None or (point := record.compared_point(CALIBRATION)) is None:
        return None
    value = point.metric(objective(record.config.get("model", {})))
    return None if value is None else float(value)


def _build(kind: type[T], raw: Any, path: Path) -> T:
    try:
        return read(kind, raw)
    except ConfigError as error:
        raise RunError(f"{path}: {error}; {AGAIN}") from error
