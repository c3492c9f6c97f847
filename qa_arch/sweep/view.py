"""A sweep as it stands, for people and for programs."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qa_arch.sweep.points import title
from qa_arch.sweep.remedy import remedy
from qa_arch.sweep.state import Entry, believed, record_of, value_of

STYLES = {"ok": "green", "running": "cyan", "oom": "yellow", "failed": "red", "killed": "magenta"}
LEGEND = ("ok", "running", "queued", "oom", "failed", "killed")


@dataclass(frozen=True)
class Row:
    """One point. ``f1`` is that of calibration; ``epoch`` counts whole epochs of ``epochs``."""

    point: str
    status: str
    epoch: int
    epochs: int | None
    f1: float | None
    seconds: float | None
    memory_mb: float | None
    attempts: int
    commit: str | None
    error: str | None
    remedy: str | None
    folder: str

    @property
    def note(self) -> str:
        return f"try {self.remedy}" if self.remedy else self.error or ""


def rows(folder: Path, entries: Sequence[Entry], *, parent: bool) -> list[Row]:
    """The points in order. ``parent``: the sweep's own process lives."""
    return [_row(folder / entry.name, entry, parent=parent) for entry in entries]


def _row(folder: Path, entry: Entry, *, parent: bool) -> Row:
    status = believed(folder, parent=parent)
    record = record_of(folder)
    epochs = record.epochs if record else ()
    f1 = value_of(record)
    if f1 is None and epochs:
        f1 = epochs[-1].value("calibration_f1")
    return Row(
        point=title(entry.overrides),
        status=status.status,
        epoch=len(epochs),
        epochs=record.config["trainer"]["epochs"] if record else None,
        f1=f1,
        seconds=_seconds(status.started, status.ended if status.status != "running" else None),
        memory_mb=record.peak_memory_mb if record else None,
        attempts=status.attempts,
        commit=status.commit,
        error=status.error,
        remedy=remedy(record.config) if record and status.status == "oom" else None,
        folder=str(folder),
    )


def counts(shown: Sequence[Row]) -> str:
    """``6 points: 4 ok, 1 oom, 1 failed``."""
    found = Counter(row.status for row in shown)
    said = ", ".join(f"{found[status]} {status}" for status in LEGEND if found[status])
    return f"{len(shown)} point{'s' * (len(shown) != 1)}: {said}"


def as_dict(folder: Path, shown: Sequence[Row]) -> dict[str, Any]:
    """For programs: the counts by status and every row."""
    return {
        "sweep": str(folder),
        "counts": dict(Counter(row.status for row in shown)),
        "points": [asdict(row) for row in shown],
    }


def table(heading: str, shown: Sequence[Row]) -> Any:
    """A rich table; notes and attempts are left out where there is nothing to tell."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(heading), title_justify="left", caption=counts(shown), caption_justify="left")
    drawn.add_column("point", overflow="fold")
    drawn.add_column("status", no_wrap=True)
    again = any(row.attempts > 1 for row in shown)
    for name in (*(["attempts"] if again else []), "epoch", "F1", "time", "MiB"):
        drawn.add_column(name, justify="right", no_wrap=True)
    noted = any(row.note for row in shown)
    if noted:
        drawn.add_column("note", overflow="fold")
    for row in shown:
        memory = f"{row.memory_mb:,.0f}" if row.memory_mb else ""
        drawn.add_row(
            Text(row.point),
            Text(row.status, STYLES.get(row.status, "")),
            *([str(row.attempts or "")] if again else []),
            f"{row.epoch}/{row.epochs}" if row.epochs else "",
            f"{row.f1:.1f}" if row.f1 is not None else "",
            clock(row.seconds),
            memory,
            *([Text(row.note)] if noted else []),
        )
    return drawn


def line(row: Row) -> str:
    """One point in a log."""
    said = [row.status, row.point]
    if row.f1 is not None and row.status != "running":
        said.append(f"calibration F1 {row.f1:.1f}")
    if row.seconds is not None and row.status != "running":
        said.append(f"in {clock(row.seconds)}")
    return ", ".join([" ".join(said[:2]), *said[2:]]) + (f": {row.note}" if row.note else "")


def clock(seconds: float | None) -> str:
    """``1:02:03`` or ``2:03``; nothing for None."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _seconds(started: str | None, ended: str | None) -> float | None:
    if started is None:
        return None
    end = datetime.datetime.fromisoformat(ended) if ended else datetime.datetime.now(datetime.UTC)
    return (end - datetime.datetime.fromisoformat(started)).total_seconds()
