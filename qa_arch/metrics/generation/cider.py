"""CIDEr, consensus with the golds by TF-IDF weighted n-grams (Vedantam et al. 2015). No library needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from qa_arch.metrics.generation.words import References, require_golds, words

ORDERS = (1, 2, 3, 4)
SCALE = 10.0
"""The factor by which the COCO evaluation multiplies, and with it the literature."""
_SIGMA = 6.0

Gram = tuple[str, ...]
Vector = dict[Gram, float]


def cider(
    predictions: Sequence[str],
    references: References,
    *,
    variant: Literal["cider", "cider-d"] = "cider",
) -> float:
    """Mean over the questions, 0 to 10.

    For each n of 1 to 4 the cosine between the TF-IDF vectors of prediction and gold, averaged over the
    golds of the question (eq. 2), then over n with equal weights (eq. 3). The document frequency of an
    n-gram is the number of questions with a gold that holds it. ``cider-d`` clips each entry of the
    prediction at the gold's and penalises a difference in length (sigma 6, section 5); what is clipped are
    counts, as in the COCO evaluation, not the relative frequencies of eq. 1. Words are not stemmed. With
    a single question every weight is log 1 and the score 0.
    """
    require_golds(predictions, references)
    golds = [[words(gold) for gold in row] for row in references]
    held = ({gram for gold in row for n in ORDERS for gram in _grams(gold, n)} for row in golds)
    seen = Counter(gram for grams in held for gram in grams)
    scores = []
    for text, row in zip(map(words, predictions), golds, strict=True):
        agreed = [_agreement(text, gold, seen, len(golds), clipped=variant == "cider-d") for gold in row]
        scores.append(math.fsum(agreed) / len(agreed))
    return SCALE * math.fsum(scores) / len(scores)


def _agreement(text: list[str], gold: list[str], seen: Counter[Gram], corpus: int, *, clipped: bool) -> float:
    """Mean over n of the (clipped) cosines of one prediction with one gold, 0 to 1."""
    total = 0.0
    for n in ORDERS:
        ours, theirs = _vector(text, n, seen, corpus), _vector(gold, n, seen, corpus)
        norms = _norm(ours) * _norm(theirs)
        if norms:
            pairs = ((ours[gram], theirs[gram]) for gram in ours.keys() & theirs.keys())
            total += math.fsum((min(a, b) if clipped else a) * b for a, b in pairs) / norms
    penalty = math.exp(-((len(text) - len(gold)) ** 2) / (2 * _SIGMA**2)) if clipped else 1.0
    return penalty * total / len(ORDERS)


def _vector(tokens: list[str], n: int, seen: Counter[Gram], corpus: int) -> Vector:
    """Eq. 1 with counts: the common factor of its frequencies leaves the cosine (but not a clipped one)."""
    counts = Counter(_grams(tokens, n))
    return {gram: count * math.log(corpus / max(1, seen[gram])) for gram, count in counts.items()}


def _norm(vector: Vector) -> float:
    return math.sqrt(math.fsum(value**2 for value in vector.values()))


def _grams(tokens: list[str], n: int) -> list[Gram]:
    return [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
