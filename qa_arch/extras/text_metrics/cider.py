"""CIDEr: similarity of TF-IDF weighted n-grams (Vedantam et al. 2015)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

ORDERS = (1, 2, 3, 4)
SCALE = 10.0
"""Factor of the COCO evaluation and of the figures in the literature."""
_WORD = re.compile(r"\w+")

References = Sequence[Sequence[str]]
"""One or more gold texts for each prediction, in the order of the predictions."""
Gram = tuple[str, ...]


def words(text: str) -> list[str]:
    """The words of ``text`` in lower case: runs of letters, digits and underscores."""
    return _WORD.findall(text.lower())


def cider(predictions: Sequence[str], references: References) -> float:
    """CIDEr, averaged over the questions; 0 to 10.

    For each n of 1 to 4 the cosine between the TF-IDF vectors of prediction and gold, averaged over the
    golds of the question (eq. 2), then over n with equal weights (eq. 3). The document frequency of an
    n-gram is the number of questions with a gold that contains it. Words are not stemmed. With a single
    question every weight is log 1 and the score 0.
    """
    golds = [[words(gold) for gold in row] for row in references]
    grams_of = ({gram for gold in row for n in ORDERS for gram in _grams(gold, n)} for row in golds)
    frequency = Counter(gram for grams in grams_of for gram in grams)

    def vector(tokens: list[str], n: int) -> dict[Gram, float]:
        """Eq. 1 with counts: the common factor of its frequencies leaves the cosine."""
        counts = Counter(_grams(tokens, n))
        return {
            gram: count * math.log(len(golds) / max(1, frequency[gram])) for gram, count in counts.items()
        }

    scores = []
    for text, row in zip(map(words, predictions), golds, strict=True):
        cosines = [_cosine(vector(text, n), vector(gold, n)) for gold in row for n in ORDERS]
        scores.append(math.fsum(cosines) / len(cosines))
    return SCALE * math.fsum(scores) / len(scores)


def _cosine(a: dict[Gram, float], b: dict[Gram, float]) -> float:
    norms = math.hypot(*a.values()) * math.hypot(*b.values())
    return math.fsum(a[gram] * b[gram] for gram in a.keys() & b.keys()) / norms if norms else 0.0


def _grams(tokens: list[str], n: int) -> list[Gram]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
