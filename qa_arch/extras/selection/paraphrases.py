"""Pairs of questions that are paraphrases or not: their file, and the scores of similarities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qa_arch.errors import DataError
from qa_arch.metrics.confidence import auroc


class Pair(NamedTuple):
    """Two questions and whether they are paraphrases, None where the file does not say."""

    first: str
    second: str
    paraphrase: bool | None


def read_pairs(path: str | Path) -> list[Pair]:
    """Read ``first<TAB>second`` per line, or ``first<TAB>second<TAB>0|1`` on every line; 1 is a paraphrase.

    Blank lines are skipped. Raises DataError naming the file and the line.
    """
    try:
        text = Path(path).expanduser().read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    pairs: list[Pair] = []
    # Only a line feed ends a pair: str.splitlines would also cut at U+2028 or U+0085 inside a question.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place, fields = f"{path}: line {number}", [field.strip() for field in line.split("\t")]
        if len(fields) not in (2, 3) or not all(fields[:2]):
            raise DataError(f"{place}: write two questions, and optionally 0 or 1, with tabs between them")
        label = {"1": True, "0": False}.get(fields[2]) if len(fields) == 3 else None
        if len(fields) == 3 and label is None:
            raise DataError(f"{place}: the label is {fields[2]!r}; write 1 for a paraphrase, else 0")
        if pairs and (label is None) != (pairs[0].paraphrase is None):
            raise DataError(f"{place}: some lines have a label and some have none; label all or none")
        pairs.append(Pair(fields[0], fields[1], label))
    if not pairs:
        raise DataError(f"{path}: has no pair of questions; write two per line with a tab between them")
    return pairs


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> dict[str, float | int | None]:
    """Scores in percent of N > 0 pairs, where ``labels`` are True for paraphrases.

    ``accuracy`` counts a pair of at least ``threshold`` as a paraphrase, ``oracle_accuracy`` is that at the
    threshold which is best for these labels: an upper bound, not a result. ``auroc`` is None without both
    kinds of pairs.
    """
    scores, positive = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    area = auroc(scores, positive)
    _, place = np.unique(scores, return_inverse=True)
    negatives, positives = np.bincount(place, ~positive), np.bincount(place, positive)
    # Per threshold, at each distinct similarity or above all: negatives below it and positives from it on.
    correct = np.r_[0, np.cumsum(negatives)] + np.r_[np.cumsum(positives[::-1])[::-1], 0]
    return {
        "pairs": len(scores),
        "paraphrases": int(positive.sum()),
        "threshold": threshold,
        "accuracy": 100 * float(((scores >= threshold) == positive).mean()),
        "oracle_accuracy": 100 * float(correct.max()) / len(scores),
        "auroc": None if area is None else 100 * area,
    }
