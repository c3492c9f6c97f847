"""Checks of raw questions of any format and conversion to ``Example``; no text is stripped or normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from qa_arch.types.text import Example, Gold


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


def clip(text: object, width: int = 60) -> str:
    """``repr`` of a text, cut to ``width`` characters: shows invisible and broken ones, on a single line."""
    return repr(text[:width] + "…" if isinstance(text, str) and len(text) > width else text)


def json_type(value: object) -> str:
    """The JSON type of ``value``, for messages."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def wrong_type(where: str, value: object, wanted: str, missing: bool = False) -> RecordError:
    """The fault of a part that is not of the JSON type ``wanted`` ("object" or "list"), or is missing."""
    article = "an" if wanted == "object" else "a"
    state = "is missing" if missing else f"is {json_type(value)}"
    return RecordError(where, f"{state}; it must be {article} {wanted}: correct or remove it")


def article_label(fields: Mapping[str, Any]) -> str:
    """``article 'TITLE', `` for messages; empty where there is no title."""
    title = fields.get("title")
    return f"article {clip(title)}, " if isinstance(title, str) and title.strip() else ""


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
    question = _text(fields, "question")
    answers = _golds(fields, "answers", context)
    _check_answerable(raw, answers)
    plausible = (
        _golds(fields, "plausible_answers", context) if fields.get("plausible_answers") is not None else ()
    )
    kind = _text(fields, "kind") if fields.get("kind") is not None else None
    return Example(identity, question, context, title, answers, plausible, kind)


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        if name not in fields:
            raise RecordError(name, "is missing; every question needs this field: add it")
        raise RecordError(name, f"is {json_type(value)} ({clip(str(value))}), not a text; write it in quotes")
    if not value.strip():
        raise RecordError(name, f"is empty ({clip(value)}); fill it in or remove the question")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise RecordError(
                name,
                f"holds half a surrogate pair ({clip(value[error.start])}) at character {error.start}; "
                "write the whole character",
            ) from None
    return value


def _check_answerable(raw: RawQuestion, answers: tuple[Gold, ...]) -> None:
    impossible = raw.fields.get("is_impossible")
    if "is_impossible" not in raw.fields:
        impossible = not raw.nested and not answers
    elif not isinstance(impossible, bool):
        raise RecordError("is_impossible", f"is {json_type(impossible)}; write true or false")
    if impossible and answers:
        count = "is an answer" if len(answers) == 1 else f"are {len(answers)} answers"
        raise RecordError(
            "is_impossible",
            f"is true, but there {count} ({clip(answers[0].text)}); "
            "move it to plausible_answers or set is_impossible to false",
        )
    if not impossible and not answers:
        raise RecordError("answers", "is empty; give an answer, or set is_impossible to true")


def _golds(fields: Mapping[str, Any], name: str, context: str) -> tuple[Gold, ...]:
    """Verified answers from a list of objects (SQuAD) or from an object of two lists (the hub)."""
    if name not in fields:
        raise RecordError(name, "is missing; add it (an empty list where the question has no answer)")
    value = fields[name]
    if isinstance(value, dict):
        value = _as_rows(value, name)
    if not isinstance(value, list):
        raise RecordError(name, f"is {json_type(value)}, not a list of answers with text and answer_start")
    return tuple(_gold(answer, f"{name}[{index}]", context) for index, answer in enumerate(value))


def _as_rows(columns: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    for column in ("text", "answer_start"):
        if column not in columns:
            raise RecordError(f"{name}.{column}", "is missing; add the list, with an entry per answer")
        if not isinstance(columns[column], list):
            raise RecordError(
                f"{name}.{column}", f"is {json_type(columns[column])}, not a list; put it in brackets"
            )
    texts, starts = columns["text"], columns["answer_start"]
    if len(texts) != len(starts):
        raise RecordError(name, f"has {len(texts)} text and {len(starts)} answer_start; give as many of both")
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _gold(answer: Any, where: str, context: str) -> Gold:
    if not isinstance(answer, dict):
        raise RecordError(where, f"is {json_type(answer)}, not an object with text and answer_start")
    for name in ("text", "answer_start"):
        if name not in answer:
            raise RecordError(f"{where}.{name}", "is missing; an answer needs text and answer_start")
    text, start = answer["text"], answer["answer_start"]
    if not isinstance(text, str):
        raise RecordError(f"{where}.text", f"is {json_type(text)} ({clip(str(text))}), not a text; quote it")
    if not text.strip():
        raise RecordError(
            f"{where}.text", f"is empty ({clip(text)}); remove it: an empty list means no answer"
        )
    if type(start) is not int:  # bool is an int to isinstance
        raise RecordError(
            f"{where}.answer_start",
            f"is {json_type(start)} ({clip(start)}), not a whole number; count characters from 0",
        )
    if start < 0 or not context.startswith(text, start):
        raise RecordError(f"{where}.answer_start", _mismatch(text, start, context))
    return Gold(text, start)


def _mismatch(text: str, start: int, context: str) -> str:
    if start < 0:
        fault = f"is {start}, below 0"
    elif start >= len(context):
        fault = f"is {start}, beyond the end of the context ({len(context)} characters)"
    else:
        fault = f"is {start}, where the context has {clip(context[start : start + len(text)])}"
    places = [str(place) for place in islice(_occurrences(text, context), 3)]
    if places:
        return f"{fault}, not {clip(text)}, which occurs at {' and '.join(places)}; correct answer_start"
    return f"{fault}, and {clip(text)} occurs nowhere in it; correct the text or the context"


def _occurrences(text: str, context: str):
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)
