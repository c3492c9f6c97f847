"""Safe output to a terminal: text from files and records cannot send it control sequences.

``guarded`` wraps standard output and standard error of a command, so that every ``print``, log message and
error is escaped. Rich writes control sequences of its own and bypasses it: ``console`` creates this package's
consoles, which escape the text that they draw.
"""

from __future__ import annotations

import codecs
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

log = logging.getLogger(__name__)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
"""Control characters except tab and newline, changes of text direction, and lone surrogates."""
_BAR = re.compile(r"\r|(\x1b\[A)+")
"""Start of a write by a library's progress bar: a carriage return, or only cursor-up sequences."""
BAR = 10, 40
"""Minimum and maximum width of a progress bar, in characters."""
EVERY_SECONDS = 30.0
"""Seconds between lines of progress in the log."""


def escape_controls(text: str) -> str:
    """Remove colours and escape other control characters as in JSON (``\\u001b``); newlines stay."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", _COLOUR.sub("", text))


def counted(count: int, noun: str) -> str:
    """``1 run``, ``1,234 runs``: a count with the plural of its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def clock(seconds: float) -> str:
    """Format seconds as ``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Guarded:
    """Text stream that escapes control characters in what is written, and otherwise acts as ``stream``."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich consoles write to the attribute of this name

    def write(self, text: str) -> int:
        bar = _BAR.match(text)
        prefix = bar[0] if bar and (bar[0] == "\r" or bar[0] == text) else ""
        self.rich_proxied_file.write(prefix + escape_controls(text[len(prefix) :]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Escape control characters on standard output and standard error within the block.

    Where standard output is not UTF-8, characters that it cannot encode become question marks. Streams that
    the caller closed (``>&-``) are the null device.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):  # by file descriptor
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115
    streams = sys.stdout, sys.stderr
    if isinstance(sys.stdout, TextIOWrapper) and codecs.lookup(sys.stdout.encoding).name != "utf-8":
        sys.stdout.reconfigure(errors="replace")
    sys.stdout, sys.stderr = (Guarded(stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def console(**options: Any) -> Console:
    """Create a rich console with these ``options`` that escapes control characters in texts, and takes
    neither brackets nor names between colons for markup."""
    from rich.console import Console
    from rich.segment import Segment

    class GuardedConsole(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                is_safe = segment.control or segment.text.isprintable()
                yield segment if is_safe else Segment(escape_controls(segment.text), segment.style)

        def on_broken_pipe(self) -> None:
            raise  # to ``main``; rich would exit with 1

    # Passed explicitly: while a bar is live, sys.stderr is the bar's console, not the stream.
    stream = sys.stderr if options.get("stderr") else sys.stdout
    return GuardedConsole(**{"file": stream, "markup": False, "emoji": False, **options})


def progress_bar(console: Console, *, redirect_stdout: bool = True) -> Progress:
    """One line of ``console`` for each task: its description, a bar, steps (or the field ``steps``), and the
    field ``figures``.

    On a narrow console the last figures are dropped first, then the description is cut; the bar stays.
    """
    from rich.progress import Progress, ProgressColumn, Task
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    class Line(ProgressColumn):
        def render(self, task: Task) -> Table:
            width = console.width
            line = task.fields.get("steps") or f"{task.completed:.0f}/{task.total or 0:.0f}"
            for figure in task.fields["figures"]:
                if len(task.description) + BAR[0] + len(line) + len(figure) + 4 > width:
                    break
                line += f", {figure}"
            title = task.description[: max(0, width - BAR[0] - len(line) - 2)]
            bar = max(BAR[0], min(BAR[1], width - len(title) - len(line) - 2))
            grid = Table.grid(padding=(0, 1))
            grid.add_row(title, ProgressBar(total=task.total, completed=task.completed, width=bar), line)
            return grid

    return Progress(Line(), console=console, transient=True, redirect_stdout=redirect_stdout)


@contextmanager
def watching(doing: str, unit: str) -> Iterator[Callable[..., None]]:
    """Yield ``watch(done, total, count=done)``: a bar on standard error if that is a terminal, else lines in
    the log.

    The rate is that of ``count``, in ``unit``; the time left is by ``done`` of ``total``, unless that is
    None. Both leave out what was done before the first call, such as loading a model.
    """
    screen = console(stderr=True)
    # Standard output is left alone: answers may go there.
    bar = progress_bar(screen, redirect_stdout=False) if screen.is_terminal else None
    first: tuple[float, float, float] | None = None
    logged = 0.0

    def watch(done: float, total: float | None, count: float | None = None) -> None:
        nonlocal first, logged
        now, units = time.monotonic(), done if count is None else count
        of_all = f" of {total:,.0f}" if total and count is None else ""
        steps = f"{units:,.0f}{of_all} {unit}"
        if first is None:
            first, logged = (now, done, units), now
            if bar:
                bar.add_task(doing, completed=int(done), total=total, steps=steps, figures=())
            return
        seconds = max(now - first[0], 1e-9)
        figures = [f"{(units - first[2]) / seconds:,.1f}/s"]
        if total:
            left = seconds * (total - done) / max(done - first[1], 1)
            figures.append(f"{clock(left)} left")
        if bar:
            bar.update(bar.task_ids[0], completed=done, total=total, steps=steps, figures=figures)
        elif now - logged >= EVERY_SECONDS:
            logged = now
            log.info("%s: %s", doing, ", ".join([steps, *figures]))

    with bar or nullcontext():
        yield watch
