"""Progress bars of prediction, shown only if standard error is a terminal."""

from __future__ import annotations

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

from qa_arch.system import terminal


@contextmanager
def watching(doing: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield ``watch(done, total)``; the bar is removed at the end."""
    with _progress(TextColumn(doing), BarColumn(), MofNCompleteColumn(), TextColumn(unit)) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def watching_file(doing: str, unit: str) -> Iterator[Callable[[int, int | None, int], None]]:
    """Yield ``watch(bytes done, total bytes, units done)``: time left is by bytes, the rate in units."""
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
    """A bar on standard error if that is a terminal; standard output stays free for answers."""
    console = terminal.console(stderr=True)
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        disable=not console.is_terminal,
    )
