"""Sets of questions: the checks of raw questions of any format, their fingerprint and their statistics.

No text is stripped or normalised.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics as numbers
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Self

from qa_arch.data.formats import OnError
from qa_arch.errors import ConfigError, DataError
from qa_arch.types.text import Example, Gold, Problem, Protocol, QuestionSet

_NOUN = {str: "a text", int: "a whole number", bool: "true or false", list: "a list", dict: "an object"}


class RecordError(Exception):
    """A fault of a single record: ``where`` it is, and a message with the remedy."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        self.message = message


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """A question as its file states it: its own fields and those of its article, unchecked."""

    position: str
    """Place in the file, for messages: ``data[0].paragraphs[2].qas[1]``."""
    fields: Mapping[str, Any]
    nested: bool
    """True for SQuAD's nested JSON, where ``is_impossible`` alone makes a question unanswerable; in flat
    records an empty list of answers does."""
    line: int | None = None
    """Line in the file, for formats whose messages name it together with the question's id."""

    @property
    def label(self) -> str:
        """Article and question id, or the position in the file where there is no id."""
        identity = self.fields.get("id")
        named = isinstance(identity, str) and identity.strip()
        if self.line is not None:
            return f"line {self.line}, question {clip(identity)}" if named else self.position
        question = f"question {clip(identity)}" if named else self.position
        return f"{article_label(self.fields)}{question}"


def clip(value: object, width: int = 60) -> str:
    """``repr`` of a value, cut to ``width`` characters: shows invisible and broken ones, on a single line."""
    if isinstance(value, str):
        return repr(value[:width] + "…" if len(value) > width else value)
    text = repr(value)
    return text[:width] + "…" if len(text) > width else text


def json_type(value: object) -> str:
    """The JSON type of ``value``, for messages."""
    return "null" if value is None else _NOUN.get(type(value), "a number")


def article_label(fields: Mapping[str, Any]) -> str:
    """``article 'TITLE', `` for messages; empty where there is no title."""
    title = fields.get("title")
    return f"article {clip(title)}, " if isinstance(title, str) and title.strip() else ""


def typed(holder: Mapping[str, Any], name: str, wanted: type, where: str = "") -> Any:
    """The value ``name`` of a JSON object, which is of the type ``wanted``; else a RecordError."""
    if name not in holder:
        raise RecordError(f"{where}{name}", f"is missing; add {_NOUN[wanted]}")
    value = holder[name]
    if type(value) is not wanted:  # bool is an int to isinstance
        raise RecordError(f"{where}{name}", wrong_type(value, wanted))
    return value


def wrong_type(value: object, wanted: type) -> str:
    """The message of a fault: ``value`` is not of the JSON type ``wanted``."""
    return f"is {json_type(value)} ({clip(value)}); it must be {_NOUN[wanted]}: correct or remove it"


def to_example(raw: RawQuestion, contexts: dict[str, str]) -> Example:
    """``raw`` as an Example, after checking that every answer occurs at its offset in the context.

    ``contexts`` holds the passages seen so far; equal passages become the same string object.
    Raises RecordError, whose ``where`` names the faulty field.
    """
    fields = raw.fields
    identity, title = _text(fields, "id"), _text(fields, "title")
    context = contexts.get(fields["context"]) if isinstance(fields.get("context"), str) else None
    if context is None:
        context = _text(fields, "context")
        contexts[context] = context
    question, answers = _text(fields, "question"), _golds(fields, "answers", context)
    impossible = not raw.nested and not answers
    if "is_impossible" in fields:
        impossible = typed(fields, "is_impossible", bool)
    if impossible and answers:
        raise RecordError(
            "is_impossible",
            f"is true, but {clip(answers[0].text)} is given as an answer; move it to plausible_answers or set"
            " is_impossible to false",
        )
    if not impossible and not answers:
        raise RecordError("answers", "is empty; give an answer, or set is_impossible to true")
    optional = {name for name in ("plausible_answers", "kind") if fields.get(name) is not None}
    plausible = _golds(fields, "plausible_answers", context) if "plausible_answers" in optional else ()
    kind = _text(fields, "kind") if "kind" in optional else None
    return Example(identity, question, context, title, answers, plausible, kind)


def _text(holder: Mapping[str, Any], name: str, where: str = "") -> str:
    value = typed(holder, name, str, where)
    if not value.strip():
        raise RecordError(f"{where}{name}", f"is empty ({clip(value)}); fill it in or remove it")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordError(
                f"{where}{name}",
                f"holds half a surrogate pair ({clip(value[error.start])}) at character {error.start}; "
                "write the whole character",
            ) from None
    return value


def _golds(fields: Mapping[str, Any], name: str, context: str) -> tuple[Gold, ...]:
    """Verified answers from a list of objects (SQuAD) or from an object of two lists (the hub)."""
    value = fields.get(name)
    if isinstance(value, dict):
        texts, starts = (typed(value, column, list, f"{name}.") for column in ("text", "answer_start"))
        if len(texts) != len(starts):
            message = f"has {len(texts)} text and {len(starts)} answer_start; give as many of both"
            raise RecordError(name, message)
        value = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
    else:
        value = typed(fields, name, list)
    return tuple(_gold(answer, f"{name}[{index}]", context) for index, answer in enumerate(value))


def _gold(answer: Any, where: str, context: str) -> Gold:
    if not isinstance(answer, dict):
        raise RecordError(where, wrong_type(answer, dict))
    text, start = _text(answer, "text", f"{where}."), typed(answer, "answer_start", int, f"{where}.")
    if start < 0 or not context.startswith(text, start):
        fault = f"is {start}, outside the context ({len(context)} characters)"
        if 0 <= start < len(context):
            fault = f"is {start}, where the context has {clip(context[start : start + len(text)])}"
        places = [str(match.start()) for match in islice(re.finditer(f"(?={re.escape(text)})", context), 3)]
        remedy = f"{clip(text)} occurs nowhere in it; correct the text or the context"
        if places:
            remedy = f"{clip(text)} occurs at {' and '.join(places)}; correct answer_start"
        raise RecordError(f"{where}.answer_start", f"{fault}, and {remedy}")
    return Gold(text, start)


class QuestionSetBuilder:
    """Collects raw questions of one or more files into a set, and the faulty records that were left out.

    Ids are unique over all files.
    """

    def __init__(self, on_error: OnError) -> None:
        if on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error is {on_error!r}; it must be raise or skip")
        self.on_error = on_error
        self.examples: list[Example] = []
        self.problems: list[Problem] = []
        self.places: dict[str, str] = {}
        self.contexts: dict[str, str] = {}
        self.protocol: Protocol = "1.1"

    def add(self, file: str, items: Iterable[RawQuestion | RecordError], version_two: bool = False) -> None:
        """Check and add the questions of ``file``; ``version_two`` where the file states version 2.0.

        Raises DataError for a file without questions, and for the first fault with ``on_error="raise"``.
        """
        before = len(self.examples) + len(self.problems)
        if version_two:
            self.protocol = "2.0"
        for item in items:
            try:
                if isinstance(item, RecordError):
                    raise item
                self._accept(file, item)
            except RecordError as flaw:
                where = f"{item.label}, {flaw.where}" if isinstance(item, RawQuestion) else flaw.where
                problem = Problem(file, where, flaw.message)
                if self.on_error == "raise":
                    raise DataError(f"{problem} (on_error=skip leaves such records out)") from None
                self.problems.append(problem)
        if before == len(self.examples) + len(self.problems):
            raise DataError(f"{file}: holds no questions; fetch or write the file again")

    def _accept(self, file: str, raw: RawQuestion) -> None:
        example = to_example(raw, self.contexts)
        if example.id in self.places:
            raise RecordError(
                "id",
                f"is a duplicate: {self.places[example.id]} has it and so has {raw.position}; "
                "give each question its own id",
            )
        self.places[example.id] = f"{raw.position} of {file}"
        if "is_impossible" in raw.fields or not example.answerable:
            self.protocol = "2.0"
        self.examples.append(example)

    def build(self, name: str) -> QuestionSet:
        """The set of all added questions; DataError where all records are faulty."""
        if not self.examples:
            raise DataError(
                f"{name}: no question is left: all {len(self.problems)} records are faulty, "
                f"the first is {self.problems[0]}"
            )
        return question_set(name, self.examples, self.protocol, self.problems)


def question_set(
    name: str, examples: Iterable[Example], protocol: Protocol, skipped: Iterable[Problem] = ()
) -> QuestionSet:
    """A QuestionSet of ``examples`` with its fingerprint computed."""
    examples = tuple(examples)
    return QuestionSet(name, examples, protocol, fingerprint(examples), tuple(skipped))


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 (hex) of all fields of all questions in order; the same on every machine."""
    digest = hashlib.sha256()
    previous = None
    for example in examples:
        # Consecutive questions on a passage hash its text once: null means "the same as before".
        context = None if example.context == previous else example.context
        previous = example.context
        answers = [[gold.text, gold.start] for gold in example.answers]
        plausible = [[gold.text, gold.start] for gold in example.plausible]
        record = [example.id, example.title, example.question, context, answers, plausible, example.kind]
        digest.update(json.dumps(record).encode("ascii"))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of texts in words (separated by white space); all 0 for no texts."""

    mean: float
    median: float
    p95: int
    """95th percentile: the smallest length that at least 95% of the texts do not exceed."""
    max: int

    @classmethod
    def of(cls, texts: Iterable[str]) -> Self:
        counts = sorted(len(text.split()) for text in texts)
        if not counts:
            return cls(0.0, 0.0, 0, 0)
        rank = math.ceil(0.95 * len(counts))
        return cls(numbers.fmean(counts), float(numbers.median(counts)), counts[rank - 1], counts[-1])


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a set; an article is a distinct title, a paragraph a distinct passage of an article."""

    examples: int
    negatives: int
    """Questions without an answer."""
    articles: int
    articles_with_negatives: int
    paragraphs: int
    answers_per_question: float
    """Mean over the answerable questions; 0 where there are none."""
    context_words: Lengths
    """Over paragraphs, not over questions."""
    question_words: Lengths
    answer_words: Lengths
    """Over all gold answers."""
    kinds: tuple[tuple[str, int], ...]
    """(kind, number of questions), sorted by kind, over the questions that state a kind."""
    protocol: Protocol
    skipped: int
    """Faulty records left out while reading."""
    fingerprint: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, ``kinds`` as an object."""
        return {**asdict(self), "kinds": dict(self.kinds)}


def statistics(questions: QuestionSet) -> Statistics:
    """Statistics of ``questions``; the published figures on the official SQuAD files."""
    examples = questions.examples
    negatives = [example for example in examples if not example.answerable]
    answers = [gold.text for example in examples for gold in example.answers]
    passages = {(example.title, example.context) for example in examples}
    kinds = Counter(example.kind for example in examples if example.kind is not None)
    return Statistics(
        examples=len(examples),
        negatives=len(negatives),
        articles=len(questions.titles),
        articles_with_negatives=len({example.title for example in negatives}),
        paragraphs=len(passages),
        answers_per_question=len(answers) / max(len(examples) - len(negatives), 1),
        context_words=Lengths.of(context for _, context in passages),
        question_words=Lengths.of(example.question for example in examples),
        answer_words=Lengths.of(answers),
        kinds=tuple(sorted(kinds.items())),
        protocol=questions.protocol,
        skipped=len(questions.skipped),
        fingerprint=questions.fingerprint,
    )
