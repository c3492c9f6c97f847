"""Tables within the width of a terminal: headings and words wrap, and columns that still do not fit go.

A cell of figures is never broken. The lightest column is left out first (``Column.weight``), of equal ones
the last; the first column, which names the rows, stays.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.cells import cell_len

from qa_arch.results.columns import Column

if TYPE_CHECKING:
    from rich.console import Console

BORDER, RULE = 1, 3
"""Characters of a frame: at the left edge, and for each column its padding and the line behind it."""
NARROW, LONG = 12, 20
"""A column of words is at least as wide as the first, if its cells are, and as its longest word, up to the
second."""


@dataclass(frozen=True)
class Layout:
    """Columns that fit, by their places in the table, their widths, and the headings of those left out."""

    places: Sequence[int]
    widths: Sequence[int]
    left_out: Sequence[str]


def terminal_width() -> int | None:
    """Characters in a line of standard output; None where it is no terminal, and lines have no end."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def terminal_console(width: int) -> Console:
    """What prints to standard output in lines of ``width``, to a terminal without control codes as well."""
    from rich.console import Console

    return Console(width=width, height=25)  # with the width alone rich takes 80 for TERM=dumb


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int) -> Layout:
    """The layout of ``cells``, headings first, in ``width`` characters."""
    texts = [[row[place] for row in cells] for place in range(len(columns))]
    least = [_least(column, *text) for column, text in zip(columns, texts, strict=True)]
    places = list(range(len(columns)))
    while len(places) > 1 and _framed([least[place] for place in places]) > width:
        places.remove(min(places[1:], key=lambda place: (columns[place].weight, -place)))
    natural = [max(map(cell_len, texts[place])) for place in places]
    left_out = [columns[place].heading for place in range(len(columns)) if place not in places]
    return Layout(places, _widened([least[place] for place in places], natural, width), left_out)


def _least(column: Column, heading: str, *cells: str) -> int:
    """The narrowest that a column is drawn: headings wrap at words, cells only where they are words."""
    longest = max(map(cell_len, cells), default=0)
    if column.left:
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        longest = min(longest, max(NARROW, min(word, LONG)))
    return max(longest, *map(cell_len, heading.split() or [""]))


def _framed(widths: Sequence[int]) -> int:
    return BORDER + sum(width + RULE for width in widths)


def _widened(widths: Sequence[int], natural: Sequence[int], total: int) -> list[int]:
    """``widths`` with what is left of ``total``, the narrowest first, none beyond its natural width."""
    grown = list(widths)
    spare = total - _framed(grown)
    while spare > 0 and (short := [n for n, width in enumerate(grown) if width < natural[n]]):
        grown[min(short, key=grown.__getitem__)] += 1
        spare -= 1
    return grown
