"""Candidate spans for feature-based models: the n-grams within a sentence.

Rajpurkar et al. 2016 (section 5) use the constituents of a parse. Without a parser, candidates are all
n-grams of at most ``MAX_WORDS`` words that neither begin nor end with a punctuation mark.

Axes: ``T`` tokens of a passage, ``N`` candidates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from random import Random

import numpy as np

from qa_arch.types import Candidate, Example, Prediction, QuestionSet

MAX_WORDS = 8
"""Tokens of the longest candidate."""
_TOKEN = re.compile(r"\w+(?:[-'’.,]\w+)*|[^\w\s]")
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
_PUNCTUATION = frozenset(".,;:!?")


@dataclass(frozen=True)
class PassageCandidates:
    """Tokens, sentences and candidates of a context; candidates are sorted by length.

    ``first`` and ``last`` (N,) are the first and last token of each candidate, both inclusive.
    """

    tokens: tuple[str, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    """Character offsets of the tokens, ends exclusive."""
    sentence: np.ndarray
    """(T,) index of the sentence of each token."""
    first: np.ndarray
    last: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def sentence_first(self) -> np.ndarray:
        """(T,) index of the first token of each token's sentence."""
        return np.searchsorted(self.sentence, self.sentence, side="left")

    @cached_property
    def sentence_last(self) -> np.ndarray:
        """(T,) index of the last token of each token's sentence, inclusive."""
        return np.searchsorted(self.sentence, self.sentence, side="right") - 1

    @cached_property
    def _indices(self) -> dict[tuple[int, int], int]:
        spans = zip(self.first.tolist(), self.last.tolist(), strict=True)
        return {(self.begins[a], self.ends[b]): index for index, (a, b) in enumerate(spans)}

    def index(self, start: int, end: int) -> int | None:
        """Index of the candidate from character ``start`` to ``end`` (exclusive), or None."""
        return self._indices.get((start, end))

    def span(self, index: int) -> tuple[int, int]:
        """Character offsets of a candidate, end exclusive."""
        return self.begins[self.first[index]], self.ends[self.last[index]]


def passage(context: str, max_words: int = MAX_WORDS) -> PassageCandidates:
    """Tokenize a context and list its candidates; a context without words has none."""
    matches = list(_TOKEN.finditer(context))
    breaks = [match.end() for match in _SENTENCE_END.finditer(context)]
    begins = np.array([match.start() for match in matches], dtype=int)
    sentence = np.searchsorted(breaks, begins, side="right")  # as many sentences end before the token
    can_be_end = np.array([match[0] not in _PUNCTUATION for match in matches], dtype=bool)
    first, last = [], []
    # By length, so that all spans of a length are checked at once.
    for length in range(1, min(max_words, len(matches)) + 1):
        a = np.arange(len(matches) - length + 1)
        b = a + length - 1
        valid = (sentence[a] == sentence[b]) & can_be_end[a] & can_be_end[b]
        first.append(a[valid])
        last.append(b[valid])
    return PassageCandidates(
        tokens=tuple(match[0] for match in matches),
        begins=tuple(begins.tolist()),
        ends=tuple(match.end() for match in matches),
        sentence=sentence,
        first=np.concatenate(first) if first else np.zeros(0, int),
        last=np.concatenate(last) if last else np.zeros(0, int),
    )


def coverage(questions: QuestionSet, max_words: int = MAX_WORDS) -> float:
    """Share of questions with a gold answer among the candidates: an upper bound on exact match."""
    covered = 0
    for context, group in groupby(questions.examples, key=lambda e: e.context):
        spans = passage(context, max_words)
        covered += sum(any(spans.index(a.start, a.end) is not None for a in e.answers) for e in group)
    return covered / len(questions)


def answer(
    example: Example, spans: PassageCandidates, index: int | None, probability: float, score: float
) -> Prediction:
    """Candidate ``index`` as a prediction that never abstains; an empty answer for None."""
    best = None
    if index is not None:
        start, end = spans.span(index)
        best = Candidate(example.context[start:end], start, end, score, probability)
    return Prediction(example.id, best, null_odds=float("inf") if best is None else float("-inf"), windows=1)


def guess(questions: QuestionSet, seed: int = 0, max_words: int = MAX_WORDS) -> list[Prediction]:
    """Uniformly random candidates as answers, which depend on ``seed`` and the question id alone."""
    answers = []
    for example in questions.examples:
        spans = passage(example.context, max_words)
        index = Random(f"{seed}/{example.id}").randrange(len(spans)) if len(spans) else None
        answers.append(answer(example, spans, index, 1 / max(1, len(spans)), 0.0))
    return answers
