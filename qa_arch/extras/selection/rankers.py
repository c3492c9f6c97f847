"""Untrained references: heuristics for answer selection, and rules for question types.

The heuristics are reference rows in tables; each has ``rank(questions) -> {row: scores of its candidates}``,
higher is better. The rules derive the question word and the expected answer type: the coarse classes of Li &
Roth 2002, as far as the question word and the noun after it determine them.
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
_PREPOSITIONS, _VERBS, _HOW_NUMBER = (
    frozenset(words.split())
    for words in (
        "in on at by for from of to with under during after before about into upon as",
        "is are was were am do does did has have had can could will would shall should may might must",
        "many much long old far often large big tall high deep wide fast heavy hot cold late early few",
    )
)
_BY_NOUN = {
    "PERSON": "person people man woman king queen president author artist actor actress singer scientist"
    " leader emperor pope name",
    "LOCATION": "city country state place location town river continent region island street mountain"
    " province county village capital nation",
    "NUMBER": "year date day month century decade time age number percentage percent amount population"
    " temperature size rate height length distance cost price",
}
_NOUN = {noun: kind for kind, nouns in _BY_NOUN.items() for noun in nouns.split()}
_DIRECT = {"who": "PERSON", "whom": "PERSON", "whose": "PERSON", "where": "LOCATION", "when": "NUMBER"}
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
    """1 for all sub classes of the main class that ``answer_type`` predicts, else 0."""

    def rank(self, questions: SelectionSet) -> Scores:
        mains = [answer[0].partition(":")[0] for answer in questions.answers]
        return {
            row: [float(mains[a] == _MAIN[answer_type(question.question)]) for a in question.candidates]
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
            scores[row] = [fsum(weight[word] for word in words & answers[a]) for a in question.candidates]
        return scores


def _folded(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word.casefold() for word in words)


def asking_word(words: Sequence[str]) -> str:
    """Question word, ``yes/no`` if the question begins with a verb, else ``other``.

    The first word decides, or the word after a preposition; otherwise the first question word anywhere. "Was
    it where they met?" is thus a yes/no question, which ``types.question_word`` counts as where.
    """
    lower = [word.lower() for word in words]
    for word in lower[:1] + (lower[1:2] if lower[:1] and lower[0] in _PREPOSITIONS else []):
        if word in ASKING:
            return word
    if lower and lower[0] in _VERBS:
        return "yes/no"
    return next((word for word in lower if word in ASKING), "other")


def question_type(words: Sequence[str]) -> str:
    """Question word and answer type, such as ``how:NUMBER``; see ``answer_type``."""
    return f"{asking_word(words)}:{answer_type(words)}"


def answer_type(words: Sequence[str]) -> str:
    """PERSON, LOCATION, NUMBER (dates included), DESCRIPTION, YES/NO, or else ENTITY."""
    lower = [word.lower() for word in words]
    word = asking_word(words)
    if word in _DIRECT:
        return _DIRECT[word]
    if word == "yes/no":
        return "YES/NO"
    if word == "other":
        return "ENTITY"
    following = lower[lower.index(word) + 1 :]
    if word == "how":
        return "NUMBER" if following and following[0] in _HOW_NUMBER else "DESCRIPTION"
    if word == "why":
        return "DESCRIPTION"
    return next((_NOUN[word] for word in following[:2] if word in _NOUN), "ENTITY")
