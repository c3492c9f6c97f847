"""Question rows of a scored set: loaded as arrays and grouped by kind.

Tests, curves, breakdowns and error tables are computed from these rows. A question's kind comes from its tag,
its text, or the class that a classifier gave it.
"""

from __future__ import annotations

import re
import shlex
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.data.formats import OnError
from qa_arch.data.sources import open_passages
from qa_arch.errors import DataError, RunError
from qa_arch.metrics.confidence import Bools, Floats, Ints
from qa_arch.records import (
    CALIBRATION,
    DEV,
    QUESTIONS,
    SELECTION,
    RunRecord,
    Runs,
    is_language,
    questions_folder,
    read_questions,
    require_rows,
)
from qa_arch.types.text import QuestionSet, question_word

UNTYPED = "not classified"
"""Class of a question that a file of classes lacks."""
_NEEDED = (
    *("id", "start", "end", "answerable", "abstained", "exact", "f1", "span_exact", "span_f1", "kind"),
)
_DTYPES = {
    **dict.fromkeys(("answerable", "abstained"), np.bool_),
    **dict.fromkeys(("start", "end", "article"), np.int64),
    **dict.fromkeys(
        ("exact", "f1", "null_odds", "span_exact", "span_f1", "probability", "confidence"), np.float64
    ),
}

_SHARES = frozenset(("exact", "f1", "span_exact", "span_f1", "probability", "confidence"))


@dataclass(frozen=True, eq=False)
class Questions:
    """Columns of the questions of one scored set, shape (N,) each, in the order of the set.

    What a run does not record, such as an adopted one, is NaN or None.
    """

    folder: Path
    ids: tuple[str, ...]
    kind: tuple[str | None, ...]
    answerable: Bools
    abstained: Bools
    """At the run's own null threshold, as are ``exact`` and ``f1``, 0..1; on SQuAD 1.1 as recorded."""
    exact: Floats
    f1: Floats
    start: Ints
    """Character offsets of the best span at any threshold; -1 if there is none."""
    end: Ints
    null_odds: Floats
    """NaN if the system gives none."""
    span_exact: Floats
    """Scores of the best span, 0..1."""
    span_f1: Floats
    probability: Floats
    """Softmax of the best span's score over all candidates, "no answer" included."""
    confidence: Floats
    """Calibrated probability that the answer given is right."""
    word: tuple[str, ...] | None = None
    """The question word (``types.text.question_word``)."""
    article: Ints | None = None
    """Number of the question's article."""

    @classmethod
    def of(cls, folder: Path, columns: Mapping[str, Sequence[Any]]) -> Questions:
        """Convert columns to arrays.

        Raises TypeError or ValueError for values of another type, and for scores that are not in 0..1.
        """
        arrays: dict[str, Any] = {
            name: np.asarray(columns[name], dtype) for name, dtype in _DTYPES.items() if name in columns
        }
        for name in _SHARES & arrays.keys():
            if ((arrays[name] < 0) | (arrays[name] > 1 + 1e-6)).any():
                raise ValueError(f"{name} is not between 0 and 1")
        for name in ("null_odds", "probability", "confidence"):
            arrays.setdefault(name, np.full(len(columns["id"]), np.nan))
        word = tuple(columns["word"]) if "word" in columns else None
        return cls(folder=folder, ids=tuple(columns["id"]), kind=tuple(columns["kind"]), word=word, **arrays)

    @cached_property
    def kinds(self) -> list[str]:
        """Tag of each question; without one, whether it is answerable."""
        tagged = zip(self.kind, self.answerable.tolist(), strict=True)
        return [tag or ("answerable" if answerable else "not tagged") for tag, answerable in tagged]

    def __len__(self) -> int:
        return len(self.ids)


def question_columns(run: Path, record: RunRecord, split: str = DEV) -> dict[str, list[Any]]:
    """Read the rows of ``split`` as written, for any task; RunError names file, fault and remedy."""
    folder = questions_folder(run, split)
    path, word = folder / QUESTIONS, shlex.quote(str(run))
    if not path.is_file():
        if split == CALIBRATION:
            raise RunError(
                f"{path}: missing, and only training writes it: train again"
                f" (qa-arch train --config-from {word})"
            )
        closed = record.setting("data", "open_dev") is False and split == DEV
        raise RunError(
            f"{path}: missing, so there are no question rows; score the run:"
            f" qa-arch evaluate --run {word} {'--final' if closed else '--data FILE'}"
        )
    measure = record.measure(split)
    if measure is not None and is_language(measure.protocol):
        raise RunError(
            f"{path}: rows of a pre-training run, which answers no questions; qa-arch tables has its scores,"
            f" and qa-arch train encoder.name={word} makes a run that answers"
        )
    require_rows(run, record, split)
    columns = read_questions(folder)
    rows, expected = len(next(iter(columns.values()), ())), record.facts(split).questions
    if expected is not None and expected != rows:
        raise RunError(
            f"{path}: holds {rows:,} questions where the record says {expected:,};"
            " the two do not belong together, score the run again"
        )
    return columns


def load_questions(run: Path, record: RunRecord, split: str = DEV) -> Questions:
    """Read the rows of ``split`` of a run that finds spans; RunError names file, fault and remedy."""
    columns = question_columns(run, record, split)
    path = questions_folder(run, split) / QUESTIONS
    measure = record.measure(split)
    if measure is not None and measure.protocol == SELECTION:
        raise RunError(f"{path}: rows of a run that selects answers, which has no spans; see qa-arch tables")
    if missing := [name for name in _NEEDED if name not in columns]:
        raise RunError(f"{path}: lacks the columns {', '.join(missing)}; score the run again")
    try:
        return Questions.of(run, columns)
    except (TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path}: a column has the wrong type ({error}); score the run again") from None


def load_aligned(runs: Runs, split: str) -> list[Questions]:
    """Read the rows of several runs on the same questions; RunError if the ids differ."""
    loaded = [load_questions(folder, record, split) for folder, record in runs]
    for other in loaded[1:]:
        if other.ids != loaded[0].ids:
            shared = len(set(other.ids) & set(loaded[0].ids))
            raise RunError(
                f"{other.folder} and {loaded[0].folder}: {split} rows are of different questions, or in"
                f" another order ({shared:,} shared); score both on the same file"
            )
    return loaded


def stacked(rows: Sequence[Questions], column: str) -> Floats:
    """One column of several runs on the same questions, ``(R, N)``."""
    return np.stack([getattr(run, column) for run in rows])


def open_scored(source: Sequence[str], record: RunRecord, split: str) -> QuestionSet:
    """Open the set on which the run's ``split`` was scored; DataError if ``source`` is another set."""
    facts = record.facts(split)
    try:
        on_error: OnError = "skip" if facts.skipped else "raise"
        questions = open_passages(list(source), on_error=on_error, use="scoring")
    except DataError as error:
        named = record.setting("data", split)
        raise DataError(f"{error}" + (f"; the run's {split} is {named}" if named else "")) from None
    if questions.fingerprint != facts.fingerprint:
        code = facts.extra.get("language", "en")
        given = f" as language:{code}:FILE" if code != questions.language else ""
        raise DataError(
            f"{' '.join(source)}: not the questions that the runs were scored on ({split} is"
            f" {facts.name or 'unknown'}, {facts.questions or 0:,} questions, hash"
            f" {str(facts.fingerprint)[:12]}; this has {len(questions):,}, hash"
            f" {questions.fingerprint[:12]}); name that file{given}, or leave out --data for output without"
            " texts"
        )
    return questions


_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b|\bcentury\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(1\d|20)\d\ds?\b")
_QUESTION = (7, 10, 13, 16)
_CONTEXT = (76, 126, 176, 251)
_ANSWER = (2, 3, 4, 6)
"""Lower bounds, in words, of every bin but the first."""
_LEVELS = 40
"""Maximum number of levels of a breakdown."""


@dataclass(frozen=True, eq=False)
class Breakdown:
    """One grouping of questions: ``level[q]`` is an index into ``names``."""

    key: str
    title: str
    names: tuple[str, ...]
    level: npt.NDArray[np.uint8]


def breakdowns(
    rows: Questions, questions: QuestionSet | None, types: Mapping[str, str] | None = None
) -> list[Breakdown]:
    """Breakdowns from the record alone, and from the texts if ``questions`` is given.

    ``types``: question id -> class (``MAIN:sub``) from a classifier.
    """
    answerable = ["yes" if yes else "no" for yes in rows.answerable.tolist()]
    result = [_by_name("answerable", "Answerable", answerable)]
    if any(rows.kind):
        result.append(_by_name("kind", "Kind, as tagged", rows.kinds))
    if types:
        labels = [types.get(id_, UNTYPED) for id_ in rows.ids]
        mains = [label.partition(":")[0] for label in labels]
        result.append(_by_name("class", "Predicted class", mains))
        result.append(_by_name("sub", "Predicted sub class", labels))
    if questions is None:
        return result
    examples = questions.examples
    answers = [example.answers[0].text if example.answers else None for example in examples]
    words = [None if answer is None else len(answer.split()) for answer in answers]
    contexts = {context: len(context.split()) for context in {example.context for example in examples}}
    return [
        *result,
        _by_name("word", "Question word", [question_word(e.question) for e in examples]),
        _by_name("type", "Answer type", ["no answer" if a is None else answer_type(a) for a in answers]),
        _by_bin("question", "Question length, words", _QUESTION, [len(e.question.split()) for e in examples]),
        _by_bin("context", "Passage length, words", _CONTEXT, [contexts[e.context] for e in examples]),
        _by_bin("answer", "Answer length, words", _ANSWER, words),
        _by_name("article", "Article", [e.title for e in examples]),
    ]


def answer_type(text: str) -> str:
    """Classify an answer as date, number, name, clause (6 words or more) or phrase, by its form alone.

    A coarse version of the types of Rajpurkar et al. 2016, Table 2, without a tagger: a name is capitalised
    throughout, except for short words.
    """
    words = text.split()
    if _YEAR.search(text) or (_MONTH.search(text) and any(c.isdigit() for c in text)):
        return "date"
    if any(c.isdigit() for c in text) and len(words) <= 4:
        return "number"
    if len(words) >= 6:
        return "clause"
    long = [word for word in words if len(word) > 3] or words
    return "name" if long and all(word.lstrip("\"'(“‘")[:1].isupper() for word in long) else "phrase"


def _by_name(key: str, title: str, values: Sequence[str]) -> Breakdown:
    """Breakdown with levels by descending frequency, at most ``_LEVELS``: rare ones share the last."""
    unique, inverse, counts = np.unique(
        np.array(values, dtype=object), return_inverse=True, return_counts=True
    )
    order = np.argsort(-counts, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    names = [str(unique[index]) for index in order]
    if len(names) > _LEVELS:
        names, place = [*names[: _LEVELS - 1], "other"], np.minimum(place, _LEVELS - 1)
    return Breakdown(key, title, tuple(names), place[inverse].astype(np.uint8))


def _by_bin(key: str, title: str, begins: Sequence[int], values: Sequence[int | None]) -> Breakdown:
    """Breakdown into ascending bins without empty ones; questions without a value come last."""
    bounds = pairwise((1, *begins))
    names = [str(low) if high == low + 1 else f"{low}–{high - 1}" for low, high in bounds]
    names += [f"{begins[-1]}+", "no answer"]
    level = np.array([len(begins) + 1 if v is None else bisect_right(begins, v) for v in values], np.int64)
    used = np.unique(level)
    return Breakdown(key, title, tuple(names[i] for i in used), np.searchsorted(used, level).astype(np.uint8))
