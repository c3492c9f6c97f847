"""Tables for people and programs: text, notebook, Markdown, LaTeX, CSV and JSON.

In a terminal, headings and words wrap but numbers do not; columns that still do not fit are left out, the
lowest ``Column.weight`` first, on ties the rightmost. The first column, which names the rows, always stays.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from textwrap import fill as fill_text
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len

from qa_arch.files import finite, plain_json

if TYPE_CHECKING:
    from pandas import DataFrame

FORMATS = ("text", "markdown", "latex", "json", "csv")
EMPTY = "–"
"""Text of an empty cell."""
BORDER, RULE = 1, 3
"""Width of the frame: the left edge, and the padding and rule of each column."""
NARROW, LONG = 13, 20
"""A text column is at least as wide as its widest cell, up to the first, and as its longest word, up to the
second."""


def plain(value: Any) -> str:
    """Format a value: scores to one decimal, counts with thousands separators."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@dataclass(frozen=True)
class Column:
    """One column: its key in CSV and JSON, its heading and the format of its cells."""

    key: str
    heading: str
    value: Callable[[Any], Any] | None = None
    """Value for a run (``results.columns.Scored``); None if the caller fills the rows."""
    applies: Callable[[Any], bool] = lambda scored: True
    """Whether CSV and JSON rows contain the value."""
    left: bool = False
    """Left-aligned text."""
    format: Callable[..., str] = plain
    parts: tuple[str, ...] = ()
    """Keys of the values that ``format`` takes, if not ``key`` alone."""
    on_request: bool = False
    """Computed only in tables that show it; other columns are in every row of CSV and JSON."""
    says_status: bool = False
    """Show the status of an unsuccessful run in this cell."""
    weight: int = 0
    """Columns with the lowest weight are left out first of a narrow terminal, on ties the rightmost."""
    mark: tuple[str, str] | None = None
    """Colour and marker of its panel in a dot plot; None if it is not a percentage. Colours are from Okabe &
    Ito 2008, distinguishable with any colour vision."""

    def text(self, row: Mapping[str, Any]) -> str:
        """Formatted cell of a row, a dash if it has no value."""
        if self.says_status and row.get("status", "ok") != "ok":
            return str(row["status"]).upper()
        values = [row.get(key) for key in self.parts or (self.key,)]
        return EMPTY if values[0] is None else self.format(*values)


@dataclass(frozen=True)
class Table:
    """Rows for people and programs: people see ``columns``, CSV and JSON have every value of a row."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        return markdown(self)

    def _repr_html_(self) -> str:
        """HTML for a notebook: a ``div`` in the page's colours, all text escaped."""
        from pandas import DataFrame

        headings, *rows = cells(self)
        table = DataFrame(rows, columns=headings).to_html(index=False, border=0)
        notes = "".join(f'<div style="opacity:.7">{escape(note)}</div>' for note in self.notes)
        return f'<div style="overflow-x:auto"><b>{escape(self.title)}</b>{table}{notes}</div>'

    def to_frame(self) -> DataFrame:
        """Data frame of the rows with all values unrounded, keyed as in CSV and JSON."""
        from pandas import DataFrame

        return DataFrame([dict(row) for row in self.rows])

    def as_dict(self) -> dict[str, Any]:
        """Value for JSON."""
        return {"title": self.title, "rows": finite(self.rows), "notes": list(self.notes)}


def text(key: str, heading: str, *, weight: int = 0) -> Column:
    """Text column of a table whose rows the caller fills."""
    return Column(key, heading, left=True, weight=weight)


def number(
    key: str,
    heading: str,
    format: Callable[..., str] = plain,
    parts: tuple[str, ...] = (),
    *,
    weight: int = 0,
) -> Column:
    """Numeric column of a table whose rows the caller fills."""
    return Column(key, heading, format=format, parts=parts, weight=weight)


def two_decimals(value: float) -> str:
    return f"{value:.2f}"


def render(tables: Sequence[Table], form: str, width: int | None = None) -> str:
    """Render tables in one of ``FORMATS``, ending in a newline; text fits ``width`` if given."""
    if form == "json":
        return plain_json([table.as_dict() for table in tables]) + "\n"
    if form == "csv":
        return _csv(tables)
    if form == "text":
        return "\n".join(_text(table, width) for table in tables)
    draw = {"markdown": markdown, "latex": latex}[form]
    return "\n".join(draw(table) for table in tables)


def print_table(*tables: Table, form: str = "text") -> None:
    """Print tables: fitted to a terminal, or in full into a pipe."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    sys.stdout.write(render(tables, form, width))


def cells(table: Table) -> list[list[str]]:
    """Formatted cells: the headings, then one list per row."""
    headings = [column.heading for column in table.columns]
    return [headings, *([column.text(row) for column in table.columns] for row in table.rows)]


def _csv(tables: Sequence[Table]) -> str:
    """All rows below one header, with the table's title first and values unrounded."""
    keys = dict.fromkeys(key for table in tables for row in table.rows for key in row)
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(map(_inert, ["table", *keys]))
    for table in tables:
        writer.writerows([_inert(table.title), *(_inert(row.get(key)) for key in keys)] for row in table.rows)
    return page.getvalue()


_FORMULA = re.compile(r"[=@\t\r]|[+-](?!\d*\.?\d+(e[+-]?\d+)?$)")
"""Start of a text that a spreadsheet would evaluate; signed numbers are exempt."""


def _inert(value: Any) -> Any:
    """Escape formulas for spreadsheets, which show the text after an apostrophe literally."""
    if not isinstance(value, str):
        return value
    # Python 3.11 leaves a carriage return unquoted, which readers take for the end of the row.
    return ("'" if _FORMULA.match(value) else "") + value.replace("\r", " ")


def markdown(table: Table, *, titled: bool = True) -> str:
    """The table in GitHub Markdown, with its title above and its notes below."""
    head = [f"## {one_line(table.title)}", ""] if titled else []
    headings, *rows = ("| " + " | ".join(map(markdown_cell, row)) + " |" for row in cells(table))
    rule = "|" + "|".join("---" if column.left else "---:" for column in table.columns) + "|"
    notes = (f"- {one_line(note)}" for note in table.notes)
    return "\n".join([*head, headings, rule, *rows, "", *notes]).rstrip() + "\n"


def one_line(text: str) -> str:
    """``text`` with line breaks replaced by spaces."""
    return " ".join(text.splitlines())


def markdown_cell(text: str) -> str:
    """``text`` escaped for a cell of a Markdown table."""
    return one_line(text).replace("|", r"\|")


def fill(page: str, slug: str, tables: Sequence[Table]) -> str:
    """Fill an experiment's tables into the placeholders of ``page``.

    The first goes between ``<!-- table: SLUG -->`` and ``<!-- end -->``, the second between
    ``<!-- table: SLUG 2 -->`` and ``<!-- end -->``, and so on.
    """
    for place, table in enumerate(tables, start=1):
        mark = f"table: {slug}" + (f" {place}" if place > 1 else "")
        page = fill_between(page, mark, markdown(table, titled=False))
    return page


def fill_between(page: str, mark: str, text: str) -> str:
    """Put ``text`` between every ``<!-- MARK -->`` and ``<!-- end -->`` of ``page``."""
    begin, end = f"<!-- {mark} -->\n", "<!-- end -->"
    pattern = re.escape(begin) + r".*?" + re.escape(end)
    return re.sub(pattern, lambda _: f"{begin}\n{text.strip()}\n\n{end}", page, flags=re.DOTALL)


_LATEX = {c: rf"\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "`": r"\textasciigrave{}",
    "–": "--",
    "<": r"\textless{}",  # pdflatex's default font shows other characters for these three
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "…": r"\dots{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": r"$-$",
    "Δ": r"$\Delta$",
    "[": "{[}",  # an option, or a star, of the end of the row before
    "*": "{*}",
}
_LATEX_CODE = _LATEX | {
    "_": r"\char95{}",  # \_ is a rule in the default font encoding, and is copied as a space
    "'": r"\textquotesingle{}",
}
_MINUS = re.compile(r"(?<![\w.-])-(?=[\d.])")
"""The sign of a number, which LaTeX would set as a hyphen."""
_CODE = re.compile(r"(`[^`]+`|(?<![\w-])--[a-z][\w-]*)")
"""Code between backticks, and options without them."""


def latex(table: Table) -> str:
    """The table in LaTeX, no wider than the page: title as caption, notes below, one paragraph each."""
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
    """A note in LaTeX with its code in typewriter font, so that commands can be copied."""
    return "".join(
        rf"\texttt{{{_escaped(part.strip('`'), _LATEX_CODE)}}}" if index % 2 else _escaped(part)
        for index, part in enumerate(_CODE.split(note))  # matches of _CODE are at the odd indices
    )


def _escaped(text: str, replacements: Mapping[str, str] = _LATEX) -> str:
    """``text`` escaped for LaTeX."""
    special = "".join(map(re.escape, replacements))
    # Code is copied, so its hyphens stay.
    if replacements is _LATEX:
        text = _MINUS.sub("−", text)
    # Two hyphens in a row would be a dash, two apostrophes a quotation mark.
    pattern = f"-(?=-)|'(?=')|[{special}]"
    return re.sub(pattern, lambda match: replacements.get(match[0], match[0] + "{}"), text)


def _text(table: Table, width: int | None) -> str:
    """The table and its notes within ``width``, with a note on the columns that did not fit."""
    from rich.console import Console
    from rich.table import Table as RichTable

    lines = cells(table)
    places, widths, left_out = fit(table.columns, lines, width or inf)
    drawn = RichTable(title=table.title or None, title_justify="left")
    for place, column_width in zip(places, widths, strict=True):
        column = table.columns[place]
        drawn.add_column(
            column.heading, justify="left" if column.left else "right", overflow="fold", width=column_width
        )
    for row in lines[1:]:
        drawn.add_row(*(row[place] for place in places))
    page = io.StringIO()
    # In texts of the data rich would take [brackets] for styles and :names: for emoji.
    console = Console(file=page, width=width or _frame_width(widths), markup=False, emoji=False)
    console.print(drawn)
    if width is None:
        return page.getvalue() + "".join(f"  {note}\n" for note in table.notes)
    notes = list(table.notes)
    if left_out:
        shown = f"not shown in {width} characters: {', '.join(left_out)}"
        notes.append(f"{shown}; a wider terminal or a pipe (| cat) has every column")
    wrapped = (fill_text(note, width, initial_indent="  ", subsequent_indent="    ") for note in notes)
    return page.getvalue() + "".join(f"{note}\n" for note in wrapped)


def fit(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: float
) -> tuple[list[int], list[int], list[str]]:
    """Lay out ``cells``, headings first, in ``width`` characters: the indices of the columns that fit, their
    widths, and the headings of those left out."""
    texts = [[row[place] for row in cells] for place in range(len(columns))]
    least = [_least_width(column, *text) for column, text in zip(columns, texts, strict=True)]
    places = list(range(len(columns)))
    while len(places) > 1 and _frame_width([least[place] for place in places]) > width:
        places.remove(min(places[1:], key=lambda place: (columns[place].weight, -place)))
    natural = [max(map(cell_len, texts[place])) for place in places]
    left_out = [columns[place].heading for place in range(len(columns)) if place not in places]
    widths = [least[place] for place in places]
    while _frame_width(widths) < width and (short := [n for n, own in enumerate(widths) if own < natural[n]]):
        widths[min(short, key=widths.__getitem__)] += 1  # spare width goes to the narrowest first
    return places, widths, left_out


def _least_width(column: Column, heading: str, *cells: str) -> int:
    """Minimum width of a column: headings wrap at words, cells only in text columns."""
    longest = max(map(cell_len, cells), default=0)
    if column.left:
        word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
        longest = min(longest, max(NARROW, min(word, LONG)))
    return max(longest, *map(cell_len, heading.split() or [""]))


def _frame_width(widths: Sequence[int]) -> int:
    return BORDER + sum(width + RULE for width in widths)
