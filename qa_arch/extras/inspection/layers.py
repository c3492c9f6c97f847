"""Attention of all layers and heads in one window, as numbers, tables and an HTML page.

Axes: ``N`` heads, ``R`` attending units (rows), ``K`` attended units (columns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qa_arch.errors import ConfigError
from qa_arch.files import write_atomic
from qa_arch.provenance import versions
from qa_arch.results.tables import Table, number, text

Part = Literal["special", "question", "passage"]
MATCH = "match"
"""Name of the match-LSTM's layer; encoder layers are numbered from 1."""
ALL, MEAN = "all", "mean"
TOP_UNITS = 4
"""Attended units listed per token."""
CAVEAT = "attention says where a model looks, not why it answers (Jain & Wallace 2019)"
HEADS_PER_ROW = 4
"""Heatmaps side by side on the page."""


class Unit(NamedTuple):
    """Unit of attention: a token of the encoder, or a piece or word of the match-LSTM."""

    text: str
    """Its characters; the name of a special token or of one without characters."""
    part: Part
    start: int
    """Offset of the first character in the question or passage; 0 for special tokens."""
    end: int


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    name: str
    """``1`` (next to the embeddings) and up, of a decoder ``1 self`` and ``1 cross``; or ``MATCH``."""
    heads: tuple[str, ...]
    """``1`` and up; the directions of a match-LSTM."""
    weights: npt.NDArray[np.float32]
    """(N, R, K) probabilities; they sum to 1 over K."""
    rows: tuple[Unit, ...]
    columns: tuple[Unit, ...]

    def head(self, name: str) -> npt.NDArray[np.float32]:
        """Shape (R, K): probabilities of a head, or for ``MEAN`` their mean over heads."""
        return self.weights.mean(0) if name == MEAN else self.weights[self.heads.index(name)]

    def crossing(self) -> npt.NDArray[np.float32]:
        """Shape (N,): share of attention from the question to the passage (for a match-LSTM, from the passage
        to the question), averaged over the attending units."""
        attending = _is_part(self.rows, "question")
        attended: Part = "passage"
        if not attending.any():
            attending, attended = _is_part(self.rows, "passage"), "question"
        return self.weights[:, attending][..., _is_part(self.columns, attended)].sum(-1).mean(-1)


@dataclass(frozen=True, eq=False)
class Inspection:
    """One window of one question: its texts, the answer, and every layer."""

    model: str
    question: str
    passage: str
    window: int
    """From 1."""
    windows: int
    """Number of windows of the passage."""
    first: int
    """First character of the passage in the window."""
    last: int
    """End of the window in the passage, exclusive."""
    answer: tuple[int, int] | None
    """Characters of the answer in the passage; None if there is no answer or it is not contiguous."""
    layers: tuple[AttentionLayer, ...]
    """Encoder layers from the lowest up, then the match-LSTM; or those of a decoder, each self and cross."""
    written: str | None = None
    """Pieces that a decoder wrote of the passage, in place of an answer to a question."""

    @property
    def window_text(self) -> str:
        """Number of the window and its characters of the passage."""
        return (
            f"window {self.window} of {self.windows}, characters {self.first:,} to {self.last:,} of"
            f" {len(self.passage):,}"
        )

    @property
    def answer_text(self) -> str:
        if self.written is not None:
            return f"written: {self.written}"
        return "no answer" if self.answer is None else f"answer: {self.passage[slice(*self.answer)]}"

    def as_dict(self, chosen: Iterable[tuple[AttentionLayer, str]]) -> dict[str, Any]:
        """JSON-serialisable texts, window, answer, and the probabilities of the ``chosen`` heads."""
        answer = None
        if self.answer is not None:
            start, end = self.answer
            answer = {"text": self.passage[start:end], "start": start, "end": end}
        return {
            "model": self.model,
            "question": self.question,
            "passage": self.passage,
            "window": {"number": self.window, "of": self.windows, "start": self.first, "end": self.last},
            "answer": answer,
            "attention": [
                {
                    "layer": int(layer.name) if layer.name.isdecimal() else layer.name,
                    "head": int(head) if head.isdecimal() else head,
                    "rows": [unit._asdict() for unit in layer.rows],
                    "columns": [unit._asdict() for unit in layer.columns],
                    "weights": [
                        [round(weight, 6) for weight in row]
                        for row in layer.head(head).astype(float).tolist()
                    ],
                }
                for layer, head in chosen
            ],
        }


def select_heads(
    layers: Sequence[AttentionLayer], layer: str | None, head: str | None
) -> list[tuple[AttentionLayer, str]]:
    """Resolve ``--layer`` and ``--head``: names, ``ALL``, or ``MEAN`` for heads.

    ``layer`` defaults to the encoder's last, or to the match-LSTM without an encoder; ``head`` to the mean.
    Raises ConfigError listing the known names for an unknown one.
    """
    head = head or MEAN
    names = [item.name for item in layers]
    if layer is None:
        layer = next((name for name in reversed(names) if name != MATCH), MATCH)
    chosen = [item for item in layers if layer in (item.name, ALL)]
    if not chosen:
        raise ConfigError(f"--layer: the model has no layer '{layer}' (known: {', '.join([*names, ALL])})")
    heads = dict.fromkeys(name for item in chosen for name in item.heads)
    if head not in (ALL, MEAN, *heads):
        raise ConfigError(f"--head: the model has no head '{head}' (known: {', '.join([*heads, MEAN, ALL])})")
    return [
        (item, name)
        for item in chosen
        for name in (item.heads if head == ALL else [head])
        if name == MEAN or name in item.heads
    ]


def label(layer: AttentionLayer, head: str) -> str:
    """Title: ``layer 3, head 5``, ``layer 3, mean of 12 heads``, ``match-LSTM, forward``."""
    if head == MEAN:
        noun = "directions" if layer.name == MATCH else "heads"
        head = f"mean of {len(layer.heads)} {noun}"
    elif layer.name != MATCH:
        head = f"head {head}"
    return f"{'match-LSTM' if layer.name == MATCH else f'layer {layer.name}'}, {head}"


def inspection_table(inspection: Inspection, chosen: Sequence[tuple[AttentionLayer, str]]) -> Table:
    """For one layer and head, the units each question token attends to; for several, the share of attention
    between question and passage (``AttentionLayer.crossing``)."""
    notes = [f"{inspection.model}, {inspection.window_text}", inspection.answer_text, CAVEAT]
    if len(chosen) == 1:
        ((layer, head),) = chosen
        attends = any(unit.part == "question" for unit in layer.rows)
        tokens, others = (layer.rows, layer.columns) if attends else (layer.columns, layer.rows)
        weights = layer.head(head) if attends else layer.head(head).T
        rows: list[dict[str, Any]] = [
            {"token": token.text, "units": _top_units(row, others)}
            for token, row in zip(tokens, weights, strict=True)
            if token.part == "question"
        ]
        columns = [text("token", "question"), text("units", "attends to" if attends else "is attended by")]
        return Table(label(layer, head), columns, rows, notes)
    by_layer: dict[str, dict[str, Any]] = {}
    for layer, head in chosen:
        share = layer.crossing().mean() if head == MEAN else layer.crossing()[layer.heads.index(head)]
        by_layer.setdefault(layer.name, {"layer": layer.name})[head] = 100 * float(share)
    heads = dict.fromkeys(head for _, head in chosen)
    note = (
        "% of attention mass from the question to the passage; for a match-LSTM, from the passage to the"
        " question"
    )
    columns = [text("layer", "layer"), *(number(head, head) for head in heads)]
    return Table("Layers and heads", columns, list(by_layer.values()), [note, *notes])


def _top_units(row: np.ndarray, units: Sequence[Unit]) -> str:
    best = np.argsort(-row, kind="stable")[:TOP_UNITS]
    return "  ".join(f"{units[i].text} {row[i]:.2f}" for i in best.tolist())


def _is_part(units: Iterable[Unit], part: Part) -> npt.NDArray[np.bool_]:
    return np.array([unit.part == part for unit in units], dtype=bool)


# The page -----------------------------------------------------------------------------------------


def write_page(inspection: Inspection, out: str | Path, chosen: Sequence[tuple[AttentionLayer, str]]) -> Path:
    """Write a page that works offline: the texts with the answer, and the ``chosen`` heads as heatmaps."""
    from plotly.io import to_html

    passage = escape(inspection.passage)
    if inspection.answer is not None:
        start, end = inspection.answer
        texts = inspection.passage[:start], inspection.passage[start:end], inspection.passage[end:]
        passage = "{}<mark>{}</mark>{}".format(*map(escape, texts))
    plot = to_html(heatmaps(chosen), full_html=False, include_plotlyjs=True, config={"displaylogo": False})
    page = _PAGE.format(
        title=escape(f"Attention of {inspection.model}"),
        facts=escape(
            f"{inspection.window_text}; {inspection.answer_text}; qa_arch {versions().get('qa-arch')}"
        ),
        caveat=CAVEAT,
        question=escape(inspection.question),
        passage=passage,
        plot=plot,
        width=18 * min(HEADS_PER_ROW, max(Counter(layer.name for layer, _ in chosen).values())),
    )
    return write_atomic(out, page)


def heatmaps(chosen: Sequence[tuple[AttentionLayer, str]]) -> Any:
    """A plotly figure: a heatmap of each head, and a menu of the layers, of which one is shown at a time."""
    from plotly.graph_objects import Figure, Heatmap
    from plotly.subplots import make_subplots

    layers = list(dict.fromkeys(layer for layer, _ in chosen))
    heads = [[head for other, head in chosen if other is layer] for layer in layers]
    most = max(map(len, heads))
    columns = min(most, HEADS_PER_ROW)
    rows = -(-most // columns)
    figure: Figure = make_subplots(
        rows,
        columns,
        subplot_titles=[" "] * most,  # plotly makes none of ""; the menu fills them
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.03,
        vertical_spacing=0.15 / rows,
    )
    for layer, names in zip(layers, heads, strict=True):
        for place, head in enumerate(names):
            cells, unit = _cells(layer, head)
            heatmap = Heatmap(
                z=cells,
                zmin=0,
                zmax=int(cells.max()),
                colorscale="Blues",
                colorbar={"ticksuffix": unit},
                showscale=most == 1,
                visible=layer is layers[0],
                hovertemplate=f"%{{y}} → %{{x}}: %{{z}}{unit}<extra></extra>",
            )
            figure.add_trace(heatmap, place // columns + 1, place % columns + 1)
    buttons = [_button(layer, layers, heads, most) for layer in layers]
    above = {"y": 1, "yanchor": "bottom", "pad": {"b": 28}}  # the titles of the heatmaps
    figure.update_layout(
        updatemenus=[{"buttons": buttons, "x": 0, "xanchor": "left", **above}],
        height=140 + 360 * rows if columns > 1 else 900,
        template="plotly_white",
    )
    figure.update_layout(buttons[0]["args"][1])  # as if the first layer were chosen
    return figure


def _cells(layer: AttentionLayer, head: str) -> tuple[npt.NDArray[np.uint8], str]:
    """Probabilities of a head as a byte a cell, and their unit: percent, or ‰ if none exceeds a quarter."""
    weights = layer.head(head)
    factor, unit = (1000, "‰") if weights.max() < 0.255 else (100, "%")  # a byte holds up to 255
    return (factor * weights).round().astype(np.uint8), unit


def _button(
    layer: AttentionLayer, layers: Sequence[AttentionLayer], heads: Sequence[Sequence[str]], most: int
) -> dict[str, Any]:
    """The menu's entry of a layer: which heatmaps are visible, their titles with the scales of the colours,
    and the units along the axes."""
    scaled = [(label(layer, head), *_cells(layer, head)) for head in heads[layers.index(layer)]]
    tops = [f"{cells.max()}%" if unit == "%" else f"{cells.max() / 10:.1f}%" for _, cells, unit in scaled]
    titles = [f"{name}: 0 to {top}" for (name, _, _), top in zip(scaled, tops, strict=True)]
    changes: dict[str, Any] = {}
    for place in range(most):
        changes[f"annotations[{place}].text"] = titles[place] if place < len(titles) else ""
        for kind, units in (("xaxis", layer.columns), ("yaxis", layer.rows)):
            axis, ends = f"{kind}{place + 1 if place else ''}", [-0.5, len(units) - 0.5]
            changes[f"{axis}.visible"] = place < len(titles)
            changes[f"{axis}.range"] = ends if kind == "xaxis" else ends[::-1]  # the first on top
            changes[f"{axis}.tickvals"] = list(range(len(units)))
            changes[f"{axis}.ticktext"] = [escape(unit.text) for unit in units]
            changes[f"{axis}.tickfont.size"] = 9
    visible = [other is layer for other, of_layer in zip(layers, heads, strict=True) for _ in of_layer]
    name = "match-LSTM" if layer.name == MATCH else f"layer {layer.name}"
    return {"label": name, "method": "update", "args": [{"visible": visible}, changes]}


_PAGE = """\
<!doctype html>
<html lang="en" data-ready="yes">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 90rem; padding: 0 1rem; }}
p {{ max-width: 60rem; }}
.wide {{ overflow-x: auto; }}
</style>
<h1>{title}</h1>
<p><b>{question}</b></p>
<p>{passage}</p>
<p>{facts}. Rows attend to columns; each heatmap's colours span 0 to its largest
value; drag to enlarge a part, in all heads at once. Note: {caveat}.</p>
<div class="wide"><div style="min-width: {width}rem">{plot}</div></div>
</html>
"""
