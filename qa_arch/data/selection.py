"""Answer selection: from any source to a ``SelectionSet``.

SQuAD becomes such a task by asking in which sentence of its paragraph the answer stands: the
sentences are the candidates, and right are those in which an annotated answer begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from qa_arch.data import insuranceqa
from qa_arch.data.sentences import sentences
from qa_arch.errors import DataError
from qa_arch.types.text import Example, QuestionSet, SelectionQuestion, SelectionSet

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> tuple[str, ...]:
    """Runs of letters, digits and underscores, and every other visible character by itself."""
    return tuple(_WORD.findall(text))


def selection_set(
    name: str,
    answers: Iterable[tuple[str, ...]],
    questions: Iterable[SelectionQuestion],
    left_out: int = 0,
    main: tuple[int, ...] = (),
) -> SelectionSet:
    """A SelectionSet with its fingerprint computed; DataError where no question is left."""
    answers, questions = tuple(answers), tuple(questions)
    if not questions:
        raise DataError(
            f"{name}: no question is left to select an answer for ({left_out} have a single candidate or"
            " no answer); give other data"
        )
    digest = hashlib.sha256()
    for answer in answers:
        digest.update(json.dumps(answer).encode("ascii"))
    for one in questions:
        offered = one.candidates
        plain = str(offered) if isinstance(offered, range) else list(offered)
        record = [one.id, one.title, one.question, plain, one.right]
        digest.update(json.dumps(record).encode("ascii"))
    return SelectionSet(name, answers, questions, digest.hexdigest(), left_out, main=main)


def from_squad(questions: QuestionSet) -> SelectionSet:
    """Each answerable question of ``questions`` against the sentences of its paragraph.

    Paragraphs of a single sentence leave nothing to select: their questions are left out, and so are
    unanswerable ones.
    """
    answers: list[tuple[str, ...]] = []
    rows: dict[str, tuple[range, list[tuple[int, int]]]] = {}
    kept = []
    for example in questions.examples:
        if example.context not in rows:
            spans = sentences(example.context)
            first = len(answers)
            answers += (words(example.context[start:end]) for start, end in spans)
            rows[example.context] = range(first, len(answers)), spans
        offered, spans = rows[example.context]
        if example.answerable and len(offered) > 1:
            kept.append(_question(example, offered, spans))
    return selection_set(questions.name, answers, kept, len(questions) - len(kept))


def _question(example: Example, offered: range, spans: list[tuple[int, int]]) -> SelectionQuestion:
    begun = {sum(start <= gold.start for start, _ in spans) - 1 for gold in example.answers}
    right = tuple(offered[max(0, place)] for place in sorted(begun))
    asked = words(example.question)
    return SelectionQuestion(example.id, asked, offered, right, example.title, example.question)


def open_insuranceqa(source: str, *, name: str = "") -> SelectionSet:
    """``insuranceqa:FOLDER:SPLIT``, version 2 also ``SPLIT@POOL``, as ``insuranceqa.read`` finds it."""
    split = insuranceqa.parse(source)
    questions, answers = insuranceqa.read(split), insuranceqa.read_answers(split)
    row = {label: place for place, label in enumerate(answers)}
    kept = []
    for asked in questions:
        for label in (*asked.right, *asked.pool):
            if label not in row:
                raise DataError(
                    f"{asked.place}: the answer {label} stands in no line of the answer file;"
                    " fetch both files of the same version"
                )
        # Training questions have no pool of their own in version 1: their negatives come from all answers.
        offered = tuple(row[label] for label in asked.pool) if asked.pool else range(len(row))
        right = tuple(row[label] for label in asked.right)
        kept.append(SelectionQuestion(asked.id, asked.words, offered, right))
    return selection_set(name or split.title, answers.values(), kept)
