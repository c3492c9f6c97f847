"""Status of a sweep, one row per point: as a table, log lines or JSON, and live while it runs."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from qa_arch import provenance
from qa_arch.config.schema import OOM_REMEDY
from qa_arch.errors import RunError
from qa_arch.sweep.points import title
from qa_arch.sweep.state import VALUES, Entry, Status, actual_status, record_of, value_of
from qa_arch.system import terminal

log = logging.getLogger(__name__)
REFRESH = 1.0
"""Seconds between refreshes from the records."""
STYLES = {
    "ok": "green", "running": "cyan", "queued": "", "oom": "yellow", "failed": "red", "killed": "magenta"
}  # fmt: skip
"""State of a point -> style, in the order of the caption."""


@dataclass(frozen=True)
class Row:
    """One point. ``f1`` is calibration F1, or accuracy if there is none; ``epoch`` counts whole epochs."""

    point: str
    status: str
    epoch: int
    epochs: int | None
    f1: float | None
    seconds: float | None
    memory_mb: float | None
    attempts: int
    commit: str | None
    pretrains: bool
    """Whether ``f1`` is the token accuracy of pre-training."""
    error: str | None
    remedy: str | None
    folder: str

    @property
    def note(self) -> str:
        return f"try {self.remedy}" if self.remedy else self.error or ""


def rows(folder: Path, entries: Sequence[Entry], *, parent: bool) -> list[Row]:
    """Status rows of the points. ``parent``: whether the sweep's process is alive."""
    status_rows = []
    for entry in entries:
        point_folder = folder / entry.name
        try:
            status, record = actual_status(point_folder, parent=parent), record_of(point_folder)
        except RunError as error:
            status, record = Status("failed", error=str(error)), None
        epochs, f1 = record.epochs if record else (), value_of(record)
        if f1 is None and epochs:
            last = (epochs[-1].value(f"calibration_{name}") for name in VALUES)
            f1 = next((value for value in last if value is not None), None)
        row = Row(
            point=title(entry.overrides),
            status=status.status,
            epoch=len(epochs),
            epochs=record.setting("trainer", "epochs") if record else None,
            f1=f1,
            seconds=_seconds(status),
            memory_mb=record.peak_memory_mb if record else None,
            attempts=status.attempts,
            commit=status.commit,
            pretrains=record is not None and record.pretrains,
            error=status.error,
            remedy=OOM_REMEDY if status.status == "oom" else None,
            folder=str(point_folder),
        )
        status_rows.append(row)
    return status_rows


def table(heading: str, rows: Sequence[Row]) -> Any:
    """Rich table of the points, without empty columns for notes and attempts."""
    from rich.table import Table
    from rich.text import Text

    counted = Counter(row.status for row in rows)
    states = ", ".join(f"{counted[status]} {status}" for status in STYLES if counted[status])
    caption = f"{len(rows)} point{'s' * (len(rows) != 1)}: {states}"
    grid = Table(title=heading, title_justify="left", caption=caption, caption_justify="left")
    grid.add_column("point", overflow="fold")
    grid.add_column("status", no_wrap=True)
    retried = any(row.attempts > 1 for row in rows)
    for name in (*(["attempts"] if retried else []), "epoch", _score_name(rows), "time", "MiB"):
        grid.add_column(name, justify="right", no_wrap=True)
    has_notes = any(row.note for row in rows)
    if has_notes:
        grid.add_column("note", overflow="fold")
    for row in rows:
        grid.add_row(
            row.point,
            Text(row.status, STYLES[row.status]),
            *([str(row.attempts or "")] if retried else []),
            f"{row.epoch}/{row.epochs}" if row.epochs else "",
            f"{row.f1:.1f}" if row.f1 is not None else "",
            terminal.clock(row.seconds) if row.seconds is not None else "",
            f"{row.memory_mb:,.0f}" if row.memory_mb else "",
            *([row.note] if has_notes else []),
        )
    return grid


def line(row: Row) -> str:
    """Log line of one point."""
    parts = [row.status, row.point]
    if row.f1 is not None and row.status != "running":
        parts.append(f"calibration {_score_name([row])} {row.f1:.1f}")
    if row.seconds is not None and row.status != "running":
        parts.append(f"in {terminal.clock(row.seconds)}")
    return ", ".join([" ".join(parts[:2]), *parts[2:]]) + (f": {row.note}" if row.note else "")


def _score_name(rows: Sequence[Row]) -> str:
    """Name of the score in ``Row.f1``."""
    return "token accuracy" if rows and all(row.pretrains for row in rows) else "F1"


def _seconds(status: Status) -> float | None:
    """Time of the last attempt, so far if it is running; None if its end is unknown."""
    ended = provenance.now() if status.status == "running" else status.ended
    if status.started is None or ended is None:
        return None
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(status.started)).total_seconds()


@contextmanager
def watching(folder: Path, entries: Sequence[Entry]) -> Iterator[Callable[[Entry | None], None]]:
    """Yield the ``watch`` of ``schedule.run``: on a terminal it updates a live table, which is removed at the
    end; elsewhere it logs a line for each change of a point."""
    from rich.live import Live

    console, keys = terminal.console(stderr=True), [entry.key for entry in entries]

    def log_change(changed: Entry | None) -> None:
        if changed is not None:
            (row,) = rows(folder, [changed], parent=True)
            log.info("[%d/%d] %s", keys.index(changed.key) + 1, len(keys), line(row))

    if not console.is_terminal:
        yield log_change
        return
    drawn = 0.0

    def draw(changed: Entry | None) -> None:
        nonlocal drawn
        if changed is not None or time.monotonic() - drawn >= REFRESH:
            live.update(table(str(folder), rows(folder, entries, parent=True)), refresh=True)
            drawn = time.monotonic()

    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield draw
