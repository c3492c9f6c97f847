"""Pages as single HTML files that work offline: tables, Plotly figures and packed data, without network.

Figures are Plotly's JSON, whose texts ``figure_html`` escapes, since Plotly reads them as HTML. A colour that
starts with ``--`` is a variable of the style sheet, so that light and dark share one figure. Packed data is
deflated and Base64-encoded; the page's ``unpack`` reads it on demand.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.target import require_packages
from qa_arch.results.tables import Column, Table, render

PAGE = Path(__file__).parent / "page"
_TEXTS = ("text", "ticktext", "name", "customdata", "x", "y")
"""Parts of a figure that may hold texts of the data."""

_BREAK = re.compile(r"(?<=[_=/])|(?<=[a-z]\.)(?=[A-Za-z])")
"""Where long settings and names of modules may wrap."""
_ROW_KEYS = ("href", "place", "reference")
"""Keys of a row for its cells in HTML alone."""

Mark = Callable[[Mapping[str, Any], Column], str]
"""Class of the cell of a row and a column, "" for none."""


def table_html(table: Table, *, sortable: bool = False, mark: Mark = lambda *_: "") -> str:
    """A table in a scrolling frame, its CSV with unrounded values, and its notes.

    Of a row, ``href`` becomes a link around its first cell, ``place`` the key of a system beside it,
    ``reference`` a fainter line, and ``error`` the tooltip of its status.
    """
    name = table.title or "table"
    heads = ""
    for column in table.columns:
        side, heading = ' class="text"' if column.left else "", escape(column.heading)
        shown = f'<button type="button">{heading}</button>' if sortable else heading
        heads += f'<th scope="col"{side}>{shown}</th>'
    body = "".join(
        f"<tr{' class=reference' if row.get('reference') else ''}>"
        f"{''.join(_cell(row, column, mark, first=not n) for n, column in enumerate(table.columns))}</tr>"
        for row in table.rows
    )
    file = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    rows = [{key: value for key, value in row.items() if key not in _ROW_KEYS} for row in table.rows]
    csv = base64.b64encode(render([replace(table, rows=rows)], "csv").encode()).decode()
    return (
        '<div class="frame"><div class="scroll" role="region" tabindex="0"'
        f' aria-label="Table: {escape(name)}"'
        f"><table{' class=sortable' if sortable else ''}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody>"
        f'</table></div><a class="csv" download="{file}.csv" href="data:text/csv;base64,{csv}"'
        f' aria-label="{escape(name)} as CSV">CSV</a></div>{notes_html(table.notes)}'
    )


def _cell(row: Mapping[str, Any], column: Column, mark: Mark, *, first: bool) -> str:
    shown = _BREAK.sub("<wbr>", escape(column.text(row)))
    if first and row.get("href"):
        shown = f'<a href="#{row["href"]}">{shown}</a>'
    if first and "place" in row:
        shown = f'<span class="pick">{key_html(row["place"])}<span>{shown}</span></span>'
    is_unfinished = column.key == "status" and row.get("status", "ok") != "ok"
    kinds = ["text" if column.left else "", "unfinished" if is_unfinished else "", mark(row, column)]
    classes = " ".join(filter(None, kinds))
    error = row.get("error") if column.key == "status" else None
    title = f' title="{escape(str(error))}"' if error else ""
    # ``chr(34)``: before Python 3.12 an f-string may not hold its own kind of quotation mark.
    return f"<td{f' class={chr(34)}{classes}{chr(34)}' if classes else ''}{title}>{shown}</td>"


def key_html(place: int) -> str:
    """The colour and mark of a system; the style sheet has eight of each."""
    # The marks move on by one whenever the colours start again, so 64 systems look different.
    return f'<span class="key s{(place + place // 8) % 8}" style="--k: var(--c{place % 8})"></span>'


def notes_html(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def figure_html(
    name: str,
    title: str,
    caption: str,
    traces: Sequence[Mapping[str, Any]],
    layout: Mapping[str, Any],
    reason: str = "",
) -> str:
    """A figure that the page draws once it is near the screen; without traces, the reason instead."""
    head = f'<figure id="figure-{name}"><h3>{escape(title)}</h3>'
    if not traces:
        return f'{head}<p class="empty">{escape(reason)}</p></figure>'
    height = layout.get("height", 300)
    drawn = {"data": [_escaped(trace) for trace in traces], "layout": _escaped({**layout, "height": height})}
    return (
        f'{head}<script type="application/json">{embed(drawn)}</script><div class="plot" role="img"'
        f' style="min-height: {height}px" aria-label="{escape(f"{title}. {caption}")}"></div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _escaped(value: Any, key: str = "") -> Any:
    """A figure's JSON with its texts escaped, and its numbers finite or None."""
    if isinstance(value, Mapping):
        return {name: _escaped(item, name) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_escaped(item, key) for item in value]
    if isinstance(value, str):
        return escape(value) if key in _TEXTS else value
    if isinstance(value, float):
        return float(f"{value:.6g}") if np.isfinite(value) else None
    return value


def plotly_source() -> bytes:
    """Source of plotly.js from the Python package, without importing it; UnavailableError without it."""
    require_packages("report", "the report")
    return Path(str(distribution("plotly").locate_file("plotly/package_data/plotly.min.js"))).read_bytes()


def pack_json(value: Any) -> str:
    return pack_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def pack_bytes(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def page_html(
    title: str, value: Mapping[str, Any], packs: Mapping[str, str], parts: Mapping[str, str]
) -> bytes:
    """Fill the placeholders of ``report.html`` in one pass, so that no data is taken for one.

    ``value`` becomes the page's ``DATA``, ``packs`` are what it unpacks on demand, by name, and ``parts`` is
    HTML.
    """
    page, style, *scripts = (
        (PAGE / name).read_text(encoding="utf-8")
        for name in ("report.html", "style.css", "elements.js", "questions.js", "report.js")
    )
    contents = {
        "title": escape(title),
        "style": style,
        "script": "\n".join(scripts),
        "data": embed(value),
        "packs": "\n".join(
            f'<script type="text/plain" id="pack-{name}">{packed}</script>' for name, packed in packs.items()
        ),
        **parts,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: contents[match[1]], page).encode("utf-8")


def embed(value: Any) -> str:
    """JSON that is safe inside a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")
