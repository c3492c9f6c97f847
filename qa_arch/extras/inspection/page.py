"""``qa-arch inspect --html``: one window's attention as a page that opens from disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_atomic
from qa_arch.errors import ConfigError
from qa_arch.extras.inspection.layers import MATCH, MEAN, AttentionLayer, Inspection, Unit
from qa_arch.results.provenance import now, versions
from qa_arch.results.report.page import pack_bytes, planes, single_file

LIMIT = 30_000_000
"""Bytes of a page; layers are left out before it grows beyond."""
UNIT = 65535
"""A probability is kept as a whole number of this many parts."""
PARTS = ("special", "question", "passage")


def write_inspection(
    inspection: Inspection, out: str | Path, *, opened: tuple[AttentionLayer, str], limit: int = LIMIT
) -> tuple[Path, list[str]]:
    """Write the page, with ``opened`` (a layer and a head) shown first; its path and the layers left out.

    All layers and heads are in it, that of ``opened`` before the others, as far as they fit into
    ``limit`` bytes. Raises ConfigError where not even that one fits.
    """
    layer, head = opened
    packs: dict[str, str] = {}
    room = limit
    for item in (layer, *(item for item in inspection.layers if item is not layer)):
        packed = pack_bytes(planes((item.weights * UNIT).round().clip(0, UNIT), 2))
        if len(packed) <= room:
            packs[f"layer-{item.name}"] = packed
            room -= len(packed)
    if f"layer-{layer.name}" not in packs:
        raise ConfigError(f"--html: layer {layer.name} alone needs more than {limit / 1e6:g} MB; use --json")
    left_out = [item.name for item in inspection.layers if f"layer-{item.name}" not in packs]
    value = _value(inspection, left_out) | {"opened": [layer.name, head]}
    page = single_file(
        "inspection.html",
        value["title"],
        styles=("style.css", "inspection.css"),
        scripts=("elements.js", "inspection.js"),
        value=value,
        packs=packs,
        folder=Path(__file__).parent / "page",
    )
    return write_atomic(out, page), left_out


def _value(inspection: Inspection, left_out: Sequence[str]) -> dict[str, Any]:
    layers = inspection.layers
    version = versions().get("qa-arch", "of an unknown version")
    views = {layer.name == MATCH: _view(layer) for layer in layers}
    return {
        "title": f"What {inspection.model} looks at",
        "facts": f"written {now()[:10]} by qa_arch {version}",
        "question": inspection.question,
        "passage": inspection.passage,
        "window": [inspection.window, inspection.windows, inspection.first, inspection.last],
        "answer": inspection.answer,
        "unit": UNIT,
        "mean": MEAN,
        "match": MATCH,
        "views": [views.get(matching) for matching in (False, True)],
        "layers": [
            {
                "name": layer.name,
                "heads": list(layer.heads),
                "crossing": [round(share, 4) for share in layer.crossing().astype(float).tolist()],
                "there": layer.name not in left_out,
            }
            for layer in layers
        ],
        "error": max(float(abs(layer.weights.sum(-1) - 1).max()) for layer in layers),
    }


def _view(layer: AttentionLayer) -> dict[str, Any]:
    """The units in the order in which they are shown, and which of them look and are looked at."""
    if layer.rows is layer.columns:
        units: tuple[Unit, ...] = layer.rows
        rows = columns = list(range(len(units)))
    else:
        units = (*layer.columns, *layer.rows)
        columns = list(range(len(layer.columns)))
        rows = list(range(len(layer.columns), len(units)))
    shown = [[unit.text, PARTS.index(unit.part), unit.start, unit.end] for unit in units]
    return {"units": shown, "rows": rows, "columns": columns}
