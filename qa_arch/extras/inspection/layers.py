"""What a model looks at in one window: attention of all layers and heads, as numbers, tables and a page.

Axes: ``N`` heads, ``R`` units that look, ``K`` units that are looked at, ``C`` units of the passage, ``Q``
units of the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from qa_arch.config.files import write_atomic
from qa_arch.errors import ConfigError
from qa_arch.results.provenance import now, versions
from qa_arch.results.report.page import pack_bytes, planes, single_file
from qa_arch.results.tables import Table, number, text

Part = Literal["special", "question", "passage"]
MATCH = "match"
"""The layer that is the match-LSTM's; those of the encoder are numbers from 1."""
ALL, MEAN = "all", "mean"
MOST = 4
"""Units that are named of those that a token looks at."""
CAVEAT = "attention says where a model looks, not why it answers (Jain & Wallace 2019)"
UNIT = 65535
"""In the page a probability is a whole number of this many parts."""
PARTS = ("special", "question", "passage")


class Unit(NamedTuple):
    """What looks or is looked at: a token of the encoder, or a piece or word of the match-LSTM."""

    text: str
    """Its characters; of a special token, and of one without characters, its name."""
    part: Part
    start: int
    """First character in its own text; 0 of a special one."""
    end: int


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    name: str
    """``1`` is next to the embeddings; or ``MATCH``."""
    heads: tuple[str, ...]
    """From ``1``; of the match-LSTM the directions."""
    weights: npt.NDArray[np.float32]
    """(N, R, K) probabilities; they sum to 1 over K."""
    rows: tuple[Unit, ...]
    columns: tuple[Unit, ...]

    def head(self, name: str) -> npt.NDArray[np.float32]:
        """(R, K) the probabilities of a head, or with ``MEAN`` their mean over heads."""
        return self.weights.mean(0) if name == MEAN else self.weights[self.heads.index(name)]

    def over_question(self, head: str) -> npt.NDArray[np.float32]:
        """(C, Q + 1) how each unit of the passage spreads its attention over the question.

        The last column is what it gives to all else: special tokens and the passage, or the match-LSTM's
        word "nothing".
        """
        passage = self.head(head)[_of(self.rows, "passage")]
        question = _of(self.columns, "question")
        return np.concatenate([passage[:, question], passage[:, ~question].sum(-1, keepdims=True)], axis=-1)

    def crossing(self) -> npt.NDArray[np.float32]:
        """(N,) the share of attention that goes from one text to the other: from the question to the passage,
        or from the passage to the question where only the passage looks; a mean over the units that look."""
        looks = _of(self.rows, "question")
        away: Part = "passage"
        if not looks.any():
            looks, away = _of(self.rows, "passage"), "question"
        return self.weights[:, looks][..., _of(self.columns, away)].sum(-1).mean(-1)


@dataclass(frozen=True, eq=False)
class Inspection:
    """One window of one question: what was read, what was answered, and every layer."""

    model: str
    question: str
    passage: str
    window: int
    """From 1."""
    windows: int
    """In how many the passage was read."""
    first: int
    """The first character of the passage in the window."""
    last: int
    """The end of the window's characters, exclusive."""
    answer: tuple[int, int] | None
    """Characters of the answer in the passage; None: no answer, or none that is a single span."""
    layers: tuple[AttentionLayer, ...]
    """The encoder's from the lowest up, then the match-LSTM's."""

    @property
    def window_text(self) -> str:
        """Which window of how many, and what it holds of the passage."""
        return (
            f"window {self.window} of {self.windows}, characters {self.first:,} to {self.last:,} of"
            f" {len(self.passage):,}"
        )

    @property
    def answer_text(self) -> str:
        """What was answered."""
        return "no answer" if self.answer is None else f"answer: {self.passage[slice(*self.answer)]}"

    def as_dict(self, chosen: Iterable[tuple[AttentionLayer, str]]) -> dict[str, Any]:
        """Plain values: texts, window, answer, and of each layer and head in ``chosen`` all probabilities."""
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
    """The layers and heads that ``--layer`` and ``--head`` mean: names, ``ALL``, for heads ``MEAN``.

    Without ``layer`` it is the encoder's last, or the match-LSTM's where there is no encoder; without
    ``head`` the mean. Raises ConfigError, with what there is, for an unknown name.
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
        raise ConfigError(f"--head: there is no head '{head}' (known: {', '.join([*heads, MEAN, ALL])})")
    return [
        (item, name)
        for item in chosen
        for name in (item.heads if head == ALL else [head])
        if name == MEAN or name in item.heads
    ]


def label(layer: AttentionLayer, head: str) -> str:
    """``layer 3, head 5``, ``layer 3, mean of 12 heads``, ``match-LSTM, forward``."""
    if head == MEAN:
        what = "directions" if layer.name == MATCH else "heads"
        head = f"mean of {len(layer.heads)} {what}"
    elif layer.name != MATCH:
        head = f"head {head}"
    return f"{'match-LSTM' if layer.name == MATCH else f'layer {layer.name}'}, {head}"


def inspection_table(inspection: Inspection, chosen: Sequence[tuple[AttentionLayer, str]]) -> Table:
    """Of a single layer and head where each token of the question looks; of several how much of their
    attention goes from one text to the other."""
    about = [f"{inspection.model}, {inspection.window_text}", inspection.answer_text, CAVEAT]
    if len(chosen) == 1:
        ((layer, head),) = chosen
        looks = any(unit.part == "question" for unit in layer.rows)
        tokens, others = (layer.rows, layer.columns) if looks else (layer.columns, layer.rows)
        weights = layer.head(head) if looks else layer.head(head).T
        rows: list[dict[str, Any]] = [
            {"token": token.text, "units": _largest(row, others)}
            for token, row in zip(tokens, weights, strict=True)
            if token.part == "question"
        ]
        columns = [text("token", "question"), text("units", "looks at" if looks else "is looked at by")]
        return Table(label(layer, head), columns, rows, about)
    by_layer: dict[str, dict[str, Any]] = {}
    for layer, head in chosen:
        share = layer.crossing().mean() if head == MEAN else layer.crossing()[layer.heads.index(head)]
        by_layer.setdefault(layer.name, {"layer": layer.name})[head] = 100 * float(share)
    heads = dict.fromkeys(head for _, head in chosen)
    note = (
        "% of attention mass that goes from the question to the passage; in a match-LSTM, from the passage"
        " to the question"
    )
    columns = [text("layer", "layer"), *(number(head, head) for head in heads)]
    return Table("Layers and heads", columns, list(by_layer.values()), [note, *about])


def _largest(row: np.ndarray, units: Sequence[Unit]) -> str:
    best = np.argsort(-row, kind="stable")[:MOST]
    return "  ".join(f"{units[at].text} {row[at]:.2f}" for at in best.tolist())


def _of(units: Iterable[Unit], part: Part) -> npt.NDArray[np.bool_]:
    return np.array([unit.part == part for unit in units], dtype=bool)


# The page -----------------------------------------------------------------------------------------


def write_page(inspection: Inspection, out: str | Path, layer: AttentionLayer, head: str) -> Path:
    """Write a page of all layers and heads that opens from disk, with ``layer`` and ``head`` shown first."""
    layers = inspection.layers
    views = {item.name == MATCH: _view(item) for item in layers}
    title = f"What {inspection.model} looks at"
    value = {
        "title": title,
        "facts": f"written {now()[:10]} by qa_arch {versions().get('qa-arch', 'of an unknown version')}",
        "caveat": CAVEAT,
        "question": inspection.question,
        "passage": inspection.passage,
        "window": [inspection.window, inspection.windows, inspection.first, inspection.last],
        "answer": inspection.answer,
        "unit": UNIT,
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
            f"layer-{item.name}": pack_bytes(planes((item.weights * UNIT).round().clip(0, UNIT), 2))
            for item in layers
        },
        folder=Path(__file__).parent / "page",
    )
    return write_atomic(out, page)


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
