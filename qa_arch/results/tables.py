"""Tables for people and programs: in a terminal, a notebook, Markdown and LaTeX, as CSV and JSON.

A terminal has a width: headings and words wrap, cells of figures never break, and columns that still do not
fit are left out, the lightest first (``Column.weight``), of equal ones the last. The first column, which
names the rows, stays.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from textwrap import fill as fill_text
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.cells import cell_len

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("text", "markdown", "latex", "json", "csv")
NOTHING = "–"
"""The text of a cell without a figure."""
BORDER, RULE = 1, 3
"""Characters of a frame: at the left edge, and for each column its padding and the line behind it."""
NARROW, LONG = 12, 20
"""A column of words is at least as wide as the first, if its cells are, and as its longest word, up to the
second."""


def plain(value: Any) -> str:
    """The text of a figure, as the field prints it: scores to one decimal, counts with separators."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Column:
    """One column: its key in the row of a program, its heading and its text for people."""

    key: str
    heading: str
    value: Callable[[Any], Any] | None = None
    """The figure of a run (``results.columns.Scored``); None where the maker of the table computes it."""
    applies: Callable[[Any], bool] = lambda scored: True
    """The rows of programs (CSV, JSON) hold the figure where this is true."""
    left: bool = False
    """Text, aligned to the left."""
    format: Callable[..., str] = plain
    parts: tuple[str, ...] = ()
    """The figures of a row that the text is made of, where it is not ``key`` alone."""
    on_request: bool = False
    """Computed only in tables that show it; otherwise programs are given it in every row."""
    says_status: bool = False
    """Where a run did not end well, this cell says how it ended."""
    weight: int = 0
    """On a terminal that is too narrow for a table the lightest column is left out first, of equal ones the
    last."""
    mark: tuple[str, str] | None = None
    """Colour and marker of its panel in a dot plot; None for what is no percentage. The colours are those of
    Okabe & Ito 2008, which differ for every kind of colour vision."""

    def text(self, row: Mapping[str, Any]) -> str:
        """The cell of the row as people read it, a dash where there is nothing."""
        if self.says_status and row.get("status", "ok") != "ok":
            return str(row["status"]).upper()
        values = [row.get(key) for key in self.parts or (self.key,)]
        return NOTHING if values[0] is None else self.format(*values)


@dataclass(frozen=True)
class Table:
    """Rows for people and programs: people see ``columns``, programs every figure of a row."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        return markdown(self)

    def _repr_html_(self) -> str:
        """For a notebook: a ``div`` in the colours of the page, every text escaped."""
        from pandas import DataFrame

        headings, *rows = cells(self)
        table = DataFrame(rows, columns=headings).to_html(index=False, border=0)
        notes = "".join(f'<div style="opacity:.7">{escape(note)}</div>' for note in self.notes)
        return f'<div style="overflow-x:auto"><b>{escape(self.title)}</b>{table}{notes}</div>'

    def to_frame(self) -> DataFrame:
        """A row each with every figure in full, by the keys of programs (CSV, JSON)."""
        from pandas import DataFrame

        return DataFrame([dict(row) for row in self.rows])

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


def text(key: str, heading: str, *, weight: int = 0) -> Column:
    """A column of words, of a table whose maker fills it."""
    return Column(key, heading, left=True, weight=weight)


def number(
    key: str,
    heading: str,
    format: Callable[..., str] = plain,
    parts: tuple[str, ...] = (),
    *,
    weight: int = 0,
) -> Column:
    """A column of figures, of a table whose maker fills it."""
    return Column(key, heading, format=format, parts=parts, weight=weight)


def two_decimals(value: float) -> str:
    return f"{value:.2f}"


def render(tables: Sequence[Table], form: str, width: int | None = None) -> str:
    """The tables in one of ``FORMATS``, ending in a line end; as text within ``width`` if that is given."""
    if form == "json":
        return json.dumps([table.as_dict() for table in tables], indent=2, ensure_ascii=False) + "\n"
    if form == "csv":
        return _csv(tables)
    if form == "text":
        return "\n".join(_text(table, width) for table in tables)
    draw = {"markdown": markdown, "latex": latex}[form]
    return "\n".join(draw(table) for table in tables)


def print_table(*tables: Table, form: str = "text") -> None:
    """On a terminal tables that fit it, into a pipe the whole tables."""
    sys.stdout.write(render(tables, form, terminal_width()))


def cells(table: Table) -> list[list[str]]:
    """The table as people read it: the headings, then a line a row."""
    headings = [column.heading for column in table.columns]
    return [headings, *([column.text(row) for column in table.columns] for row in table.rows)]


def _csv(tables: Sequence[Table]) -> str:
    """All rows below one header, with the table's title first and every figure in full."""
    keys = dict.fromkeys(key for table in tables for row in table.rows for key in row)
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(map(_inert, ["table", *keys]))
    for table in tables:
        writer.writerows([_inert(table.title), *(_inert(row.get(key)) for key in keys)] for row in table.rows)
    return page.getvalue()


_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d*\.?\d+(e[+-]?\d+)?$)")
"""How a text begins that a spreadsheet computes; a signed number is none."""


def _inert(value: Any) -> Any:
    """``value`` for a spreadsheet, which shows the rest of a text behind an apostrophe as it is."""
    if not isinstance(value, str):
        return value
    # Python 3.11 leaves a carriage return unquoted, and readers take it for the end of the row.
    return ("'" if _FORMULA.match(value) else "") + value.replace("\r", " ")


def markdown(table: Table, *, titled: bool = True) -> str:
    """The table as GitHub's Markdown below its title, the notes below it."""
    head = [f"## {one_line(table.title)}", ""] if titled else []
    headings, *rows = ("| " + " | ".join(map(markdown_cell, row)) + " |" for row in cells(table))
    rule = "|" + "|".join("---" if column.left else "---:" for column in table.columns) + "|"
    notes = (f"- {one_line(note)}" for note in table.notes)
    return "\n".join([*head, headings, rule, *rows, "", *notes]).rstrip() + "\n"


def one_line(text: str) -> str:
    """``text`` with spaces in place of line ends."""
    return " ".join(text.splitlines())


def markdown_cell(text: str) -> str:
    """``text`` within one cell of a Markdown table."""
    return one_line(text).replace("|", r"\|")


def fill(page: str, slug: str, tables: Sequence[Table]) -> str:
    """``page`` with an experiment's tables where it asks for them.

    The first stands between ``<!-- table: SLUG -->`` and ``<!-- end -->``, the second between
    ``<!-- table: SLUG 2 -->`` and the same, and so on.
    """
    for place, table in enumerate(tables, start=1):
        mark = f"table: {slug}" + (f" {place}" if place > 1 else "")
        page = fill_between(page, mark, markdown(table, titled=False))
    return page


def fill_between(page: str, mark: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- MARK -->`` and ``<!-- end -->``, wherever these stand."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{text.strip()}\n\n{end}", page, flags=re.DOTALL)


_SIGNS = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "<": r"\textless{}",  # without these three pdflatex's own font shows other signs
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "…": r"\dots{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": r"$-$",
    "Δ": r"$\Delta$",
}
_SIGNS_OF_CODE = _SIGNS | {
    "_": r"\char95{}",  # \_ is a rule where the font's encoding is the default one, and copied as a space
    "'": r"\textquotesingle{}",
}
_CODE = re.compile(r"(`[^`]+`|(?<![\w-])--[a-z][\w-]*)")
"""Code between backticks, and options without them."""


def latex(table: Table) -> str:
    """The table as LaTeX, its title as caption, no wider than the page; its notes below, a paragraph each."""
    head, *body = (" & ".join(map(_escaped, map(one_line, row))) + r" \\" for row in cells(table))
    below = [
        "",
        r"\smallskip",
        r"\begin{minipage}{\linewidth}",
        r"\footnotesize\raggedright",
        "\n\n".join(map(_latex_note, table.notes)),
        r"\end{minipage}",
    ]  # outside the tabular, whose columns they would stretch
    lines = [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escaped(one_line(table.title))}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{{''.join('l' if column.left else 'r' for column in table.columns)}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}}",
        *(below if table.notes else []),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _latex_note(note: str) -> str:
    """A note whose commands can be copied."""
    parts = enumerate(_CODE.split(note))  # what matches stands at the odd places
    made = (
        rf"\texttt{{{_escaped(part.strip('`'), _SIGNS_OF_CODE)}}}" if n % 2 else _escaped(part)
        for n, part in parts
    )
    return "".join(made)


def _escaped(text: str, signs: Mapping[str, str] = _SIGNS) -> str:
    """``text`` as LaTeX shows it: nothing in it is a command."""
    some = "".join(map(re.escape, signs))
    # A hyphen before another one is kept away from it: two in a row are a dash.
    return re.sub(f"-(?=-)|[{some}]", lambda match: signs.get(match[0], "-{}"), text)


def terminal_width() -> int | None:
    """Characters in a line of standard output; None where it is no terminal, and lines have no end."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _text(table: Table, width: int | None) -> str:
    """The table and a line a note, within ``width``, and a note of what the table had no place for."""
    from rich.console import Console

    layout = fit(table.columns, cells(table), width or inf)
    page = io.StringIO()
    Console(file=page, width=width or _framed(layout.widths)).print(drawn(table, width or inf))
    if width is None:
        return page.getvalue() + "".join(f"  {note}\n" for note in table.notes)
    notes = list(table.notes)
    if layout.left_out:
        shown = f"not shown in {width} characters: {', '.join(layout.left_out)}"
        notes.append(f"{shown}; a wider terminal or a pipe (| cat) has every column")
    wrapped = (fill_text(note, width, initial_indent="  ", subsequent_indent="    ") for note in notes)
    return page.getvalue() + "".join(f"{note}\n" for note in wrapped)


def drawn(table: Table, width: float) -> Any:
    """The table for a rich console, within ``width``."""
    from rich.markup import escape as literal
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(title=literal(table.title) or None, title_justify="left")
    lines = cells(table)
    layout = fit(table.columns, lines, width)
    for place, own in zip(layout.places, layout.widths, strict=True):
        column = table.columns[place]
        drawn.add_column(
            column.heading, justify="left" if column.left else "right", overflow="fold", width=own
        )
    for row in lines[1:]:
        drawn.add_row(*(Text(row[place]) for place in layout.places))  # brackets are no markup
    return drawn


class Layout(NamedTuple):
    """Columns that fit, by their places in the table, their widths, and the headings of those left out."""

    places: Sequence[int]
    widths: Sequence[int]
    left_out: Sequence[str]


def fit(columns: Sequence[Column], cells: Sequence[Sequence[str]], width: float) -> Layout:
    """The layout of ``cells``, headings first, in ``width`` characters."""
    texts = [[row[place] for row in cells] for place in range(len(columns))]
    least = [_least(column, *text) for column, text in zip(columns, texts, strict=True)]
    places = list(range(len(columns)))
    while len(places) > 1 and _framed([least[place] for place in places]) > width:
        places.remove(min(places[1:], key=lambda place: (columns[place].weight, -place)))
    natural = [max(map(cell_len, texts[place])) for place in places]
    left_out = [columns[place].heading for place in range(len(columns)) if place not in places]
    widths = [least[place] for place in places]
    while _framed(widths) < width and (short := [n for n, own in enumerate(widths) if own < natural[n]]):
        widths[min(short, key=widths.__getitem__)] += 1  # what is left goes to the narrowest first
    return Layout(places, widths, left_out)


def _least(column: Column, heading: str, *cells: str) -> int:
    """The narrowest that a column is drawn: headings wrap at words, cells only where they are words."""
    longest = max(map(cell_len, cells), default=0)
    if column.left:
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        longest = min(longest, max(NARROW, min(word, LONG)))
    return max(longest, *map(cell_len, heading.split() or [""]))


def _framed(widths: Sequence[int]) -> int:
    return BORDER + sum(width + RULE for width in widths)
