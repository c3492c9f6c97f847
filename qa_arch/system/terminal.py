"""Text on its way to a terminal: what came from a file or from a record gives the terminal no orders.

``guarded`` stands before standard output and standard error of a command, so that every ``print``, log
message and error goes through it. Rich draws with sequences of its own and goes around it: ``console`` makes
the consoles of this package, which guard the texts that they draw.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]|[\ud800-\udfff]")
"""Controls but tab and line end, signs that turn the direction of what follows, halves of pairs."""
_BAR = re.compile(r"\r|(\x1b\[A)+")
"""How progress bars of libraries begin a write: back to the start of the line, or lines up and no more."""


def shown(text: str) -> str:
    """``text`` without colours, every other control sign as JSON writes it (``\\u001b``); lines stay."""
    return _CONTROL.sub(lambda sign: f"\\u{ord(sign[0]):04x}", _COLOUR.sub("", text))


def clock(seconds: float) -> str:
    """``1:02:03`` or ``2:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Guarded:
    """A stream of text that writes what ``shown`` makes of it, and is ``stream`` in everything else."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich's consoles write to what has this name

    def write(self, text: str) -> int:
        bar = _BAR.match(text)
        begin = bar[0] if bar and (bar[0] == "\r" or bar[0] == text) else ""
        self.rich_proxied_file.write(begin + shown(text[len(begin) :]))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


@contextmanager
def guarded() -> Iterator[None]:
    """Standard output and standard error are guarded in the block."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Guarded(stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def console(**options: Any) -> Console:
    """A console of rich, with its ``options``, that draws texts as ``shown`` gives them."""
    from rich.console import Console
    from rich.segment import Segment

    class GuardedConsole(Console):
        def render(self, *arguments: Any, **options: Any) -> Iterator[Segment]:
            for segment in super().render(*arguments, **options):
                own = segment.control or segment.text.isprintable()
                yield segment if own else Segment(shown(segment.text), segment.style)

    # Named here: once a bar is live, sys.stderr stands for the bar's console and no longer for the stream.
    stream = sys.stderr if options.get("stderr") else sys.stdout
    return GuardedConsole(**{"file": stream, **options})
