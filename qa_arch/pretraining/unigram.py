"""The Unigram language model of subwords (Kudo 2018, section 3.2), trained reproducibly.

The trainer of the ``tokenizers`` package gives other scores in every process. This one trains by Viterbi:
the expected counts of the EM algorithm are those of the best segmentation alone. It starts from the merges of
byte-pair encoding, as Kudo's footnote allows in place of all frequent substrings.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models

LONGEST = 16
"""Characters of a piece."""
LEAST = 2
"""Occurrences of a piece: the words of rare ones would otherwise be pieces, and parts of words be lost."""
ROUNDS = 2
"""Rounds of EM between two prunings, and at the end."""
SHRINK = 0.75
"""Share of the pieces that a pruning keeps."""
_BATCH = 10_000
_UNSEEN = 0.5
"""Added to every count, so that a piece of no use now may be of use when longer ones are pruned."""


def fit(
    words: Mapping[str, int], alphabet: Collection[str], seeds: Iterable[str], size: int
) -> list[tuple[str, float]]:
    """(piece, log probability) of ``size`` pieces for ``words`` (word -> frequency), the likeliest first.

    The characters of ``alphabet`` are pieces, and words have no others; the other pieces come from ``seeds``,
    as far as they are not too rare or too long. There are fewer than ``size`` where the seeds are fewer, and
    more where the characters are.
    """
    candidates = sorted({*alphabet, *(seed for seed in seeds if len(seed) <= LONGEST)})
    counts = _substring_counts(candidates, words)
    useful = np.array([n >= LEAST or len(piece) == 1 for piece, n in zip(candidates, counts, strict=True)])
    pieces = [piece for piece, is_useful in zip(candidates, useful, strict=True) if is_useful]
    scores = _scores(pieces, counts[useful])
    size = max(size, len(alphabet))
    while True:
        for _ in range(ROUNDS):
            counts = _viterbi_counts(scores, words)
            scores = _scores(list(scores), counts)
        if len(scores) <= size:
            return sorted(scores.items(), key=lambda item: (-item[1], item[0]))
        scores = _prune(scores, counts, max(size, int(SHRINK * len(scores))))


def _substring_counts(pieces: Iterable[str], words: Mapping[str, int]) -> NDArray[np.float64]:
    """How often each piece occurs in the words, overlaps included."""
    number = {piece: place for place, piece in enumerate(pieces)}
    counts = np.zeros(len(number))
    for word, n in words.items():
        for begin in range(len(word)):
            for end in range(begin + 1, min(begin + LONGEST, len(word)) + 1):
                if (place := number.get(word[begin:end])) is not None:
                    counts[place] += n
    return counts


def _scores(pieces: list[str], counts: NDArray[np.float64]) -> dict[str, float]:
    """M step: log relative frequency of each piece."""
    smoothed = counts + _UNSEEN
    return dict(zip(pieces, np.log(smoothed / smoothed.sum()).tolist(), strict=True))


def _viterbi_counts(scores: Mapping[str, float], words: Mapping[str, int]) -> NDArray[np.float64]:
    """E step: how often each piece occurs in the best segmentation of the words."""
    tokenizer = Tokenizer(models.Unigram([*scores.items()], unk_id=None))
    counts = np.zeros(len(scores))
    texts, frequencies = list(words), np.fromiter(words.values(), np.float64, len(words))
    for begin in range(0, len(texts), _BATCH):
        encodings = tokenizer.encode_batch(texts[begin : begin + _BATCH], add_special_tokens=False)
        lengths = [len(encoding.ids) for encoding in encodings]
        ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, sum(lengths))
        weights = np.repeat(frequencies[begin : begin + _BATCH], lengths)
        counts += np.bincount(ids, weights, len(counts))
    return counts


def _prune(scores: Mapping[str, float], counts: NDArray[np.float64], size: int) -> dict[str, float]:
    """The ``size`` pieces whose loss would cost most likelihood, all characters among them."""
    costs = {
        piece: count * (score - _best_without(piece, scores)) if len(piece) > 1 else math.inf
        for (piece, score), count in zip(scores.items(), counts.tolist(), strict=True)
    }
    ranked = sorted(costs, key=lambda piece: (-costs[piece], -scores[piece], piece))
    best = set(ranked[:size])
    return {piece: score for piece, score in scores.items() if piece in best}


def _best_without(piece: str, scores: Mapping[str, float]) -> float:
    """Log probability of the best segmentation of ``piece`` into several pieces."""
    best = [0.0] + [-math.inf] * len(piece)
    for end in range(1, len(piece) + 1):
        for begin in range(end):
            score = scores.get(piece[begin:end])
            if score is not None and end - begin < len(piece):
                best[end] = max(best[end], best[begin] + score)
    return best[-1]
