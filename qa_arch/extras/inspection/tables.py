"""Attention in the terminal: where the question's tokens look, and which heads look across."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qa_arch.extras.inspection.layers import MEAN, AttentionLayer, Inspection, Unit, label
from qa_arch.results.tables import Table, number, text

MOST = 4
"""Units that are named of those that a token looks at."""


def inspection_table(inspection: Inspection, chosen: Sequence[tuple[AttentionLayer, str]]) -> Table:
    """Of a single layer and head where each token of the question looks; of several how much of their
    attention goes from one text to the other."""
    if len(chosen) == 1:
        return _tokens(inspection, *chosen[0])
    return _heads(inspection, chosen)


def _tokens(inspection: Inspection, layer: AttentionLayer, head: str) -> Table:
    weights = layer.head(head)
    looks = any(unit.part == "question" for unit in layer.rows)
    tokens, others = (layer.rows, layer.columns) if looks else (layer.columns, layer.rows)
    weights = weights if looks else weights.T
    rows = [
        {"token": token.text, "units": _largest(row, others)}
        for token, row in zip(tokens, weights, strict=True)
        if token.part == "question"
    ]
    columns = [text("token", "question"), text("units", "looks at" if looks else "is looked at by")]
    return Table(label(layer, head), columns, rows, _notes(inspection))


def _largest(row: np.ndarray, units: Sequence[Unit]) -> str:
    best = np.argsort(-row, kind="stable")[:MOST]
    return "  ".join(f"{units[at].text} {row[at]:.2f}" for at in best.tolist())


def _heads(inspection: Inspection, chosen: Sequence[tuple[AttentionLayer, str]]) -> Table:
    """A row for each layer, a column for each head."""
    columns = dict.fromkeys(head for _, head in chosen)
    rows: dict[str, dict[str, str | float]] = {}
    for layer, head in chosen:
        share = layer.crossing().mean() if head == MEAN else layer.crossing()[layer.heads.index(head)]
        rows.setdefault(layer.name, {"layer": layer.name})[head] = 100 * float(share)
    shown = [text("layer", "layer"), *(number(head, head) for head in columns)]
    notes = [
        "percent of the attention of the question's tokens that goes to the passage; in a match-LSTM, of the"
        " passage's to the question",
        *_notes(inspection),
    ]
    return Table("Layers and heads", shown, list(rows.values()), notes)


def _notes(inspection: Inspection) -> list[str]:
    answer = "no answer"
    if inspection.answer is not None:
        answer = f"answer: {inspection.passage[slice(*inspection.answer)]}"
    return [f"{inspection.model}, {inspection.window_text}", answer]
