"""CIDEr: similarity of TF-IDF weighted n-grams (Vedantam et al. 2015)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from qa_arch.extras.text_metrics.golds import References, require_golds, words

ORDERS = (1, 2, 3, 4)
SCALE = 10.0
"""Factor of the COCO evaluation and of the figures in the literature."""
_SIGMA = 6.0

Gram = tuple[str, ...]
Vector = dict[Gram, float]


def cider(
    predictions: Sequence[str],
    references: References,
    *,
    variant: Literal["cider", "cider-d"] = "cider",
) -> float:
    """CIDEr, averaged over the questions; 0 to 10.

    For each n of 1 to 4 the cosine between the TF-IDF vectors of prediction and gold, averaged over the
    golds of the question (eq. 2), then over n with equal weights (eq. 3). The document frequency of an
    n-gram is the number of questions with a gold that contains it. ``cider-d`` clips each entry of the
    prediction at the gold's and penalises a difference in length (sigma 6, section 5); counts are clipped,
    as in the COCO evaluation, not the relative frequencies of eq. 1. Words are not stemmed. With
    a single question every weight is log 1 and the score 0.
    """
    require_golds(predictions, references)
    golds = [[words(gold) for gold in row] for row in references]
    grams_of = ({gram for gold in row for n in ORDERS for gram in _grams(gold, n)} for row in golds)
    frequency = Counter(gram for grams in grams_of for gram in grams)
    scores = []
    for text, row in zip(map(words, predictions), golds, strict=True):
        similarities = [
            _similarity(text, gold, frequency, len(golds), clipped=variant == "cider-d") for gold in row
        ]
        scores.append(math.fsum(similarities) / len(similarities))
    return SCALE * math.fsum(scores) / len(scores)


def _similarity(
    text: list[str], gold: list[str], frequency: Counter[Gram], corpus: int, *, clipped: bool
) -> float:
    """Mean over n of the (clipped) cosines of one prediction with one gold, 0 to 1."""
    total = 0.0
    for n in ORDERS:
        predicted, expected = _vector(text, n, frequency, corpus), _vector(gold, n, frequency, corpus)
        norms = _norm(predicted) * _norm(expected)
        if norms:
            pairs = ((predicted[gram], expected[gram]) for gram in predicted.keys() & expected.keys())
            total += math.fsum((min(x, y) if clipped else x) * y for x, y in pairs) / norms
    penalty = math.exp(-((len(text) - len(gold)) ** 2) / (2 * _SIGMA**2)) if clipped else 1.0
    return penalty * total / len(ORDERS)


def _vector(tokens: list[str], n: int, frequency: Counter[Gram], corpus: int) -> Vector:
    """Eq. 1 with counts: the common factor of its frequencies leaves the cosine (but not a clipped one)."""
    counts = Counter(_grams(tokens, n))
    return {gram: count * math.log(corpus / max(1, frequency[gram])) for gram, count in counts.items()}


def _norm(vector: Vector) -> float:
    return math.sqrt(math.fsum(value**2 for value in vector.values()))


def _grams(tokens: list[str], n: int) -> list[Gram]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
