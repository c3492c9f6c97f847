"""Answer selection: from any source to a ``SelectionSet``.

SQuAD becomes such a task by asking in which sentence of its paragraph the answer stands: the
sentences are the candidates, and right are those in which an annotated answer begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

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
    for question in questions:
        rows = question.candidates
        plain = str(rows) if isinstance(rows, range) else list(rows)
        record = [question.id, question.title, question.question, plain, question.right]
        digest.update(json.dumps(record).encode("ascii"))
    return SelectionSet(name, answers, questions, digest.hexdigest(), left_out, main=main)


def from_squad(questions: QuestionSet) -> SelectionSet:
    """Each answerable question of ``questions`` against the sentences of its paragraph.

    Paragraphs of a single sentence leave nothing to select: their questions are left out, and so are
    unanswerable ones.
    """
    answers: list[tuple[str, ...]] = []
    rows: dict[str, tuple[range, list[tuple[int, int]]]] = {}
    selectable = []
    for example in questions.examples:
        if example.context not in rows:
            spans = sentences(example.context)
            first = len(answers)
            answers += (words(example.context[start:end]) for start, end in spans)
            rows[example.context] = range(first, len(answers)), spans
        candidates, spans = rows[example.context]
        if example.answerable and len(candidates) > 1:
            selectable.append(_question(example, candidates, spans))
    return selection_set(questions.name, answers, selectable, len(questions) - len(selectable))


def _question(example: Example, candidates: range, spans: list[tuple[int, int]]) -> SelectionQuestion:
    sentences_of_golds = {sum(start <= gold.start for start, _ in spans) - 1 for gold in example.answers}
    right = tuple(candidates[max(0, place)] for place in sorted(sentences_of_golds))
    question = words(example.question)
    return SelectionQuestion(example.id, question, candidates, right, example.title, example.question)
