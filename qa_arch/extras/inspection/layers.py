"""Attention of all layers and heads in one window, as numbers, tables and an HTML page.

Axes: ``N`` heads, ``R`` attending units (rows), ``K`` attended units (columns), ``C`` units of the passage,
``Q`` units of the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from qa_arch.config.files import write_atomic
from qa_arch.errors import ConfigError
from qa_arch.provenance import now, versions
from qa_arch.results.report.page import pack_bytes, single_file
from qa_arch.results.tables import Table, number, text

Part = Literal["special", "question", "passage"]
MATCH = "match"
"""Name of the match-LSTM's layer; encoder layers are numbered from 1."""
ALL, MEAN = "all", "mean"
TOP_UNITS = 4
"""Attended units listed per token."""
CAVEAT = "attention says where a model looks, not why it answers (Jain & Wallace 2019)"
SCALE = 65535
"""The page stores probabilities as integers, multiplied by this."""
PARTS = get_args(Part)


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
    """``1`` (next to the embeddings) and up, or ``MATCH``."""
    heads: tuple[str, ...]
    """``1`` and up; the directions of a match-LSTM."""
    weights: npt.NDArray[np.float32]
    """(N, R, K) probabilities; they sum to 1 over K."""
    rows: tuple[Unit, ...]
    columns: tuple[Unit, ...]

    def head(self, name: str) -> npt.NDArray[np.float32]:
        """Shape (R, K): probabilities of a head, or for ``MEAN`` their mean over heads."""
        return self.weights.mean(0) if name == MEAN else self.weights[self.heads.index(name)]

    def over_question(self, head: str) -> npt.NDArray[np.float32]:
        """Shape (C, Q + 1): attention of each unit of the passage to the units of the question.

        The last column is the attention to everything else: special tokens and the passage, or the
        match-LSTM's word "nothing".
        """
        passage = self.head(head)[_is_part(self.rows, "passage")]
        question = _is_part(self.columns, "question")
        return np.concatenate([passage[:, question], passage[:, ~question].sum(-1, keepdims=True)], axis=-1)

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
    """Encoder layers from the lowest up, then the match-LSTM."""

    @property
    def window_text(self) -> str:
        """Number of the window and its characters of the passage."""
        return (
            f"window {self.window} of {self.windows}, characters {self.first:,} to {self.last:,} of"
            f" {len(self.passage):,}"
        )

    @property
    def answer_text(self) -> str:
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
                    "layer": layer.name if layer.name == MATCH else int(layer.name),
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


def write_page(inspection: Inspection, out: str | Path, layer: AttentionLayer, head: str) -> Path:
    """Write a self-contained page of all layers and heads, opening with ``layer`` and ``head``."""
    layers = inspection.layers
    views = {item.name == MATCH: _view(item) for item in layers}
    title = f"Attention of {inspection.model}"
    value = {
        "title": title,
        "facts": f"written {now()[:10]} by qa_arch {versions().get('qa-arch', 'of an unknown version')}",
        "caveat": CAVEAT,
        "question": inspection.question,
        "passage": inspection.passage,
        "window": [inspection.window, inspection.windows, inspection.first, inspection.last],
        "answer": inspection.answer,
        "scale": SCALE,
        "mean": MEAN,
        "match": MATCH,
        "opened": [layer.name, head],
        "views": [views.get(matching) for matching in (False, True)],
        "layers": [
            {
                "name": item.name,
                "heads": list(item.heads),
                "crossing": [round(share, 4) for share in item.crossing().astype(float).tolist()],
            }
            for item in layers
        ],
        "error": max(float(abs(item.weights.sum(-1) - 1).max()) for item in layers),
    }
    page = single_file(
        "inspection.html",
        title,
        styles=("style.css", "inspection.css"),
        scripts=("elements.js", "inspection.js"),
        value=value,
        packs={
            f"layer-{item.name}": pack_bytes(
                (item.weights * SCALE).round().clip(0, SCALE).astype("<u2").tobytes()
            )
            for item in layers
        },
        folder=Path(__file__).parent / "page",
    )
    return write_atomic(out, page)


def _view(layer: AttentionLayer) -> dict[str, Any]:
    """Units in display order, with the indices of attending (rows) and attended (columns) ones."""
    if layer.rows is layer.columns:
        units: tuple[Unit, ...] = layer.rows
        rows = columns = list(range(len(units)))
    else:
        units = (*layer.columns, *layer.rows)
        columns = list(range(len(layer.columns)))
        rows = list(range(len(layer.columns), len(units)))
    shown = [[unit.text, PARTS.index(unit.part), unit.start, unit.end] for unit in units]
    return {"units": shown, "rows": rows, "columns": columns}
