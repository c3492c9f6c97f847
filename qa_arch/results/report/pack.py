"""Rows of questions and texts as compressed bytes, in Base64: what the page unpacks on demand.

A column is stored plane by plane (all first bytes, then all second bytes, ...), little-endian, which
deflate shortens well. The page's ``data.js`` reads exactly this.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.metrics.error_analysis import Boundary, Judged, Outcome
from qa_arch.results.mistakes import BOUNDARIES, NAMES, Mistakes, mistakes
from qa_arch.results.question_rows import Questions
from qa_arch.types.text import QuestionSet

COLUMNS = (
    ("start", 4),
    ("length", 4),
    ("odds", 2),
    ("f1", 1),
    ("probability", 1),
    ("flags", 1),
    ("mistake", 1),
)
"""Name and bytes of each column of a run, in order."""
ODDS_UNIT = 0.01
"""Null odds are kept to this; beyond ±327 they are infinite to the page."""
F1_UNIT = 1 / 250
EXACT, ABSTAINED, NO_SPAN = 1, 2, 4
"""Flags of a question."""
OUTCOMES: tuple[Outcome, ...] = tuple(NAMES)
PLACES: tuple[Boundary | None, ...] = (None, *BOUNDARIES)
NEAR, PLAUSIBLE = 64, 128
"""A mistake is the place of its outcome, 8 times that of its boundary, and these."""


def pack_run(rows: Questions, judged: Mistakes | None = None) -> str:
    """Offsets, null odds, scores, flags and the mistake of every question of one run."""
    none = rows.start < 0
    odds = np.clip(np.nan_to_num(rows.null_odds / ODDS_UNIT, nan=0.0).round(), -32767, 32767)
    probability = np.zeros(len(rows)) if rows.probability is None else rows.probability
    flags = EXACT * (rows.exact > 0) + ABSTAINED * rows.abstained + NO_SPAN * none
    columns = {
        "start": np.where(none, 0, rows.start),
        "length": np.where(none, 0, rows.end - rows.start),
        "odds": odds.astype(np.int64) & 0xFFFF,
        "f1": (rows.f1 / F1_UNIT).round(),
        "probability": (np.clip(probability, 0, 1) * 255).round(),
        "flags": flags,
        "mistake": np.array([_mistake(row) for row in (judged or mistakes(rows)).judged], dtype=np.int64),
    }
    return pack_bytes(b"".join(planes(columns[name], width) for name, width in COLUMNS))


def pack_levels(levels: list[npt.NDArray[np.uint8]]) -> str:
    """One byte a question for each facet."""
    return pack_bytes(b"".join(level.tobytes() for level in levels))


def pack_texts(questions: QuestionSet) -> str:
    """Passages once each, and of every question: text, passage, gold and plausible spans."""
    contexts: dict[str, int] = {}
    rows = [
        [
            example.question,
            contexts.setdefault(example.context, len(contexts)),
            sorted({(gold.start, gold.end) for gold in example.answers}),
            sorted({(gold.start, gold.end) for gold in example.plausible}),
            example.title,
        ]
        for example in questions.examples
    ]
    return pack_json({"contexts": list(contexts), "questions": rows})


def pack_json(value: Any) -> str:
    return pack_bytes(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


def pack_bytes(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def _mistake(row: Judged) -> int:
    code = OUTCOMES.index(row.outcome) + 8 * PLACES.index(row.boundary)
    return code + NEAR * row.near_miss + PLAUSIBLE * (row.plausible is True)


def planes(values: npt.NDArray, width: int) -> bytes:
    """Whole numbers of ``width`` bytes, plane by plane, lowest first."""
    whole = np.asarray(values).astype(np.uint32)
    return b"".join(((whole >> (8 * byte)) & 0xFF).astype(np.uint8).tobytes() for byte in range(width))
