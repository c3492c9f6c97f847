"""Progress display of a running sweep: a live table on a terminal, else one log line per change."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from qa_arch.sweep.state import Entry
from qa_arch.sweep.view import line, rows, table

log = logging.getLogger(__name__)
REFRESH = 1.0
"""Seconds between two refreshes from the records."""


class Display:
    """Callback of ``schedule.run``, called on every change of a point."""

    def __init__(self, folder: Path, entries: Sequence[Entry], live: Live | None) -> None:
        self.folder, self.entries, self.live = folder, list(entries), live
        self.last_drawn = 0.0

    def __call__(self, changed: Entry | None) -> None:
        if self.live is None:
            if changed is not None:
                (row,) = rows(self.folder, [changed], parent=True)
                number = [entry.key for entry in self.entries].index(changed.key) + 1
                log.info("[%d/%d] %s", number, len(self.entries), line(row))
        elif changed is not None or time.monotonic() - self.last_drawn >= REFRESH:
            self.draw()

    def draw(self) -> None:
        assert self.live is not None
        self.live.update(table(str(self.folder), rows(self.folder, self.entries, parent=True)), refresh=True)
        self.last_drawn = time.monotonic()


@contextmanager
def watching(folder: Path, entries: Sequence[Entry]) -> Iterator[Any]:
    """Display of a running sweep; the live table is removed at the end."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield Display(folder, entries, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield Display(folder, entries, live)
