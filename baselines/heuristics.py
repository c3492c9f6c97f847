"""Untrained span heuristics: reference rows in tables.

Each has ``fit(calibration) -> fitted copy`` and ``predict(questions) -> {question id: text}``; an empty text
means "no answer".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from random import Random

from qa_arch.metrics.squad import score
from qa_arch.types import Example, QuestionSet

_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=\S)")
_FUNCTION_WORDS = """
    a about after an and are as at be been before by did do does for from had has have he her his how if in
    into is it its many much of on or she that the their them they this to under was were what when where
    which while who whom whose why will with would year
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


@dataclass(frozen=True, slots=True)
class AlwaysNoAnswer:
    """Abstains on every question: the floor of SQuAD 2.0."""

    def fit(self, calibration: QuestionSet) -> AlwaysNoAnswer:
        return self

    def predict(self, questions: QuestionSet) -> dict[str, str]:
        return {example.id: "" for example in questions.examples}


@dataclass(frozen=True, slots=True)
class RandomSpan:
    """A uniformly random span of at most ``max_words`` words; abstains with probability ``abstain_rate``.

    The answer depends on ``seed`` and the question's id alone, not on the other questions.
    """

    seed: int = 0
    max_words: int = 6
    abstain_rate: float = 0.5

    def fit(self, calibration: QuestionSet) -> RandomSpan:
        """Set ``abstain_rate`` to the share of unanswerable questions."""
        unanswerable = sum(not example.answerable for example in calibration.examples)
        return replace(self, abstain_rate=unanswerable / len(calibration))

    def predict(self, questions: QuestionSet) -> dict[str, str]:
        return {example.id: self._draw(example) for example in questions.examples}

    def _draw(self, example: Example) -> str:
        rng = Random(f"{self.seed}/{example.id}")
        words = list(_WORD.finditer(example.context))
        if rng.random() < self.abstain_rate or not words:
            return ""
        length = min(self.max_words, len(words))
        # Uniform over spans: each length is weighted by its number of spans.
        span_counts = [len(words) - more for more in range(length)]
        more = rng.choices(range(length), span_counts)[0]
        first = rng.randrange(span_counts[more])
        return example.context[words[first].start() : words[first + more].end()]


@dataclass(frozen=True, slots=True)
class WordOverlap:
    """Answers from the sentence that shares the most content words with the question.

    The answer is its longest run of names and numbers that are not in the question, or else of any content
    words. Abstains if the sentence shares less than ``threshold`` of the question's content words.
    """

    threshold: float = 0.5

    def fit(self, calibration: QuestionSet) -> WordOverlap:
        """Choose the threshold with the best F1 on ``calibration``, the lowest if tied."""
        picks = {example.id: _best_sentence(example) for example in calibration.examples}
        thresholds = [*sorted({share for share, _ in picks.values()}), float("inf")]  # always abstains
        best = max(thresholds, key=lambda t: score(calibration, _at_threshold(picks, t)).f1)
        return replace(self, threshold=best)

    def predict(self, questions: QuestionSet) -> dict[str, str]:
        picks = {example.id: _best_sentence(example) for example in questions.examples}
        return _at_threshold(picks, self.threshold)


def _at_threshold(picks: dict[str, tuple[float, str]], threshold: float) -> dict[str, str]:
    return {id_: text if share >= threshold else "" for id_, (share, text) in picks.items()}


def _content(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - FUNCTION_WORDS


def _best_sentence(example: Example) -> tuple[float, str]:
    """(share of the question's content words in the best sentence, answer picked from it)."""
    question = _content(example.question)
    sentences = _SENTENCE_END.split(example.context)
    shares = [len(question & _content(sentence)) / max(1, len(question)) for sentence in sentences]
    best = max(range(len(sentences)), key=shares.__getitem__)
    return shares[best], _pick(sentences[best], question)


def _pick(sentence: str, question: frozenset[str]) -> str:
    """The longest run of name-like words not in the question, or else of any content words."""
    words = list(_WORD.finditer(sentence))
    is_new = [word[0].lower() not in question | FUNCTION_WORDS for word in words]
    starts = [word[0][0] for word in words]
    is_name = [new and (c.isupper() or c.isdigit()) for c, new in zip(starts, is_new, strict=True)]
    runs = list(_runs(is_name)) or list(_runs(is_new))
    if not runs:
        return ""
    first, last = max(runs, key=lambda run: run[1] - run[0])
    return sentence[words[first].start() : words[last].end()]


def _runs(flags: list[bool]) -> Iterator[tuple[int, int]]:
    """(first, last) of each maximal run of true flags."""
    for flag, group in groupby(range(len(flags)), key=flags.__getitem__):
        indices = list(group)
        if flag:
            yield indices[0], indices[-1]
