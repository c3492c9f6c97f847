"""Rows of answer selection that learn nothing and stand beside the models in every table.

Each has ``rank(questions) -> {row: score of each candidate}``, the higher the better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log

import numpy as np

from qa_arch.metrics.question_types import answer_type
from qa_arch.types.text import SelectionSet

Scores = dict[int, list[float]]
_MAIN = {
    "PERSON": "HUM",
    "LOCATION": "LOC",
    "NUMBER": "NUM",
    "DESCRIPTION": "DESC",
    "ENTITY": "ENTY",
    "YES/NO": "DESC",
}
"""Main class of Li & Roth 2002 of each answer type of the rules."""


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """A uniform number for every candidate."""

    seed: int = 0

    def rank(self, questions: SelectionSet) -> Scores:
        draw = np.random.default_rng(self.seed)
        return {row: draw.random(len(q.candidates)).tolist() for row, q in enumerate(questions.questions)}


@dataclass(frozen=True, slots=True)
class ClassRules:
    """1 for every sub class of the main class that question word and noun give away, 0 for the others.

    The rules are those of ``metrics.question_types``, which know main classes alone.
    """

    def rank(self, questions: SelectionSet) -> Scores:
        mains = [answer[0].partition(":")[0] for answer in questions.answers]
        return {
            row: [float(mains[a] == _MAIN[answer_type(question.question)]) for a in question.candidates]
            for row, question in enumerate(questions.questions)
        }


@dataclass(frozen=True, slots=True)
class WordOverlap:
    """The distinct words, case folded, that question and candidate share, weighted by their rarity.

    A word counts log(A / a), where a of the A answers of the set hold it: "weighted word count" in Yang
    et al. 2015 (WikiQA).
    """

    def rank(self, questions: SelectionSet) -> Scores:
        answers = [_folded(answer) for answer in questions.answers]
        holding = Counter(word for answer in answers for word in answer)
        weight = {word: log(len(answers) / count) for word, count in holding.items()}
        scores: Scores = {}
        for row, question in enumerate(questions.questions):
            words = _folded(question.question)
            scores[row] = [fsum(weight[word] for word in words & answers[a]) for a in question.candidates]
        return scores


def _folded(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word.casefold() for word in words)
