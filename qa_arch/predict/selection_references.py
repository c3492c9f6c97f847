"""What needs no learning, scored on the same questions: the rows every model must be seen beside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from qa_arch.predict.selection import POINT, Scored, score_points
from qa_arch.types.text import SelectionSet


def reference_scores(task: SelectionSet) -> dict[str, dict[str, Any]]:
    """Scores of a random order (seeded) and of the words that a candidate shares with the question."""
    rows = {"random-order": random_order(task), "word-overlap": word_overlap(task)}
    return {name: score_points(task, scored)[POINT] for name, scored in rows.items()}


def random_order(task: SelectionSet, seed: int = 0) -> Scored:
    """A uniform number for every candidate."""
    draw = np.random.default_rng(seed)
    return {row: draw.random(len(q.candidates)).tolist() for row, q in enumerate(task.questions)}


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
