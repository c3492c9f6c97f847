"""Answers as the official SQuAD files, and as the columns that are kept without text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.files import write_json
from qa_arch.decode.answers import answers
from qa_arch.decode.candidates import Ranking
from qa_arch.types.text import Answer

FINITE = 1e9
"""What stands for infinity in the files, as JSON has none: beyond any score of a trained model."""


def predictions(answered: Sequence[Answer], margin: float) -> dict[str, str]:
    """Question id -> text; the empty string is "no answer", given where null odds exceed ``margin``."""
    return {answer.id: answer.text(margin) for answer in answered}


def null_odds(answered: Sequence[Answer]) -> dict[str, float]:
    """Question id -> null score minus best span score, within ±``FINITE``; the higher, the less an answer."""
    return {answer.id: min(max(answer.null_odds, -FINITE), FINITE) for answer in answered}


def nbest(ranking: Ranking) -> dict[str, list[dict[str, Any]]]:
    """Question id -> its candidates, most probable first: text, probability, start_logit, end_logit.

    The logits are clamped to ±``FINITE``. Made from the columns, as there are a hundred thousand entries.
    """
    columns = zip(
        range(len(ranking.start)),
        ranking.start.tolist(),
        ranking.end.tolist(),
        ranking.probability.tolist(),
        ranking.start_logit.clip(-FINITE, FINITE).tolist(),
        ranking.end_logit.clip(-FINITE, FINITE).tolist(),
        strict=True,
    )
    made = {}
    for example, count in zip(ranking.examples, np.diff(ranking.offsets).tolist(), strict=True):
        context = example.context
        made[example.id] = [
            {
                "text": context[start:end] if start >= 0 else ranking.texts[row],
                "probability": p,
                "start_logit": s,
                "end_logit": e,
            }
            for row, start, end, p, s, e in islice(columns, count)
        ]
    return made


def spans_record(answered: Sequence[Answer]) -> dict[str, list[Any]]:
    """Columns of the committed record, no text: id, start, end, null_odds, windows.

    ``start`` and ``end`` are those of the best span whatever the margin, so that any margin can be
    applied later; -1 where there is none, and null_odds is +inf there.
    """
    return {
        "id": [answer.id for answer in answered],
        "start": [answer.best.start if answer.best else -1 for answer in answered],
        "end": [answer.best.end if answer.best else -1 for answer in answered],
        "null_odds": [answer.null_odds for answer in answered],
        "windows": [answer.windows for answer in answered],
    }


def write(folder: str | os.PathLike[str], ranking: Ranking, margin: float) -> None:
    """Write predictions.json, nbest_predictions.json and null_odds.json, each whole or not at all."""
    target = Path(folder)
    answered = answers(ranking, candidates=False)
    write_json(target / "predictions.json", predictions(answered, margin))
    write_json(target / "null_odds.json", null_odds(answered))
    write_json(target / "nbest_predictions.json", nbest(ranking), indent=None)
