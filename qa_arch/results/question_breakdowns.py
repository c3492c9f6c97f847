"""What kind of question each is, read off its text: rows of breakdowns, filters, kinds to compare by."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qa_arch.results.question_rows import UNTYPED, Questions
from qa_arch.types.text import Example, QuestionSet

_ASKING = ("what", "which", "who", "whom", "whose", "when", "where", "why", "how")
_HOW = {"many": "how many", "much": "how much", "long": "how long"}
_MONTH = re.compile(r"\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b|\bcentury\b", re.IGNORECASE)
_YEAR = re.compile(r"\b(1\d|20)\d\ds?\b")
_QUESTION = (7, 10, 13, 16)
_CONTEXT = (76, 126, 176, 251)
_ANSWER = (2, 3, 4, 6)
"""First lengths, in words, of every bin but the first."""
_LEVELS = 40
"""At most so many levels of one facet."""


@dataclass(frozen=True, eq=False)
class Breakdown:
    """One way to sort questions: ``level[q]`` is an index into ``names``."""

    key: str
    title: str
    names: tuple[str, ...]
    level: npt.NDArray[np.uint8]


def breakdowns(
    rows: Questions, questions: QuestionSet | None, types: Mapping[str, str] | None = None
) -> list[Breakdown]:
    """Those that the record tells of, and with ``questions`` those of the texts.

    ``types`` are classes (``MAIN:sub``) that a classifier gave to questions, by id.
    """
    result = [
        _named("answerable", "Answerable", ["yes" if yes else "no" for yes in rows.answerable.tolist()])
    ]
    if any(rows.kind):
        result.append(_named("kind", "Kind, as tagged", _kinds(rows)))
    if types:
        labels = [types.get(id_, UNTYPED) for id_ in rows.ids]
        mains = [label.partition(":")[0] for label in labels]
        result += [_named("class", "Predicted class", mains), _named("sub", "Predicted sub class", labels)]
    if questions is None:
        return result
    examples = questions.examples
    result += [
        _named("word", "Question word", [question_word(e.question) for e in examples]),
        _named("type", "Answer type", [_type(e) for e in examples]),
        _binned("question", "Question length, words", _QUESTION, [_words(e.question) for e in examples]),
        _binned("context", "Passage length, words", _CONTEXT, _contexts(examples)),
        _binned("answer", "Answer length, words", _ANSWER, [_answer_words(e) for e in examples]),
        _named("article", "Article", [e.title for e in examples]),
    ]
    return result


def question_word(question: str) -> str:
    """The first word that asks ("how many" and the like as one); ``other`` where there is none."""
    words = re.findall(r"[\w']+", question.casefold())
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word in _ASKING:
            if word == "how":
                return _HOW.get(after, "how")
            return "who" if word in ("whom", "whose") else word
    return "other"


def answer_type(text: str) -> str:
    """date, number, name, clause (6 words or more) or phrase, by the form of the text alone.

    A coarse form of the types of Rajpurkar et al. 2016, Table 2, without a tagger: a name is
    capitalised throughout, small words aside.
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


def _kinds(rows: Questions) -> list[str]:
    untagged = ["answerable" if yes else "not tagged" for yes in rows.answerable.tolist()]
    return [kind or other for kind, other in zip(rows.kind, untagged, strict=True)]


def _type(example: Example) -> str:
    return answer_type(example.answers[0].text) if example.answers else "no answer"


def _words(text: str) -> int:
    return len(text.split())


def _contexts(examples: Sequence[Example]) -> list[int]:
    counts = {context: _words(context) for context in {example.context for example in examples}}
    return [counts[example.context] for example in examples]


def _answer_words(example: Example) -> int | None:
    return _words(example.answers[0].text) if example.answers else None


def _named(key: str, title: str, values: Sequence[str]) -> Breakdown:
    """Levels by falling number of questions."""
    unique, inverse, counts = np.unique(
        np.array(values, dtype=object), return_inverse=True, return_counts=True
    )
    rank = np.argsort(-counts, kind="stable")
    if len(rank) > _LEVELS:  # a byte a question; the rare ones share the last level
        names = [*(str(unique[i]) for i in rank[: _LEVELS - 1]), "other"]
        place = np.minimum(np.argsort(rank), _LEVELS - 1)
        return Breakdown(key, title, tuple(names), place[inverse].astype(np.uint8))
    place = np.empty_like(rank)
    place[rank] = np.arange(len(rank))
    return Breakdown(key, title, tuple(str(unique[index]) for index in rank), place[inverse].astype(np.uint8))


def _binned(key: str, title: str, begins: Sequence[int], values: Sequence[int | None]) -> Breakdown:
    """Levels in rising order, those without questions left out, no value last."""
    names = [_range(low, high) for low, high in zip((0, *begins), (*begins, None), strict=True)] + [
        "no answer"
    ]
    level = np.array([len(begins) + 1 if v is None else bisect_right(begins, v) for v in values], np.int64)
    used = np.unique(level)
    return Breakdown(key, title, tuple(names[i] for i in used), np.searchsorted(used, level).astype(np.uint8))


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"{low}+"
    if high - low <= 1 or (low == 0 and high == 2):
        return str(high - 1)
    return f"≤ {high - 1}" if low == 0 else f"{low}–{high - 1}"
