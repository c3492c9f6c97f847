"""Features of candidate spans after Rajpurkar et al. 2016, table 3, except those that need a parse.

Included: matching word and bigram frequencies (TF-IDF shared by question and sentence, left of the span,
right of it, inside, in the whole sentence), lengths, span word frequencies, lexicalised pairs of question
word and span word, and of question word and neighbour. The sequence of word classes replaces the
constituent label and the part-of-speech tags. Not included: root match, dependency paths; "within distance
2" is measured along the text instead of the dependency tree, and words replace lemmas.
As in the paper, real values are binned into ten buckets of equal size, and every feature of the span is used
alone and combined with the question's wh-word. A feature hashes to a row of a single weight table.

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

from baselines.candidates import PassageCandidates
from baselines.heuristics import FUNCTION_WORDS

BUCKETS = 10
NEAR = 2
"""Neighbours on each side of the span that are paired with the words of the question."""
STARTING = (
    "left length",
    "sentence length",
    "words left",
    "words in sentence",
    "bigrams left",
    "bigrams in sentence",
)
"""Real-valued features that depend only on the first token of a span."""
ENDING = ("right length", "words right", "bigrams right")
"""Real-valued features that depend only on the last token."""
WHOLE = ("length", "span words", "words inside", "bigrams inside")
_WORD = re.compile(r"\w+(?:[-'’.,]\w+)*")
_WH = ("how many", "how much", "how", "who", "whom", "whose", "what", "which", "when", "where", "why")
_ENDINGS = ("ing", "ed", "ly", "s")
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio; both of SplitMix64 (Steele et al. 2014)
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_SHIFT = np.uint64(29)


class Rows(NamedTuple):
    """Weight table rows that make up the scores of a question's candidates.

    The score of a span is the sum of its own rows, those of its two ends, and those of the pairs inside, left
    and right of it. Sums over tokens are shared by all spans that contain them.
    """

    span: np.ndarray
    """(N, K)"""
    start: np.ndarray
    """(T, K) of the first token: the text left of the span, and its sentence."""
    end: np.ndarray
    """(T, K) of the last token: the text right of the span."""
    inside: np.ndarray
    left: np.ndarray
    right: np.ndarray
    """(T, Q) pairs of a token and a question word, by position of the token."""


@dataclass(frozen=True)
class CorpusStatistics:
    """Statistics of the training passages: idf and bucket edges."""

    idf: Mapping[str, float]
    unseen: float
    """Idf of a word that occurs in no training passage."""
    edges: Mapping[str, np.ndarray]

    def weights(self, tokens: Sequence[str]) -> np.ndarray:
        """(T,) idf of each token; 0 for punctuation."""
        return np.array([self.idf.get(t, self.unseen) if t[0].isalnum() else 0.0 for t in tokens])


def inverse_document_frequencies(contexts: Iterable[str]) -> tuple[dict[str, float], float]:
    """(idf of every word of the passages, idf of an unseen word)."""
    documents = [set(map(str.lower, _WORD.findall(context))) for context in contexts]
    counts = Counter(word for words in documents for word in words)
    n_documents = len(documents)
    return {word: math.log(n_documents / n) for word, n in counts.items()}, math.log(n_documents + 1)


def bucket_edges(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Feature -> up to nine inner edges of ten equally populated buckets."""
    shares = np.arange(1, BUCKETS) / BUCKETS
    return {name: np.unique(np.quantile(column, shares)) for name, column in values.items()}


def question_words(question: str) -> list[str]:
    """Lower-case words of a question."""
    return _WORD.findall(question.lower())


def wh_word(question: str) -> str:
    """The first wh-word of a question, preferring longer ones ("how many"); "" if there is none."""
    text = f" {' '.join(question_words(question))} "
    positions = {wh: text.find(f" {wh} ") for wh in _WH}
    matches = [(position, -len(wh), wh) for wh, position in positions.items() if position >= 0]
    return min(matches)[2] if matches else ""


class PassageFeatures:
    """Features of the candidates of a passage, for its questions."""

    def __init__(self, spans: PassageCandidates, statistics: CorpusStatistics, rows: int) -> None:
        self.spans, self.statistics, self.size = spans, statistics, rows
        self.words = [token.lower() for token in spans.tokens]
        self.idf = statistics.weights(self.words)
        self.hashes = _hashes(self.words)
        self.classes = _hashes([_word_class(token) for token in spans.tokens])
        a, b = spans.first, spans.last
        self.shape = _sequence(self.classes, a, b)
        before, after = (np.r_[_ODD, self.classes], np.r_[self.classes, _ODD])  # _ODD: beyond the passage
        self.edge_in = _pair(before[:-1], self.classes, "edge in")
        self.edge_out = _pair(self.classes, after[1:], "edge out")

    def values(self, question: str) -> dict[str, np.ndarray]:
        """Real-valued features: (T,) if they depend only on one end of the span, else (N,)."""
        spans = self.spans
        a, b = spans.first, spans.last
        low, high = spans.sentence_first, spans.sentence_last + 1
        words = question_words(question)
        unigrams, bigrams = set(words), set(pairwise(words))
        position = np.arange(len(self.words))
        unigram_match = _prefix_sums(self.idf * np.array([w in unigrams for w in self.words], dtype=float))
        # A bigram counts at its first word, with the weight of both words.
        next_idf = np.r_[self.idf[1:], 0.0]
        in_question = [pair in bigrams for pair in pairwise([*self.words, ""])]
        bigram_match = _prefix_sums((self.idf + next_idf) * np.array(in_question, dtype=float))
        features = {
            "left length": position - low,
            "right length": high - 1 - position,
            "sentence length": high - low,
            "length": b - a + 1,
            "span words": _prefix_sums(self.idf)[b + 1] - _prefix_sums(self.idf)[a],
        }
        for name, total in (("words", unigram_match), ("bigrams", bigram_match)):
            features[f"{name} left"] = total[position] - total[low]
            features[f"{name} right"] = total[high] - total[position + 1]
            features[f"{name} in sentence"] = total[high] - total[low]
            features[f"{name} inside"] = total[b + 1] - total[a]
        return features

    def rows(self, question: str) -> Rows:
        """Hashed features of all candidates for ``question``."""
        values = self.values(question)
        bucket = {
            name: np.searchsorted(self.statistics.edges[name], value).astype(np.uint64)
            for name, value in values.items()
        }
        wh = _hashes([wh_word(question)])
        words = _hashes(list(dict.fromkeys(question_words(question))) or [""])
        span = [_named(bucket[name], name) for name in WHOLE] + [_named(self.shape, "classes")]
        start = [_named(bucket[name], name) for name in STARTING] + [self.edge_in]
        end = [_named(bucket[name], name) for name in ENDING] + [self.edge_out]
        pairs = (_pair(self.hashes[:, None], words, side) for side in ("inside", "left", "right"))
        alone = (np.stack(kind, -1) for kind in (span, start, end))
        # Weights are linear: only as pairs can "who" prefer capitals and "when" numbers.
        with_wh = (np.concatenate([kind, _pair(kind, wh, "wh")], -1) for kind in alone)
        return Rows(*map(self._fold, with_wh), *map(self._fold, pairs))

    def _fold(self, hashes: np.ndarray) -> np.ndarray:
        return (hashes % np.uint64(self.size)).astype(np.int64)


def _prefix_sums(values: np.ndarray) -> np.ndarray:
    """(T + 1,) sum of the values before each position."""
    return np.r_[0.0, np.cumsum(values)]


def _word_class(token: str) -> str:
    """Stand-in for a part-of-speech tag: function words and punctuation as is, else form and ending."""
    lower = token.lower()
    if lower in FUNCTION_WORDS or not token[0].isalnum():
        return lower
    if any(c.isdigit() for c in token):
        return "year" if len(token) == 4 and token.isdigit() else "number"
    form = "Name" if token[0].isupper() else "word"
    ending = next((ending for ending in _ENDINGS if lower.endswith(ending)), "")
    return f"{form}-{ending}" if form == "word" else form


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """(len(texts),) hashes, the same in every process."""
    return np.array([zlib.crc32(text.encode()) for text in texts], dtype=np.uint64)


def _mix_bits(values: np.ndarray) -> np.ndarray:
    values = (values ^ (values >> _SHIFT)) * _MIX
    return values ^ (values >> _SHIFT)


def _pair(a: np.ndarray, b: np.ndarray, name: str) -> np.ndarray:
    """Hashes of ordered pairs (broadcast), salted with ``name``."""
    return _mix_bits(_mix_bits(a * _ODD + _hashes([name])) + b * _MIX)


def _named(values: np.ndarray, name: str) -> np.ndarray:
    return _pair(values, _hashes([""]), name)


def _sequence(classes: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(N,) hash of the sequence of classes from ``first`` to ``last``."""
    value = np.zeros(len(first), dtype=np.uint64)
    for step in range(int((last - first).max(initial=-1)) + 1):
        within = first + step <= last
        token = classes[np.minimum(first + step, last)]
        value = np.where(within, _mix_bits(value * _ODD + token + np.uint64(1)), value)
    return value
