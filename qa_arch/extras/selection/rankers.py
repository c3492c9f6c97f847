"""Heuristics of answer selection without training: reference rows beside the models in tables.

All have ``rank(questions) -> {row: scores of its candidates}``, higher is better.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log

import numpy as np

from qa_arch.extras.selection.scores import answer_type
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
"""Answer type of the rules -> main class of Li & Roth 2002."""


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """A uniform random score for every candidate."""

    seed: int = 0

    def rank(self, questions: SelectionSet) -> Scores:
        draw = np.random.default_rng(self.seed)
        return {row: draw.random(len(q.candidates)).tolist() for row, q in enumerate(questions.questions)}


@dataclass(frozen=True, slots=True)
class ClassRules:
    """1 for the sub classes of the main class that the rules predict from question word and noun, else 0.

    The rules of ``answer_type`` know main classes only.
    """

    def rank(self, questions: SelectionSet) -> Scores:
        mains = [answer[0].partition(":")[0] for answer in questions.answers]
        return {
            row: [float(mains[a] == _MAIN[answer_type(question.question)]) for a in question.candidates]
            for row, question in enumerate(questions.questions)
        }


@dataclass(frozen=True, slots=True)
class WordOverlap:
    """Sum of the weights of the distinct, case-folded words shared by question and candidate.

    The weight of a word is log(A / a), where a of the A answers of the set contain it: "weighted word count"
    in Yang et al. 2015 (WikiQA).
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
