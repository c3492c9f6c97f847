"""Sets for answer selection: construction with a fingerprint, and conversion of passages to sentences.

A question on a passage becomes a selection question whose candidates are the sentences of the passage;
right are the sentences in which a gold answer begins.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

from qa_arch.errors import DataError
from qa_arch.types.text import Example, QuestionSet, SelectionQuestion, SelectionSet

_WORD = re.compile(r"\w+|[^\w\s]")
_END = re.compile(r"""(?<![.!?])[.!?]++["'”’)\]]*(?:\[[^\]\s]{0,40}\])*(?=\s+["'“‘(\[]?[^\W_a-z])|\n+""")
"""What may end a sentence: its mark, then closing quotes, brackets and footnotes, white space and a
capital, a digit or an opening sign; or a line break."""
_SHORT = """
adm al apr aug ave blvd bros c ca capt cf co col corp dec dept dr ed est etc feb fig fr ft gen
gov hon inc jan jr jul jun lt ltd maj mar messrs mr mrs ms mt no nov oct op p pp pres prof rep
rev rt sen sep sept sgt sr st u.k u.s vol vs viz e.g i.e a.m p.m b.c a.d
"""
_ABBREVIATIONS = frozenset(_SHORT.split())
_LAST_WORD = re.compile(r"[\w.]*\w$")
_LONGEST = max(map(len, _ABBREVIATIONS)) + 1
"""Characters before a full stop that decide whether they are an abbreviation."""


def words(text: str) -> tuple[str, ...]:
    """Words of a text: runs of letters, digits and underscores, and every other visible character alone."""
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


def sentence_selection(questions: QuestionSet) -> SelectionSet:
    """Selection set of the answerable ``questions``, with the sentences of their passages as candidates.

    Unanswerable questions and questions on a passage of a single sentence are left out and counted in
    ``left_out``.
    """
    answers: list[tuple[str, ...]] = []
    rows: dict[str, tuple[range, list[tuple[int, int]]]] = {}
    selectable = []
    for example in questions.examples:
        if example.context not in rows:
            spans = sentence_spans(example.context)
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


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of the sentences of ``text`` by rules, end exclusive, without outer white space.

    A blank text has no sentence. A full stop after an abbreviation or an initial does not end a sentence, so
    two sentences are not separated where the first ends in such a word.
    """
    spans = []
    begin = 0
    for match in _END.finditer(text):
        if match[0] == "." and _is_abbreviation(text[max(begin, match.start() - _LONGEST) : match.start()]):
            continue
        spans.append((begin, match.end()))
        begin = match.end()
    spans.append((begin, len(text)))
    return [span for span in (_strip(text, *span) for span in spans) if span[0] < span[1]]


def _is_abbreviation(before: str) -> bool:
    word = _LAST_WORD.search(before)
    if word is None:
        return False
    initial = len(word[0]) == 1 and word[0].isupper()
    return initial or word[0].lower() in _ABBREVIATIONS


def _strip(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))
