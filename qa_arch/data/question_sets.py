"""Question sets: validation of raw questions of any format, fingerprints and statistics.

Text is never stripped or normalised.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics as numbers
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from qa_arch.data.files import OnError, Use
from qa_arch.errors import DataError, FaultyRecordError
from qa_arch.metrics.squad import ENGLISH
from qa_arch.types import Example, Gold, Problem, Protocol, QuestionSet

_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_NOUN = {str: "a string", int: "an integer", bool: "a boolean", list: "a list", dict: "an object"}


class RecordError(Exception):
    """A faulty record: ``where`` the fault is, and a message with the remedy."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        self.message = message


@dataclass(frozen=True, slots=True)
class RawQuestion:
    """A question as given in its file: its own fields and those of its article, not validated."""

    position: str
    """Position in the file, for messages: ``data[0].paragraphs[2].qas[1]``."""
    fields: Mapping[str, Any]
    flagged: bool = False
    """True for SQuAD 1.1's nested JSON, where only ``is_impossible`` makes a question unanswerable; elsewhere
    an empty list of answers does too."""

    @property
    def label(self) -> str:
        """Position and, if present, the id."""
        identity = _as_text(self.fields.get("id"))
        has_id = isinstance(identity, str) and identity.strip()
        return f"{self.position}, question {clip(identity)}" if has_id else self.position


def clip(value: object, width: int = 60) -> str:
    """``repr`` of a value, cut to ``width`` characters: one line, with invisible characters escaped."""
    if isinstance(value, str):
        return repr(value[:width] + "…" if len(value) > width else value)
    text = repr(value)
    return text[:width] + "…" if len(text) > width else text


def json_type(value: object) -> str:
    """JSON type of ``value``, for messages."""
    if value is None or isinstance(value, float):
        return "null" if value is None else "a number"
    return _NOUN.get(type(value), f"of type {type(value).__name__}")  # the latter from Parquet


def require_field(fields: Any, name: str, wanted: type, where: str = "") -> Any:
    """Field ``name`` of a JSON object. Raises RecordError for another value than an object, and for a field
    that is missing or not of type ``wanted``."""
    if not isinstance(fields, Mapping):
        raise RecordError(where.rstrip("."), wrong_type(fields, dict))
    if name not in fields:
        raise RecordError(f"{where}{name}", f"is missing; add {_NOUN[wanted]}")
    value = fields[name]
    if type(value) is not wanted:  # isinstance would accept a bool as an int
        raise RecordError(f"{where}{name}", wrong_type(value, wanted))
    return value


def wrong_type(value: object, wanted: type) -> str:
    """Message for a ``value`` that is not of the JSON type ``wanted``."""
    return f"is {json_type(value)} ({clip(value)}); it must be {_NOUN[wanted]}: correct it"


def to_example(raw: RawQuestion, contexts: dict[str, str], use: Use = "training") -> tuple[Example, bool]:
    """Validate what ``use`` needs of ``raw``; also returns whether the question is one of SQuAD 2.0.

    ``contexts`` holds the passages seen so far, so that equal passages share one string object. Without a
    title, each passage is its own article. An answer without offset is at its only occurrence.
    Raises RecordError, whose ``where`` names the faulty field.
    """
    fields = raw.fields
    identity = _text(fields, "id")
    context = contexts.get(fields["context"]) if isinstance(fields.get("context"), str) else None
    if context is None:
        context = _text(fields, "context")
        contexts[context] = context
    title = passage_title(context) if fields.get("title") in (None, "") else _text(fields, "title")
    question = _text(fields, "question")
    unlabelled = use == "answering" and fields.get("answers") is None
    given = [] if unlabelled else _listed(fields, "answers")
    answers = _golds(given, "answers", context, use)
    flag = as_flag(fields.get("is_impossible"))
    stated = None if flag is None else require_field({"is_impossible": flag}, "is_impossible", bool)
    # A list of empty texts is how many annotation tools write "no answer"; an empty one may lack labels.
    impossible = not (answers or unlabelled or (raw.flagged and not given)) if stated is None else stated
    if impossible and answers:
        raise RecordError(
            "is_impossible",
            f"is true, but {clip(answers[0].text)} is given as an answer; move it to plausible_answers or set"
            " is_impossible to false",
        )
    if not (impossible or answers or use == "answering"):
        raise RecordError("answers", "is empty; give an answer, or set is_impossible to true")
    seeming = _listed(fields, "plausible_answers") if fields.get("plausible_answers") is not None else []
    plausible = _golds(seeming, "plausible_answers", context, use)
    kind = _text(fields, "kind") if fields.get("kind") is not None else None
    original = _text(fields, "original_id") if fields.get("original_id") else None
    example = Example(identity, question, context, title, answers, plausible, kind, original)
    return example, impossible or stated is not None


_NAMES = {"id", "title", "original_id"}
"""Fields whose numbers are names: annotation tools and pandas write 22 or 22.0 for "22"."""


def _as_integer(value: Any) -> Any:
    """The integer that a number or a text stands for (``"22"``, ``22.0``), else the value itself."""
    if type(value) in (bool, int):  # a float would round long integers
        return value
    try:
        return int(number) if (number := float(value)).is_integer() else value
    except (ValueError, TypeError, OverflowError):
        return value


def _as_text(value: Any) -> Any:
    """A whole number as text, anything else as it is."""
    number = value if isinstance(value, str) else _as_integer(value)
    return str(number) if type(number) is int else value


def as_flag(value: Any) -> Any:
    """The boolean that a text or a number stands for; None for an empty text."""
    return _FLAGS.get(str(_as_integer(value)).lower(), None if value == "" else value)


def _text(fields: Mapping[str, Any], name: str, where: str = "") -> str:
    if name in _NAMES and type(fields.get(name)) is not str:
        fields = {key: _as_text(value) for key, value in fields.items() if key == name}
    value = require_field(fields, name, str, where)
    if not value.strip():
        raise RecordError(f"{where}{name}", f"is empty ({clip(value)}); fill it in")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        fault = f"contains a lone surrogate at character {error.start}; write the whole character"
        raise RecordError(f"{where}{name}", fault) from None
    return value


_LISTS = '{"text": [...], "answer_start": [...]}'


def _listed(fields: Mapping[str, Any], name: str) -> list[Any]:
    """Answers from a list of objects (SQuAD) or an object of lists (Hugging Face hub), as the former."""
    value = fields.get(name)
    if isinstance(value, str):  # what a table prints of lists, or a text without its place
        raise RecordError(name, f"is a string ({clip(value)}); it must be a list, or {_LISTS}")
    if not isinstance(value, dict):
        return list(require_field(fields, name, list))
    texts = require_field(value, "text", list, f"{name}.")
    starts = [None] * len(texts)
    if value.get("answer_start") is not None:
        starts = require_field(value, "answer_start", list, f"{name}.")
    if len(texts) != len(starts):
        message = f"has {len(texts)} text and {len(starts)} answer_start; give equally many"
        raise RecordError(name, message)
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _golds(answers: list[Any], name: str, context: str, use: Use) -> tuple[Gold, ...]:
    """Answers that are not empty, verified as far as ``use`` needs it."""
    golds = []
    for index, answer in enumerate(answers):
        try:
            gold = _gold(answer, context, use)
        except RecordError as fault:
            raise RecordError(f"{name}[{index}]{fault.where}", fault.message) from None
        if gold is not None:
            golds.append(gold)
    return tuple(golds)


def _gold(answer: Any, context: str, use: Use) -> Gold | None:
    """The answer, without a place if it is not at its offset and ``use`` needs none; None if it is empty."""
    if not require_field(answer, "text", str, ".").strip():
        return None
    text, start = _text(answer, "text", "."), _as_integer(answer.get("answer_start"))
    if type(start) is int and start >= 0 and context.startswith(text, start):
        return Gold(text, start)
    # A lookahead also finds occurrences that overlap; three are enough to name.
    offsets = [match.start() for match in islice(re.finditer(f"(?={re.escape(text)})", context), 3)]
    if start is None and len(offsets) == 1:
        return Gold(text, offsets[0])
    if use != "training":
        return Gold(text, -1)
    if start is not None:
        require_field({"answer_start": start}, "answer_start", int, ".")
    remedy = "occurs nowhere in the context; correct the text or the context"
    if offsets:
        places = " and ".join(map(str, offsets))
        remedy = f"occurs at {places}; {'add' if start is None else 'correct'} answer_start"
    given = "is missing" if start is None else f"is {start}"
    raise RecordError(".answer_start", f"{given}, but {clip(text)} {remedy}")


Questions = Iterable[RawQuestion | RecordError]


def build(
    name: str, files: Iterable[tuple[str, bool, Questions]], on_error: OnError, use: Use = "training"
) -> QuestionSet:
    """Build a set from the questions of one or more files, with the faulty records that were skipped.

    ``files`` are (name, whether it declares version 2.0, questions); ids must be unique across files. A set
    to score is read as strictly as one to train on if faulty records are to be skipped.
    Raises DataError for a file without questions and if all records are faulty, FaultyRecordError for the
    first fault with ``on_error="raise"``.
    """
    use = "training" if use == "scoring" and on_error == "skip" else use
    examples: list[Example] = []
    problems: list[Problem] = []
    positions: dict[str, str] = {}
    contexts: dict[str, str] = {}
    protocol: Protocol = "1.1"
    for file, version_two, items in files:
        before = len(examples) + len(problems)
        # One unanswerable question, or the version of the file, makes the whole set 2.0.
        protocol = "2.0" if version_two else protocol
        for item in items:
            try:
                if isinstance(item, RecordError):
                    raise item
                example, is_two = to_example(item, contexts, use)
                if example.id in positions:
                    first = positions[example.id]
                    fault = f"is a duplicate: {first} has it too; give each question its own id"
                    raise RecordError("id", fault)
            except RecordError as fault:
                where = f"{item.label}, {fault.where}" if isinstance(item, RawQuestion) else fault.where
                problem = Problem(file, where, fault.message)
                if on_error == "raise":
                    raise FaultyRecordError(str(problem)) from None
                problems.append(problem)
                continue
            positions[example.id] = f"{item.position} of {file}"
            protocol = "2.0" if is_two else protocol
            examples.append(example)
        if before == len(examples) + len(problems):
            raise DataError(f"{file}: holds no questions; fetch or write the file again")
    if not examples:
        raise DataError(
            f"{name}: no question is left: all {len(problems)} records are faulty, the first is {problems[0]}"
        )
    return question_set(name, examples, protocol, problems)


def passage_title(context: object) -> str:
    """Title for a passage without an article: the start of its hash, so that equal passages share it."""
    # A lone surrogate is refused later, where its place is known.
    return hashlib.sha256(str(context).encode("utf-8", "surrogatepass")).hexdigest()[:12]


def question_set(
    name: str,
    examples: Iterable[Example],
    protocol: Protocol,
    skipped: Iterable[Problem] = (),
    language: str = ENGLISH,
) -> QuestionSet:
    """QuestionSet of ``examples``."""
    return QuestionSet(name, tuple(examples), protocol, tuple(skipped), language)


def statistics(questions: QuestionSet) -> dict[str, Any]:
    """Statistics of ``questions`` as plain values; on the official SQuAD files they equal the published ones.

    An article is a distinct title, a paragraph a distinct passage of an article. ``negatives`` have no
    answer; ``answers_per_question`` is the mean over the others. ``skipped`` counts the faulty records that
    were skipped while reading.
    """
    examples = questions.examples
    negatives = [example for example in examples if not example.answerable]
    answers = [gold.text for example in examples for gold in example.answers]
    passages = {(example.title, example.context) for example in examples}
    kinds = Counter(example.kind for example in examples if example.kind is not None)
    return {
        "examples": len(examples),
        "negatives": len(negatives),
        "articles": len(questions.titles),
        "articles_with_negatives": len({example.title for example in negatives}),
        "paragraphs": len(passages),
        "answers_per_question": len(answers) / max(len(examples) - len(negatives), 1),
        "context_words": _lengths([context for _, context in passages]),
        "question_words": _lengths([example.question for example in examples]),
        "answer_words": _lengths(answers),
        "kinds": dict(sorted(kinds.items())),
        "protocol": questions.protocol,
        "skipped": len(questions.skipped),
        "fingerprint": questions.fingerprint,
    }


def _lengths(texts: Sequence[str]) -> dict[str, float]:
    """Lengths in white-space-separated words; ``p95`` is the smallest that 95% do not exceed."""
    counts = sorted(len(text.split()) for text in texts) or [0]
    p95 = counts[math.ceil(0.95 * len(counts)) - 1]
    mean, median = numbers.fmean(counts), float(numbers.median(counts))
    return {"mean": mean, "median": median, "p95": p95, "max": counts[-1]}
