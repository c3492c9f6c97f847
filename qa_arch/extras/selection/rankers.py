"""Untrained references: heuristics for answer selection, and rules for question types.

They are reference rows in tables; each has ``rank(questions) -> {row: scores of its candidates}``, higher is
better. The rules derive the main class of Li & Roth 2002, as far as the question word and the noun after it
determine it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log

import numpy as np

from qa_arch.extras.selection.sets import SelectionSet
from qa_arch.types import ASKING

Scores = dict[int, list[float]]
_VERBS, _HOW_NUMBER = (
    frozenset(words.split())
    for words in (
        "is are was were am do does did has have had can could will would shall should may might must",
        "many much long old far often large big tall high deep wide fast heavy hot cold late early few",
    )
)
_BY_NOUN = {
    "HUM": "person people man woman king queen president author artist actor actress singer scientist"
    " leader emperor pope name",
    "LOC": "city country state place location town river continent region island street mountain"
    " province county village capital nation",
    "NUM": "year date day month century decade time age number percentage percent amount population"
    " temperature size rate height length distance cost price",
}
_NOUN = {noun: main for main, nouns in _BY_NOUN.items() for noun in nouns.split()}
_DIRECT = {"who": "HUM", "whom": "HUM", "whose": "HUM", "where": "LOC", "when": "NUM", "why": "DESC"}


@dataclass(frozen=True, slots=True)
class RandomOrder:
    """A uniform random score for every candidate."""

    seed: int = 0

    def rank(self, questions: SelectionSet) -> Scores:
        draw = np.random.default_rng(self.seed)
        return {row: draw.random(len(q.candidates)).tolist() for row, q in enumerate(questions.questions)}


@dataclass(frozen=True, slots=True)
class ClassRules:
    """1 for all sub classes of the main class that ``main_class`` predicts, else 0."""

    def rank(self, questions: SelectionSet) -> Scores:
        mains = [answer[0].partition(":")[0] for answer in questions.answers]
        return {
            row: [float(mains[a] == main_class(question.question)) for a in question.candidates]
            for row, question in enumerate(questions.questions)
        }


@dataclass(frozen=True, slots=True)
class OverlapRanker:
    """Sum of the weights of the distinct, case-folded words shared by question and candidate.

    The weight of a word is log(A / a) if a of the A answers of the set contain it ("weighted word count" in
    Yang et al. 2015, WikiQA).
    """

    def rank(self, questions: SelectionSet) -> Scores:
        answers = [_folded(answer) for answer in questions.answers]
        document_counts = Counter(word for answer in answers for word in answer)
        weight = {word: log(len(answers) / count) for word, count in document_counts.items()}
        scores: Scores = {}
        for row, question in enumerate(questions.questions):
            words = _folded(question.question)
            # Exactly rounded, as the order of texts in a set differs between processes.
            scores[row] = [fsum(weight[word] for word in words & answers[a]) for a in question.candidates]
        return scores


def _folded(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word.casefold() for word in words)


def main_class(words: Sequence[str]) -> str:
    """Main class of Li & Roth 2002 of the answer that a question asks for: HUM, LOC, NUM (dates included),
    DESC, or else ENTY.

    A question that begins with a verb is a yes/no question (DESC), so "Was it where they met?", which
    ``types.question_word`` counts as where.
    """
    lower = [word.lower() for word in words]
    if lower and lower[0] in _VERBS:
        return "DESC"
    asking = next((word for word in lower if word in ASKING), None)
    if asking is None:
        return "ENTY"
    if asking in _DIRECT:
        return _DIRECT[asking]
    following = lower[lower.index(asking) + 1 :]
    if asking == "how":
        return "NUM" if following and following[0] in _HOW_NUMBER else "DESC"
    return next((_NOUN[word] for word in following[:2] if word in _NOUN), "ENTY")
