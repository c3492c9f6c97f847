"""Scores of ranked candidates, of single questions and of pairs; question types by rules.

The rules read the question word and the expected answer type, to break errors down; no model is needed. The
answer types are the coarse classes of Li & Roth 2002, as far as the question word and the noun after it
determine them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from qa_arch.config.files import write_json
from qa_arch.metrics.confidence import auroc
from qa_arch.records import RANKED, Point, SplitFacts
from qa_arch.types.text import ASKING, SelectionSet

METRIC_VERSION = "selection-1"
Scored = Mapping[int, Sequence[float]]
"""By row of the question: the score of each of its candidates, in their order."""
SELECTIONS = "selections.json"

_BEFORE = """
in on at by for from of to with under during after before about into upon as
"""
_OF_NUMBER = """
many much long old far often large big tall high deep wide fast heavy hot cold late early few
"""
_BEGINNINGS = """
is are was were am do does did has have had can could will would shall should may might must
"""
_PREPOSITIONS, _HOW_NUMBER, _VERBS = (
    frozenset(words.split()) for words in (_BEFORE, _OF_NUMBER, _BEGINNINGS)
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


@dataclass(frozen=True, slots=True)
class SelectionScores:
    """Means over the questions, in percent."""

    accuracy: float
    """Top-1 accuracy: the share of questions whose first candidate is right."""
    mrr: float
    """Mean reciprocal rank of the first right candidate; 0 if no candidate is right."""
    questions: int

    def flat(self) -> dict[str, float | int]:
        return asdict(self)


def rank_of_right(scores: Sequence[float], right: Collection[int]) -> int | None:
    """Rank (from 1) of the best right candidate, or None if no candidate is right.

    ``right`` holds indices into ``scores``. Wrong candidates of the same score, and those with a NaN score,
    rank before it, so that a constant score gains nothing. A right candidate with a NaN score ranks last.
    """
    best = max((_nan_last(scores[i]) for i in right), default=None)
    if best is None:
        return None
    wrong = (score for i, score in enumerate(scores) if i not in right)
    return 1 + sum(isnan(score) or score >= best for score in wrong)


def _nan_last(score: float) -> float:
    return float("-inf") if isnan(score) else score


def selection_scores(ranks: Sequence[int | None]) -> SelectionScores:
    """Top-1 accuracy and MRR from the ranks of ``rank_of_right``; at least one question."""
    accuracy = fmean(rank == 1 for rank in ranks)
    mrr = fmean(1 / rank if rank else 0.0 for rank in ranks)
    return SelectionScores(100 * accuracy, 100 * mrr, len(ranks))


def ranks(questions: SelectionSet, scored: Scored) -> list[int | None]:
    """The rank of the first right candidate of each question, in order; see ``rank_of_right``."""
    result = []
    for row, question in enumerate(questions.questions):
        right = {place for place, answer in enumerate(question.candidates) if answer in question.right}
        result.append(rank_of_right(scored[row], right))
    return result


def main_ranks(questions: SelectionSet, scored: Scored) -> list[int | None]:
    """The rank of the first candidate of a right main class, where candidates are sub classes."""
    result = []
    for row, question in enumerate(questions.questions):
        main = {questions.main[answer] for answer in question.right}
        places = enumerate(question.candidates)
        right = {place for place, answer in places if questions.main[answer] in main}
        result.append(rank_of_right(scored[row], right))
    return result


def score_points(questions: SelectionSet, scored: Scored) -> dict[str, Point]:
    """Top-1 accuracy and MRR for the record; for classes also the accuracy of the main classes."""
    scores = selection_scores(ranks(questions, scored)).flat()
    if questions.main:
        scores["main_accuracy"] = selection_scores(main_ranks(questions, scored)).accuracy
    return {RANKED: Point(protocol=questions.protocol, metric_version=METRIC_VERSION, metrics=scores)}


def question_columns(questions: SelectionSet, scored: Scored) -> dict[str, list[Any]]:
    """Columns of ``questions.parquet``: rank of the right candidate and type of the question, no text.

    The type is the right class where the candidates are classes, else that of the rules.
    """
    kinds = [
        questions.answers[question.right[0]][0] if questions.main else question_type(question.question)
        for question in questions.questions
    ]
    return {
        "id": [question.id for question in questions.questions],
        "kind": kinds,
        "rank": ranks(questions, scored),
        "candidates": [len(question.candidates) for question in questions.questions],
    }


def write_selections(folder: str | os.PathLike[str], questions: SelectionSet, scored: Scored) -> Path:
    """``selections.json``: question id -> the score of each candidate, in the order of the data."""
    by_id = {question.id: scored[row] for row, question in enumerate(questions.questions)}
    return write_json(Path(folder) / SELECTIONS, by_id, indent=None)


def set_facts(questions: SelectionSet, *, titles: bool) -> SplitFacts:
    """Facts of a split for the record; with its article titles if ``titles``, to detect later overlaps."""
    return SplitFacts(
        name=questions.name,
        fingerprint=questions.fingerprint,
        protocol=questions.protocol,
        questions=len(questions),
        candidates=round(sum(len(q.candidates) for q in questions.questions) / len(questions), 2),
        answers=len(questions.answers),
        titles=tuple(sorted(questions.titles)) if titles else (),
        left_out=questions.left_out,
    )


@dataclass(frozen=True, slots=True)
class ParaphraseScores:
    """Accuracy and AUC in percent."""

    pairs: int
    paraphrases: int
    threshold: float
    """Two questions of at least this similarity count as paraphrases."""
    accuracy: float
    auc: float | None
    """P(a paraphrase is more similar than another pair), ties counted half; None without both kinds."""
    oracle_accuracy: float
    """Accuracy at the best threshold for these labels: an upper bound, not a result."""

    def flat(self) -> dict[str, float | int | None]:
        return asdict(self)


def paraphrase_scores(
    similarities: Sequence[float], labels: Sequence[bool], threshold: float
) -> ParaphraseScores:
    """Accuracy, oracle accuracy and AUC of at least one pair; ``labels`` are True for paraphrases."""
    scores, positive = np.asarray(similarities, np.float64), np.asarray(labels, bool)
    area = auroc(scores, positive)
    order = np.argsort(scores, kind="stable")
    ordered, negatives_below = scores[order], np.cumsum(~positive[order])
    # Cuts: below all similarities, between two different ones, above all.
    cuts = np.r_[0, np.flatnonzero(np.diff(ordered)) + 1, len(ordered)]
    negatives, paraphrases = np.r_[0, negatives_below][cuts], np.r_[0, np.cumsum(positive[order])][cuts]
    correct = negatives + positive.sum() - paraphrases
    return ParaphraseScores(
        pairs=len(scores),
        paraphrases=int(positive.sum()),
        threshold=threshold,
        accuracy=100 * float(((scores >= threshold) == positive).mean()),
        auc=None if area is None else 100 * area,
        oracle_accuracy=100 * float(correct.max()) / len(scores),
    )


def asking_word(words: Sequence[str]) -> str:
    """Question word, ``yes/no`` if the question begins with a verb, else ``other``.

    The first word decides, or the word after a preposition; else the first question word anywhere. Unlike
    ``types.text.question_word``, which sorts questions by their form alone, this says what is asked
    for, so that a question such as "Was it where they met?" is none of where.
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
