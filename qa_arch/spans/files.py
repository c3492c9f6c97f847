"""The answer files of the official SQuAD scripts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.config.files import json_items
from qa_arch.spans.ranking import Ranking

PREDICTIONS = "predictions.json"
FINITE = 1e9
"""Replaces infinity in the files, since JSON has none; larger than any score of a trained model."""


def predictions(ranking: Ranking, threshold: float) -> dict[str, str]:
    """Question id -> answer text; the empty string is "no answer", for null odds above ``threshold``."""
    return {answer.id: answer.text(threshold) for answer in ranking.best_predictions}


def null_odds(ranking: Ranking) -> dict[str, float]:
    """Question id -> null score minus best span score, within ±``FINITE``; higher means "no answer"."""
    odds = ranking.null_odds.clip(-FINITE, FINITE).tolist()
    return {example.id: value for example, value in zip(ranking.examples, odds, strict=True)}


def nbest(ranking: Ranking) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Question id and its candidates, most probable first: text, probability, start_logit, end_logit.

    Logits are clamped to ±``FINITE``. Yields one question at a time, as there are 100,000s of entries.
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
    for example, count in zip(ranking.examples, np.diff(ranking.offsets).tolist(), strict=True):
        candidates = []
        for row, start, end, probability, start_logit, end_logit in islice(columns, count):
            text = example.context[start:end] if start >= 0 else ranking.texts[row]
            logits = {"start_logit": start_logit, "end_logit": end_logit}
            candidates.append({"text": text, "probability": probability, **logits})
        yield example.id, candidates


def write_parts(
    folder: str | os.PathLike[str], rankings: Iterable[Ranking], threshold: float, *, candidates: bool = True
) -> list[bool]:
    """Write predictions.json, null_odds.json and, if asked, nbest_predictions.json, each atomically; return
    whether each answer is "no answer".

    The set may be predicted in parts, of which one at a time is in memory.
    """
    target, abstained = Path(folder), []
    with (
        json_items(target / PREDICTIONS) as add_text,
        json_items(target / "null_odds.json") as add_odds,
        json_items(target / "nbest_predictions.json") if candidates else nullcontext() as add_list,
    ):
        for ranking in rankings:
            for id_, text in predictions(ranking, threshold).items():
                add_text(id_, text)
                abstained.append(not text)
            for id_, odds in null_odds(ranking).items():
                add_odds(id_, odds)
            if add_list is not None:
                for id_, ranked in nbest(ranking):
                    add_list(id_, ranked)
            del ranking  # free it before the next part is read
    return abstained
