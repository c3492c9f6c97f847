"""Answer normalisation and token F1 of the SQuAD evaluation: lower case, no punctuation, no articles.

Both evaluations normalise alike (Rajpurkar et al. 2016, section 6.1). They differ if the normalised text
is empty: two empty answers agree fully in 2.0 and have F1 0 in 1.1.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from qa_arch.types.text import Protocol

ARTICLES = frozenset(("a", "an", "the"))

_DROP_ARTICLES = re.compile(r"\b(?:a|an|the)\b").sub
# Every ASCII character has an entry, because a missing entry costs an exception.
_DROP_PUNCTUATION = {ord(c): None if c in string.punctuation else c for c in map(chr, range(128))}
_LOWER_BYTES = bytes(range(256)).lower()
_PUNCTUATION_BYTES = string.punctuation.encode()


class Overlap(NamedTuple):
    """Exact match and token overlap of a prediction with one gold answer, each in 0..1.

    ``f1`` is an int (0 or 1) where the official scripts give an int: from Python 3.12 on, ``sum``
    rounds ints and floats differently, and the totals must be equal to the last bit.
    """

    exact: int
    f1: float
    precision: float
    recall: float


PERFECT = Overlap(1, 1.0, 1.0, 1.0)
NONE = Overlap(0, 0, 0, 0)
_BOTH_EMPTY: dict[Protocol, Overlap] = {"2.0": Overlap(1, 1, 1, 1), "1.1": Overlap(1, 0, 0, 0)}


def normalise(text: str) -> str:
    """``text`` in lower case, without punctuation and articles, words separated by single spaces."""
    if text.isascii() and text.isprintable():
        # Only letters, digits and spaces remain, so that an article is always a whole word.
        words = text.encode().translate(_LOWER_BYTES, _PUNCTUATION_BYTES).decode().split()
        if not ARTICLES.isdisjoint(words):
            words = [word for word in words if word not in ARTICLES]
    else:
        # Dashes, typographic quotes and control characters remain, and may be next to an article.
        words = _DROP_ARTICLES(" ", text.lower().translate(_DROP_PUNCTUATION)).split()
    return " ".join(words)


def best_overlap(predicted: str, golds: Sequence[str], protocol: Protocol) -> Overlap:
    """Overlap of ``predicted`` with the gold answer of highest F1 (the first on a tie).

    Both must be normalised; their tokens are compared as multisets. Without golds all values are 0.
    """
    if predicted in golds:
        return PERFECT if predicted else _BOTH_EMPTY[protocol]
    tokens = predicted.split()
    distinct = set(tokens)
    best = NONE
    for gold in golds:
        gold_tokens = gold.split()
        common = distinct.intersection(gold_tokens)
        if not common:
            continue
        if len(distinct) == len(tokens):
            overlap = len(common)
        else:
            overlap = sum(min(tokens.count(token), gold_tokens.count(token)) for token in common)
        precision = overlap / len(tokens)
        recall = overlap / len(gold_tokens)
        f1 = (2 * precision * recall) / (precision + recall)
        if f1 > best.f1:
            best = Overlap(0, f1, precision, recall)
    return best
