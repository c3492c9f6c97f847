"""Progress of prediction: a bar if standard error is a terminal, else lines in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from qa_arch import terminal

log = logging.getLogger(__name__)
EVERY_SECONDS = 30.0
"""Seconds between lines in the log."""


@contextmanager
def watching(doing: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield ``watch(done, total)``; the bar is removed at the end."""
    if not terminal.console(stderr=True).is_terminal:
        yield _lines(doing, unit)
        return
    with _progress(TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(unit)) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def watching_file(doing: str, unit: str) -> Iterator[Callable[[int, int | None, int], None]]:
    """Yield ``watch(bytes done, total bytes, units done)``: time left is by bytes, the rate in units."""
    if not terminal.console(stderr=True).is_terminal:
        yield _lines(doing, unit)
        return
    speed = TextColumn(f"{{task.fields[count]:,}} {unit}, {{task.fields[rate]:,.0f}}/s")
    with _progress(TextColumn(doing), BarColumn(), DownloadColumn(), speed) as bar:
        task = bar.add_task(doing, total=None, count=0, rate=0.0)
        first: tuple[float, int] | None = None

        def watch(done: int, total: int | None, count: int) -> None:
            nonlocal first
            if first is None:  # the rate counts neither the loading of the model nor earlier progress
                first = time.monotonic(), count
                bar.reset(task, total=total, completed=done, count=count)
                return
            rate = (count - first[1]) / max(time.monotonic() - first[0], 1e-9)
            bar.update(task, completed=done, total=total, count=count, rate=rate)

        yield watch


def _progress(*columns: ProgressColumn) -> Progress:
    """A bar on standard error; standard output stays free for answers."""
    console = terminal.console(stderr=True)
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, redirect_stdout=False)


def _lines(doing: str, unit: str) -> Callable[..., None]:
    """``watch`` as above that logs units done, rate and time left."""
    first: tuple[float, int, int] | None = None
    last = 0.0

    def watch(done: int, total: int | None, count: int | None = None) -> None:
        nonlocal first, last
        now, units = time.monotonic(), done if count is None else count
        if first is None:
            first, last = (now, done, units), now
        elif now - last >= EVERY_SECONDS:
            last, seconds = now, now - first[0]
            of_all = f" of {total:,}" if total and count is None else ""
            figures = [f"{units:,}{of_all} {unit}", f"{(units - first[2]) / seconds:,.1f}/s"]
            if total:
                left = seconds * (total - done) / max(done - first[1], 1)
                figures.append(f"{terminal.clock(left)} left")
            log.info("%s: %s", doing, ", ".join(figures))

    return watch
