"""A balanced training set, half unanswerable: articles that have both kinds, and pairs of UnAnsQ.

UnAnsQ (Zhu et al. 2019, *Learning to Ask Unanswerable Questions for Machine Reading Comprehension*,
https://github.com/haichao592/UnAnsQ, folder ``QG``) pairs an answerable question of SQuAD 2.0's training set
with the unanswerable one written for it. Its text is tokenised and lower-cased. A line of
``SPLIT-answerable-questions.txt`` and ``SPLIT-unanswerable-questions.txt`` holds id, question, first and last
token of the answer; the same line of ``SPLIT-context.txt`` begins with the passage.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from qa_arch.data.question_sets import question_set
from qa_arch.errors import DataError
from qa_arch.types import Example, Gold, QuestionSet

NAME = "train-v2.0.balanced"
TITLE = "UnAnsQ_dev_pairs"
"""Title of the pairs whose article is not in the part; UnAnsQ does not name it."""


@dataclass(frozen=True, slots=True)
class Twins:
    """An answerable question and its unanswerable twin."""

    id: str
    question: str
    twin_id: str
    twin: str
    first: int
    last: int
    """Tokens of the answer, the last one included."""


def balanced(part: QuestionSet, folder: Path) -> QuestionSet:
    """Articles of ``part`` that have unanswerable questions, and the pairs in ``folder``.

    A pair on a passage of another article of ``part`` keeps SQuAD's text, followed by its twin. Pairs on
    other passages come from UnAnsQ's dev files. Its test files, taken from the official dev set, are not
    read.
    """
    train, dev = (read_pairs(folder, split) for split in ("train", "dev"))
    pair_of = {pair.id: pair for pair in (*train, *dev)}
    mixed = {example.title for example in part.examples if not example.answerable}
    examples = [example for example in part.examples if example.title in mixed]
    for example in part.examples:
        if example.title not in mixed and (pair := pair_of.get(example.id)):
            examples += (example, replace(example, id=pair.twin_id, question=pair.twin, answers=()))
    known = {example.id for example in part.examples}
    examples += (
        example
        for context, pair in zip(read_contexts(folder, "dev", len(dev)), dev, strict=True)
        if pair.id not in known
        for example in tokenised(context, pair)
    )
    return question_set(NAME, examples, "2.0")


def tokenised(context: str, pair: Twins) -> tuple[Example, Example]:
    """Both questions of a pair on UnAnsQ's passage; DataError if that ends before the answer."""
    tokens = context.split(" ")
    if not pair.first <= pair.last < len(tokens):
        raise DataError(f"dev-context.txt: the passage of {pair.id} has no token {pair.last}")
    start = sum(len(token) + 1 for token in tokens[: pair.first])
    answer = Gold(" ".join(tokens[pair.first : pair.last + 1]), start)
    answerable = Example(pair.id, pair.question, context, TITLE, answers=(answer,))
    return answerable, Example(pair.twin_id, pair.twin, context, TITLE)


def read_contexts(folder: Path, split: str, count: int) -> list[str]:
    """The passage of each of ``count`` pairs; equal passages are the same string object."""
    file = folder / f"{split}-context.txt"
    lines = _lines(file, 3)
    if len(lines) != count:
        raise DataError(f"{file}: {len(lines)} lines, expected {count}, one per pair of questions")
    return [sys.intern(line[0]) for line in lines]


def read_pairs(folder: Path, split: str) -> list[Twins]:
    """Pairs of one split, in file order; DataError if the two files do not match."""
    files = [folder / f"{split}-{kind}-questions.txt" for kind in ("answerable", "unanswerable")]
    answerable, unanswerable = (_lines(file, 4) for file in files)
    if len(answerable) != len(unanswerable):
        raise DataError(f"{files[0]}: {len(answerable)} lines, but {len(unanswerable)} in {files[1].name}")
    pairs = []
    for number, (own, twin) in enumerate(zip(answerable, unanswerable, strict=True), 1):
        if own[2:] != twin[2:] or not all(position.isdecimal() for position in own[2:]):
            raise DataError(f"{files[0]}: line {number}: does not match that of {files[1].name}")
        pairs.append(Twins(own[0], own[1], twin[0], twin[1], int(own[2]), int(own[3])))
    return pairs


def _lines(file: Path, fields: int) -> list[list[str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}); give UnAnsQ's folder QG") from None
    lines = [
        line.split("\t") for line in text.removesuffix("\n").split("\n")
    ]  # other line breaks are part of the text
    for number, line in enumerate(lines, 1):
        if len(line) != fields:
            raise DataError(f"{file}: line {number}: {len(line)} fields, expected {fields}")
    return lines
