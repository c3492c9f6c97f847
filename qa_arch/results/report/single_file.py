"""Pages as one file each: template, styles, scripts and data together, which asks nothing of a network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any


def single_file(
    template: str,
    title: str,
    *,
    styles: Sequence[str],
    scripts: Sequence[str],
    value: Mapping[str, Any],
    packs: Mapping[str, str],
) -> bytes:
    """The file ``template`` of ``page/`` with its places filled.

    Each is filled once, so that no data is taken for a place.

    ``styles`` and ``scripts`` are files of ``page/``, ``value`` is the page's ``DATA``, ``packs`` what it
    unpacks on demand (``pack``), by name.
    """
    places = {
        "title": html.escape(title),
        "style": "\n".join(map(_text, styles)),
        "script": "\n".join(map(_text, scripts)),
        "data": embed(value),
        "packs": "\n".join(
            f'<script type="text/plain" id="pack-{name}">{packed}</script>' for name, packed in packs.items()
        ),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: places[place[1]], _text(template)).encode("utf-8")


def embed(value: Any) -> str:
    """JSON that can stand in a script element: no character of it can end the element or open a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def _text(name: str) -> str:
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")
