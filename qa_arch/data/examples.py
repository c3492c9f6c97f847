"""From one raw question to a verified ``Example``; no text is stripped or normalised on the way."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from qa_arch.data.shapes import Raw, RecordError, clip, json_type
from qa_arch.types.text import Example, Gold


def to_example(raw: Raw, contexts: dict[str, str]) -> Example:
    """``raw`` as an Example whose answers are proved to lie where they say.

    ``contexts`` holds the passages seen so far; equal passages become the same string object.
    Raises RecordError, its ``where`` the field at fault.
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
            raise RecordError(name, "is missing; every question needs one: add it")
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


def _check_answerable(raw: Raw, answers: tuple[Gold, ...]) -> None:
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
    """The answers of a list of objects (SQuAD) or of an object of two lists (the hub), verified."""
    if name not in fields:
        raise RecordError(name, "is missing; add it (an empty list where the question has no answer)")
    value = fields[name]
    if isinstance(value, dict):
        value = _rows(value, name)
    if not isinstance(value, list):
        raise RecordError(name, f"is {json_type(value)}, not a list of answers with text and answer_start")
    return tuple(_gold(answer, f"{name}[{index}]", context) for index, answer in enumerate(value))


def _rows(columns: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    for column in ("text", "answer_start"):
        if column not in columns:
            raise RecordError(f"{name}.{column}", "is missing; add the list, one entry an answer")
        if not isinstance(columns[column], list):
            raise RecordError(f"{name}.{column}", f"is {json_type(columns[column])}, not a list; bracket it")
    texts, starts = columns["text"], columns["answer_start"]
    if len(texts) != len(starts):
        raise RecordError(name, f"has {len(texts)} text and {len(starts)} answer_start; pair them")
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
        raise RecordError(f"{where}.text", f"is empty ({clip(text)}); remove it: no answer is an empty list")
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
        fault = f"is {start}, but there the context has {clip(context[start : start + len(text)])}"
    places = [str(place) for place in islice(_occurrences(text, context), 3)]
    if places:
        return f"{fault}, not {clip(text)}, which occurs at {' and '.join(places)}; correct answer_start"
    return f"{fault}, and {clip(text)} occurs nowhere in it; correct the text or the context"


def _occurrences(text: str, context: str):
    place = context.find(text)
    while place >= 0:
        yield place
        place = context.find(text, place + 1)
