"""``insuranceqa:FOLDER:SPLIT``: InsuranceQA (Feng et al. 2015), version 1, as published.

A folder of tab-separated word indices: ``vocabulary``, ``answers.label.token_idx``,
``question.train.token_idx.label`` and ``question.{dev,test1,test2}.label.token_idx.pool``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from qa_arch.config.files import user_path
from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.question_sets import clip
from qa_arch.errors import DataError
from qa_arch.extras.selection.sets import selection_set
from qa_arch.types.text import SelectionQuestion, SelectionSet

T = TypeVar("T")
SPLITS = ("train", "dev", "test1", "test2")


def _split(source: str) -> tuple[Path, str]:
    """Parse ``FOLDER:SPLIT``; DataError for an unknown split."""
    folder, _, split = source.rpartition(":")
    if not folder or split not in SPLITS:
        raise DataError(
            f"insuranceqa:{source}: write insuranceqa:FOLDER:SPLIT, such as insuranceqa:InsuranceQA:dev"
            f" (splits: {', '.join(SPLITS)})"
        )
    return user_path(folder), split


def _files(source: str) -> tuple[Path, Path, Path]:
    """Files of the questions, the answers and the vocabulary."""
    folder, split = _split(source)
    stem = "question.train.token_idx.label" if split == "train" else f"question.{split}.label.token_idx.pool"
    return folder / stem, folder / "answers.label.token_idx", folder / "vocabulary"


def _open(sources: Sequence[str], *, name: str, on_error: OnError, use: Use) -> SelectionSet:
    """Read a split; candidates are the question's pool, or in train, which has no pools, all answers.

    An answer is a candidate once, however often a pool names it. Questions with a single candidate, or
    without a right one, are skipped and counted in ``left_out``. Raises DataError naming file, line and
    field.
    """
    _, split = _split(sources[0])
    _, answers_file, vocabulary_file = _files(sources[0])
    vocabulary = {index: word for _, (index, word) in _lines(vocabulary_file, 2)}
    answers = {
        label: _look_up(text.split(), vocabulary, f"{place}: answer")
        for place, (label, text) in _lines(answers_file, 2)
    }
    row = {label: number for number, label in enumerate(answers)}
    questions, left_out = [], 0
    for number, (place, text, right, pool) in enumerate(_questions(sources[0]), start=1):
        words = _look_up(text, vocabulary, f"{place}: question")
        rows = _look_up(right, row, f"{place}: answer labels")
        candidates = range(len(row)) if pool is None else _look_up(pool, row, f"{place}: pool")
        if len(candidates) > 1 and any(answer in candidates for answer in rows):
            questions.append(SelectionQuestion(f"{split}-{number}", words, candidates, rows))
        else:
            left_out += 1
    return selection_set(name or split, answers.values(), questions, left_out)


def _questions(source: str) -> Iterator[tuple[str, list[str], list[str], list[str] | None]]:
    """(file and line, word indices, right labels, distinct labels of the pool) of each question."""
    (path, *_), (_, split) = _files(source), _split(source)
    for place, fields in _lines(path, 2 if split == "train" else 3):
        question, right, *pool = fields if split == "train" else (fields[1], fields[0], fields[2])
        yield place, question.split(), right.split(), list(dict.fromkeys(pool[0].split())) if pool else None


def _counts(source: str) -> Mapping[str, int]:
    """Counts of thesis Table 2.1; an answer counts once per question it answers."""
    questions = list(_questions(source))
    return {
        "questions": len(questions),
        "answers": sum(len(right) for _, _, right, _ in questions),
        "question_words": sum(len(words) for _, words, _, _ in questions),
    }


def _lines(path: Path, fields: int) -> Iterator[tuple[str, list[str]]]:
    """(file and line, values) of each non-blank line; DataError for a wrong number of values."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); fetch it from InsuranceQA's repository") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place, values = f"{path}: line {number}", line.rstrip("\r").split("\t")
        if len(values) != fields:
            raise DataError(
                f"{place}: {len(values)} tab-separated fields, not {fields}; fetch the file again"
            )
        yield place, values


def _look_up(names: Sequence[str], table: Mapping[str, T], place: str) -> tuple[T, ...]:
    """Entries of ``names`` in ``table``; DataError if a name is unknown or ``names`` is empty."""
    unknown = next((name for name in names if name not in table), None)
    if unknown is not None or not names:
        problem = "is empty" if unknown is None else f"{clip(unknown)} is unknown"
        raise DataError(f"{place}: {problem}; fetch all files of version 1 again")
    return tuple(table[name] for name in names)


FORMAT = Format(
    "insuranceqa:FOLDER:SPLIT",
    "a split of InsuranceQA",
    open=_open,
    holds="candidates",
    files=_files,
    counts=_counts,
)
