"""Parse a page written by ``qa-arch report`` or ``qa-arch inspect``."""

import base64
import csv
import json
import re
import zlib
from html import unescape
from pathlib import Path
from urllib.parse import unquote

JSON = r'<script type="application/json"{}>(.*?)</script>'
_FIGURE = re.compile(r'<figure id="figure-([\w-]+)"><h3>(?:[^<]*)</h3>' + JSON.format(""), re.DOTALL)
_CSV = re.compile(r'download="[^"]*" href="data:text/csv;base64,([^"]*)" aria-label="([^"]*) as CSV"')


def page_parts(path) -> tuple[dict, dict[str, bytes]]:
    """The page's data as a browser reads them: the plain value, and every packed element unpacked."""
    page = Path(path).read_text(encoding="utf-8")
    (value,) = re.findall(JSON.format(' id="qa-data"'), page, re.DOTALL)
    packed = dict(re.findall(r'<script type="text/plain" id="pack-([\w-]+)">(.*?)</script>', page))
    return json.loads(value), {name: zlib.decompress(base64.b64decode(text)) for name, text in packed.items()}


def page_tables(path) -> dict[str, list[dict[str, str]]]:
    """Rows of the tables of a report by name, from their CSV; the first of a name."""
    tables = {}
    for encoded, name in _CSV.findall(Path(path).read_text(encoding="utf-8")):
        rows = list(csv.DictReader(base64.b64decode(unquote(encoded)).decode().splitlines()))
        tables.setdefault(unescape(name), rows)
    return tables


def page_figures(path) -> dict[str, dict]:
    """The figures of a report by name, as Plotly draws them."""
    page = Path(path).read_text(encoding="utf-8")
    return {name: json.loads(text) for name, text in _FIGURE.findall(page)}


def page_text(path) -> str:
    """What a report says, a block a line and a row of a table as its cells; data and figures left out."""
    body = Path(path).read_text(encoding="utf-8").partition("<body>")[2]
    body = re.sub(r"<(script|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"</t[dh]><t[dh]\b[^>]*>", " | ", re.sub(r"<wbr>|\n", "", body))
    text = re.sub(r"</?(?:b|code|span|kbd|a|button|i)\b[^>]*>", "", body)
    lines = (unescape(line).strip() for line in re.sub(r"<[^>]*>", "\n", text).splitlines())
    return "\n".join(filter(None, lines))
