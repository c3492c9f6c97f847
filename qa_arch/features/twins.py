"""Twins: an answerable question and an unanswerable one of the same passage that differ by a few words.

SQuAD 2.0's unanswerable questions were written beside answerable ones, and many are an edit of one: a
negation, another name or number (Rajpurkar et al. 2018, table 1; Zhu et al. 2019 learn from such pairs). The
files do not say which belong together; their words do.
"""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from qa_arch.features.windows import FeatureTable
from qa_arch.features.words import Longs
from qa_arch.types.text import QuestionSet


def twin_questions(questions: QuestionSet, likeness: float) -> Longs:
    """(P, 2) rows (answerable, unanswerable) of the twins of a set, each question in at most one pair.

    Two questions are as like as the share of their words, case folded, that both have (Jaccard). In each
    passage the most alike pair first, down to ``likeness``; in file order where several are as like.
    """
    passages: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row, example in enumerate(questions.examples):
        passages[example.context][example.answerable].append(row)
    words = [frozenset(re.findall(r"\w+", example.question.casefold())) for example in questions.examples]
    twins = []
    for unanswerable, answerable in passages.values():
        pairs = [(-_likeness(words[a], words[u]), a, u) for a in answerable for u in unanswerable]
        taken: set[int] = set()
        for unlike, a, u in sorted(pairs):
            if -unlike < likeness:
                break
            if not taken & {a, u}:
                taken |= {a, u}
                twins.append((a, u))
    return np.array(sorted(twins), np.int64).reshape(-1, 2)


def _likeness(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / max(1, len(first | second))


def twin_windows(questions: QuestionSet, table: FeatureTable, likeness: float) -> Longs:
    """(N,) row of the window that each window of ``table`` is to be read with; -1 for none.

    Of an answerable question it is the first window that holds the answer, of its twin the window at the
    same place of the passage.
    """
    mates = np.full(len(table), -1)
    if not len(table):
        return mates
    begin = np.searchsorted(table.example, np.arange(len(questions) + 1))
    for answerable, unanswerable in twin_questions(questions, likeness).tolist():
        own, other = np.arange(*begin[[answerable, answerable + 1]]), begin[[unanswerable, unanswerable + 1]]
        if (holding := own[table.answerable[own]]).size:
            first = holding[0]
            second = min(other[0] + first - own[0], other[1] - 1)
            mates[first], mates[second] = second, first
    return mates
