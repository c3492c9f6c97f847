"""One row a question, as arrays: what tests, curves and breakdowns are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.data.sources import open_passages
from qa_arch.errors import DataError, RunError
from qa_arch.results.record import QUESTIONS, Runs, read_questions
from qa_arch.types.records import CALIBRATION, DEV, SELECTION, RunRecord, is_language
from qa_arch.types.text import QuestionSet

UNTYPED = "not classified"
"""Stands for the class of a question that a file of classes does not know."""
_NEEDED = ("id", "start", "end", "null_odds", "answerable", "abstained", "exact", "f1", "kind")

_DTYPES = {
    **dict.fromkeys(("answerable", "abstained"), np.bool_),
    **dict.fromkeys(("start", "end", "article"), np.int64),
    **dict.fromkeys(
        ("exact", "f1", "null_odds", "span_exact", "span_f1", "probability", "confidence"), np.float64
    ),
}

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Questions:
    """The questions of one scored set, ``(N,)`` each, in the order of the set."""

    folder: Path
    ids: tuple[str, ...]
    kind: tuple[str | None, ...]
    answerable: Bools
    abstained: Bools
    """At the run's own margin, as are ``exact`` and ``f1``, 0..1."""
    exact: Floats
    f1: Floats
    start: Ints
    """Character offsets of the best span whatever the margin; -1 where there is none."""
    end: Ints
    null_odds: Floats
    span_exact: Floats | None = None
    """Scores of the best span, 0..1; None in records of before they were kept."""
    span_f1: Floats | None = None
    probability: Floats | None = None
    """Softmax of the best span's score over all candidates, "no answer" included."""
    confidence: Floats | None = None
    """Calibrated probability that the answer given is right; None in records of before it was fitted."""
    word: tuple[str, ...] | None = None
    """What asks (``results.question_breakdowns.question_word``); None in records of before it was kept."""
    article: Ints | None = None
    """The number of the question's article; None in records of before it was kept."""

    def __len__(self) -> int:
        return len(self.ids)


def questions_folder(run: Path, split: str = DEV) -> Path:
    """Where a run keeps the rows of a scored set: dev beside the record, others below ``sets``."""
    return run if split == DEV else run / "sets" / split


def question_columns(run: Path, record: RunRecord, split: str = DEV) -> dict[str, list[Any]]:
    """The rows of ``split`` as written, whatever the task; RunError names file, fault and remedy."""
    folder = questions_folder(run, split)
    path = folder / QUESTIONS
    if not path.is_file():
        if split == CALIBRATION:
            raise RunError(
                f"{path}: missing: runs of before did not keep these rows; train again"
                f" (qa-arch train --config-from {run})"
            )
        closed = record.setting("data", "open_dev") is False and split == DEV
        option = "--final" if closed else "--data FILE"
        raise RunError(
            f"{path}: missing, so there are no rows of single questions; score the run:"
            f" qa-arch evaluate --run {run} {option}"
        )
    measure = record.measure(split)
    if measure is not None and is_language(measure.protocol):
        raise RunError(
            f"{path}: rows of a pre-training run, which answers no questions; qa-arch tables has its scores,"
            f" and qa-arch train encoder.name={run} makes a run that answers"
        )
    columns = read_questions(folder)
    rows = len(next(iter(columns.values()), ()))
    expected = record.facts(split).questions
    if expected is not None and expected != rows:
        raise RunError(
            f"{path}: holds {rows:,} questions where the record says {expected:,};"
            " the two do not belong together, score the run again"
        )
    return columns


def load_questions(run: Path, record: RunRecord, split: str = DEV) -> Questions:
    """The rows of ``split`` of a run that finds spans; RunError names file, fault and remedy."""
    columns = question_columns(run, record, split)
    path = questions_folder(run, split) / QUESTIONS
    measure = record.measure(split)
    if measure is not None and measure.protocol == SELECTION:
        raise RunError(f"{path}: rows of a run that selects answers, which has no spans; see qa-arch tables")
    if missing := [name for name in _NEEDED if name not in columns]:
        raise RunError(f"{path}: lacks the columns {', '.join(missing)}; score the run again")
    return _from_columns(run, columns)


def _from_columns(run: Path, columns: dict[str, list[Any]]) -> Questions:
    arrays: dict[str, Any] = {
        name: np.asarray(columns[name], dtype) for name, dtype in _DTYPES.items() if name in columns
    }
    ids, kind = tuple(columns["id"]), tuple(columns["kind"])
    word = tuple(columns["word"]) if "word" in columns else None
    return Questions(folder=run, ids=ids, kind=kind, word=word, **arrays)


def load_aligned(runs: Runs, split: str) -> list[Questions]:
    """The rows of several runs over the same questions; RunError where the ids differ."""
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


def articles_of(rows: Questions, questions: QuestionSet | None = None) -> Ints:
    """The number of each question's article, as the rows or the scored set ``questions`` tell it.

    RunError where neither does, or where all are of one article.
    """
    numbers = rows.article if questions is None else np.array(questions.article_numbers)
    if numbers is None:
        raise RunError(
            f"{rows.folder}: its rows are of before they told the article of a question; name the scored set"
            " (--data FILE) or score the run again (qa-arch evaluate --run)"
        )
    if len(np.unique(numbers)) < 2:
        raise RunError(
            f"{rows.folder}: all questions are of one article, so nothing can be said over articles; compare"
            " over questions (--unit question)"
        )
    return numbers


def open_scored(source: Sequence[str], record: RunRecord, split: str) -> QuestionSet:
    """Open the set on which the run's ``split`` was scored; DataError where ``source`` is another set."""
    about = record.facts(split)
    questions = open_passages(list(source), on_error=record.setting("data", "on_error") or "raise")
    if questions.fingerprint != about.fingerprint:
        raise DataError(
            f"{' '.join(source)}: not the questions that the runs were scored on ({split} is"
            f" {about.name or 'unknown'}, {about.questions or 0:,} questions, hash"
            f" {str(about.fingerprint)[:12]}; this has {len(questions):,}, hash"
            f" {questions.fingerprint[:12]}); name that file, or leave out --data for output without texts"
        )
    return questions
