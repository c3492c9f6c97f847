"""What needs no learning, scored on the same questions: the rows every model must be seen beside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from qa_arch.metrics.question_types import answer_type
from qa_arch.predict.selection import Scored, score_points
from qa_arch.types.records import RANKED, Point
from qa_arch.types.text import SelectionSet

_MAIN = {
    "PERSON": "HUM",
    "LOCATION": "LOC",
    "NUMBER": "NUM",
    "DESCRIPTION": "DESC",
    "ENTITY": "ENTY",
    "YES/NO": "DESC",
}
"""Main class of Li & Roth 2002 of each answer type of the rules."""


def reference_scores(task: SelectionSet) -> dict[str, Point]:
    """Scores of a random order (seeded) and of the words that a candidate shares with the question.

    Of classes: of the rules of ``metrics.question_types``, which know main classes alone.
    """
    rows = {"random-order": random_order(task)}
    rows |= {"rules": by_rules(task)} if task.main else {"word-overlap": word_overlap(task)}
    return {name: score_points(task, scored)[RANKED] for name, scored in rows.items()}


def random_order(task: SelectionSet, seed: int = 0) -> Scored:
    """A uniform number for every candidate."""
    draw = np.random.default_rng(seed)
    return {row: draw.random(len(q.candidates)).tolist() for row, q in enumerate(task.questions)}


def by_rules(task: SelectionSet) -> Scored:
    """1 for every sub class of the main class that question word and noun give away, 0 for the others."""
    mains = [answer[0].partition(":")[0] for answer in task.answers]
    return {
        row: [float(mains[a] == _MAIN[answer_type(question.question)]) for a in question.candidates]
        for row, question in enumerate(task.questions)
    }


def word_overlap(task: SelectionSet) -> Scored:
    """The distinct words, case folded, that question and candidate share, each by its rarity.

    A word counts log(A / a), where a of the A answers of the set hold it: "weighted word count" in Yang
    et al. 2015 (WikiQA).
    """
    answers = [_folded(answer) for answer in task.answers]
    holding = Counter(word for answer in answers for word in answer)
    weight = {word: math.log(len(answers) / count) for word, count in holding.items()}
    scored: Scored = {}
    for row, question in enumerate(task.questions):
        asked = _folded(question.question)
        scored[row] = [sum(weight[word] for word in asked & answers[a]) for a in question.candidates]
    return scored


def _folded(words: Sequence[str]) -> frozenset[str]:
    return frozenset(word.casefold() for word in words)
