"""Features of candidate spans after Rajpurkar et al. 2016, table 3, as far as no parse is needed.

Kept: matching word and bigram frequencies (TF-IDF of what question and sentence share, left of the span,
right of it, inside, in the whole sentence), lengths, span word frequencies, lexicalised pairs of question
word and span word, and of question word and neighbour. The sequence of word classes stands for the
constituent label and the part-of-speech tags. Left out: root match, dependency paths; "within distance
2" is counted along the text and not along the dependency tree, and words stand for their lemmas.
Real values become ten buckets of equal size, and every feature of the span comes alone and once more
together with the question's wh-word, as in the paper; a feature is a hashed row of one weight table.

Axes: ``T`` tokens, ``N`` candidates, ``Q`` question words, ``K`` features of a kind.
"""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from baselines.candidates import Passage
from baselines.heuristics import FUNCTION_WORDS

BUCKETS = 10
NEAR = 2
"""Neighbours on each side whose words are paired with the question's."""
STARTING = (
    "left length",
    "sentence length",
    "words left",
    "words in sentence",
    "bigrams left",
    "bigrams in sentence",
)
"""The real-valued features that the first token of a span decides alone."""
ENDING = ("right length", "words right", "bigrams right")
"""Those that the last token decides."""
WHOLE = ("length", "span words", "words inside", "bigrams inside")
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")
_WH = ("how many", "how much", "how", "who", "whom", "whose", "what", "which", "when", "where", "why")
_ENDINGS = ("ing", "ed", "ly", "s")
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


class Rows(NamedTuple):
    """Which rows of the weight table make the score of each candidate of one question.

    The score of a span is its own rows, those of its two ends, and those of the pairs that fall inside,
    left and right of it. Sums over tokens are shared by all spans that hold them.
    """

    span: np.ndarray
    """(N, K)"""
    start: np.ndarray
    """(T, K) of the first token: what lies left of the span, and its sentence."""
    end: np.ndarray
    """(T, K) of the last token: what lies right of the span."""
    inside: np.ndarray
    left: np.ndarray
    right: np.ndarray
    """(T, Q) pairs of a token and a question word, by where the token lies."""


@dataclass(frozen=True)
class Weighing:
    """What is learned from the training passages before the weights: idf, and the edges of the buckets."""

    idf: Mapping[str, float]
    unseen: float
    """The idf of a word of no training passage."""
    edges: Mapping[str, np.ndarray]

    def weights(self, tokens: Sequence[str]) -> np.ndarray:
        """(T,) idf of each token; punctuation weighs nothing."""
        return np.array([self.idf.get(t, self.unseen) if t[0].isalnum() else 0.0 for t in tokens])


def inverse_document_frequencies(contexts: Iterable[str]) -> tuple[dict[str, float], float]:
    """Idf of every word over the passages, and that of a word in none of them."""
    held = [set(map(str.lower, _WORD.findall(context))) for context in contexts]
    counts = Counter(word for words in held for word in words)
    return {word: math.log(len(held) / n) for word, n in counts.items()}, math.log(len(held) + 1)


def bucket_edges(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Up to nine inner edges of ten buckets that hold equally many of each feature's values."""
    shares = np.arange(1, BUCKETS) / BUCKETS
    return {name: np.unique(np.quantile(found, shares)) for name, found in values.items()}


def question_words(question: str) -> list[str]:
    return _WORD.findall(question.lower())


def wh_word(question: str) -> str:
    """The question word that comes first, longer ones before their parts; "" where there is none."""
    text = f" {' '.join(question_words(question))} "
    places = {wh: text.find(f" {wh} ") for wh in _WH}
    found = [(place, -len(wh), wh) for wh, place in places.items() if place >= 0]
    return min(found)[2] if found else ""


class PassageFeatures:
    """The rows of one passage's candidates, for each of its questions."""

    def __init__(self, spans: Passage, weighing: Weighing, rows: int) -> None:
        self.spans, self.weighing, self.size = spans, weighing, rows
        self.words = [token.lower() for token in spans.tokens]
        self.idf = weighing.weights(self.words)
        self.hashes = _hashes(self.words)
        self.classes = _hashes([_word_class(token) for token in spans.tokens])
        a, b = spans.first, spans.last
        self.shape = _sequence(self.classes, a, b)
        before, after = (np.r_[_ODD, self.classes], np.r_[self.classes, _ODD])
        self.edge_in = _pair(before[:-1], self.classes, "edge in")
        self.edge_out = _pair(self.classes, after[1:], "edge out")

    def values(self, question: str) -> dict[str, np.ndarray]:
        """The real-valued features: (T,) where they depend on one end or the sentence, else (N,)."""
        spans = self.spans
        a, b = spans.first, spans.last
        low, high = spans.sentence_first, spans.sentence_last + 1
        asked = question_words(question)
        held, pairs = set(asked), set(pairwise(asked))
        here = np.arange(len(self.words))
        word = _total(self.idf * np.array([w in held for w in self.words], dtype=float))
        # A bigram stands at its first word, and weighs what its two words weigh.
        next_idf = np.r_[self.idf[1:], 0.0]
        together = [pair in pairs for pair in zip(self.words, [*self.words[1:], ""], strict=True)]
        bigram = _total((self.idf + next_idf) * np.array(together, dtype=float))
        found = {
            "left length": here - low,
            "right length": high - 1 - here,
            "sentence length": high - low,
            "length": b - a + 1,
            "span words": _total(self.idf)[b + 1] - _total(self.idf)[a],
        }
        for name, total in (("words", word), ("bigrams", bigram)):
            found[f"{name} left"] = total[here] - total[low]
            found[f"{name} right"] = total[high] - total[here + 1]
            found[f"{name} in sentence"] = total[high] - total[low]
            found[f"{name} inside"] = total[b + 1] - total[a]
        return found

    def rows(self, question: str) -> Rows:
        """The hashed features of all candidates for ``question``."""
        values = self.values(question)
        bucket = {
            name: np.searchsorted(self.weighing.edges[name], value).astype(np.uint64)
            for name, value in values.items()
        }
        wh = _hashes([wh_word(question)])
        asked = _hashes(list(dict.fromkeys(question_words(question))) or [""])
        span = [_named(bucket[name], name) for name in WHOLE] + [_named(self.shape, "classes")]
        start = [_named(bucket[name], name) for name in STARTING] + [self.edge_in]
        end = [_named(bucket[name], name) for name in ENDING] + [self.edge_out]
        pairs = (_pair(self.hashes[:, None], asked, place) for place in ("inside", "left", "right"))
        alone = (np.stack(kind, -1) for kind in (span, start, end))
        with_wh = (np.concatenate([kind, _pair(kind, wh, "wh")], -1) for kind in alone)
        return Rows(*map(self._fold, with_wh), *map(self._fold, pairs))

    def _fold(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes % np.uint64(self.size)).astype(np.int64)


def _total(values: np.ndarray) -> np.ndarray:
    """(T + 1,) sums of what comes before each place."""
    return np.r_[0.0, np.cumsum(values)]


def _word_class(token: str) -> str:
    """What stands for a part of speech: function words and marks themselves, else form and ending."""
    lower = token.lower()
    if lower in FUNCTION_WORDS or not token[0].isalnum():
        return lower
    if any(c.isdigit() for c in token):
        return "year" if len(token) == 4 and token.isdigit() else "number"
    form = "Name" if token[0].isupper() else "word"
    ending = next((ending for ending in _ENDINGS if lower.endswith(ending)), "")
    return f"{form}-{ending}" if form == "word" else form


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """(len,) a number for each text, the same in every process."""
    return np.array([zlib.crc32(text.encode()) for text in texts], dtype=np.uint64)


def _mixed(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> _SHIFT)) * _MIX
    return values ^ (values >> _SHIFT)


def _pair(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """A number for each pair (broadcast) under a name; order counts."""
    return _mixed(_mixed(a * _ODD + _hashes([name])) + b * _MIX)


def _named(values: np.ndarray, name: str) -> np.ndarray:
    return _pair(values, _hashes([""]), name)


def _sequence(classes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(N,) a number for the classes of the tokens from ``first`` to ``last``, order counting."""
    value = np.zeros(len(first), dtype=np.uint64)
    for step in range(int((last - first).max(initial=-1)) + 1):
        within = first + step <= last
        token = classes[np.minimum(first + step, last)]
        value = np.where(within, _mixed(value * _ODD + token + np.uint64(1)), value)
    return value
