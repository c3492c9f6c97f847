"""``mrqa:FILE``: the format of the MRQA 2019 shared task (Fisch et al. 2019), JSON Lines, plain or gzip.

The first line is a header with the name of the data set; every other line has a passage and its questions.
Answers are detected spans of the passage with inclusive ends; every span becomes a gold answer with the text
of the passage. Passages are not changed, and keep their markers (``[TLE]``, ``[DOC]``, ``[PAR]``).

The format has no articles: the title of a question is the name of the data set and a hash of the passage, so
that splits by article keep passages whole. Passages of a Wikipedia article may then be in different splits.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.data.examples import RawQuestion, RecordError, clip, json_type, wrong_type
from qa_arch.data.formats import Format, OnError
from qa_arch.data.input_files import Paths, as_list, expand
from qa_arch.data.question_sets import QuestionSetBuilder
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import QuestionSet

Span = tuple[int, int]
_PATTERN = "*.jsonl*"
_FIELDS = {"id": "id", "qid": "id", "question": "question", "is_impossible": "is_impossible"}
"""Field of MRQA -> field of a flat record; fields that are false are left out."""
_GZIP = b"\x1f\x8b"


@gc_disabled()
def read_mrqa(paths: Paths, *, name: str = "", on_error: OnError = "raise") -> QuestionSet:
    """Read files into a single question set; a folder stands for its ``*.jsonl*``.

    Raises DataError for the first fault; with ``on_error="skip"`` faulty questions are left out and listed
    in ``skipped``, and only faults of a whole file (header, packing, encoding, JSON) raise.
    """
    builder = QuestionSetBuilder(on_error)
    for path in expand(paths, _PATTERN):
        builder.add(str(path), _questions(path))
    stems = (Path(path).name.removesuffix(".gz").removesuffix(".jsonl") for path in as_list(paths))
    return builder.build(name or "+".join(stems))


def _questions(path: Path) -> Iterator[RawQuestion | RecordError]:
    dataset = None
    for number, record in _records(path):
        if isinstance(record, dict) and "header" in record:
            dataset = _dataset(record["header"], f"{path}: line {number}")
        elif dataset is None:
            raise DataError(
                f"{path}: line {number}: there is no header before it; the first line of an MRQA file is"
                ' {"header": {"dataset": NAME}}'
            )
        elif isinstance(record, dict):
            yield from _passage(record, number, dataset)
        else:
            yield wrong_type(f"line {number}", record, "object")


def _dataset(header: Any, place: str) -> str:
    name = header.get("dataset") if isinstance(header, dict) else None
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"{place}: header.dataset: is not a name ({clip(name)}); name the data set there")
    return name.strip()


def _passage(record: Mapping[str, Any], number: int, dataset: str) -> Iterator[RawQuestion | RecordError]:
    """Questions of a line; a fault of the passage is reported for every question on it."""
    questions = record.get("qas")
    if not isinstance(questions, list):
        yield wrong_type(f"line {number}, qas", questions, "list", missing="qas" not in record)
        return
    context = record.get("context")
    digest = hashlib.sha256(str(context).encode("utf-8", "surrogatepass")).hexdigest()
    shared = {"title": f"{dataset} {digest[:12]}"} | ({"context": context} if "context" in record else {})
    for index, question in enumerate(questions):
        position = f"line {number}, qas[{index}]"
        if isinstance(question, dict):
            yield _question(question, record, RawQuestion(position, shared, nested=False, line=number))
        else:
            yield wrong_type(position, question, "object")


def _question(
    question: Mapping[str, Any], record: Mapping[str, Any], raw: RawQuestion
) -> RawQuestion | RecordError:
    """``raw`` with the fields of the question, and its answers with verified offsets."""
    fields = {
        **raw.fields,
        **{_FIELDS[key]: question[key] for key in _FIELDS if question.get(key, False) is not False},
    }
    raw = replace(raw, fields=fields)
    try:
        if "id" not in fields:
            raise RecordError("qid", "is missing; every question needs this field: add it")
        answers = _answers(question, record) if isinstance(fields.get("context"), str) else []
    except RecordError as fault:
        return RecordError(f"{raw.label}, {fault.where}", fault.message)
    return replace(raw, fields={**fields, "answers": answers})


def _answers(question: Mapping[str, Any], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The distinct detected spans, in order. Raises RecordError for an answer that no span matches."""
    detected = question.get("detected_answers")
    if not isinstance(detected, list):
        state = f"is {json_type(detected)}" if "detected_answers" in question else "is missing"
        raise RecordError("detected_answers", f"{state}; give a list of objects with text and char_spans")
    if not detected and question.get("is_impossible") is not True:
        raise RecordError(
            "detected_answers", "is empty; give an answer with its spans, or set is_impossible to true"
        )
    spans = dict.fromkeys(
        span
        for index, answer in enumerate(detected)
        for span in _spans(answer, f"detected_answers[{index}]", record)
    )
    return [{"text": record["context"][start:end], "answer_start": start} for start, end in spans]


def _spans(answer: Any, where: str, record: Mapping[str, Any]) -> list[Span]:
    """Spans of the context that match the answer, ends exclusive: by characters, else by tokens."""
    if not isinstance(answer, dict):
        raise RecordError(where, f"is {json_type(answer)}, not an object with text and char_spans")
    text, context = answer.get("text"), record["context"]
    if not isinstance(text, str) or not text.strip():
        state = f"is {json_type(text)} ({clip(text)}), not a text" if "text" in answer else "is missing"
        raise RecordError(f"{where}.text", f"{state}; write the text of the spans")
    stated = _pairs(answer, "char_spans", where)
    spans = [(first, last + 1) for first, last in stated if _holds(context, first, last + 1, text)]
    if not spans or len(spans) < len(stated):
        by_token = [_characters(pair, record) for pair in _pairs(answer, "token_spans", where)]
        spans += [(start, end) for start, end in by_token if _holds(context, start, end, text)]
    if not spans:
        raise RecordError(f"{where}.char_spans", _mismatch(text, stated, context))
    return spans


def _mismatch(text: str, stated: list[Span], context: str) -> str:
    remedy = "correct the spans (both ends are inclusive) or the text"
    if not stated:
        return f"is missing, and no span of tokens holds {clip(text)}; {remedy}"
    first, last = stated[0]
    held = clip(context[max(0, first) : max(0, last + 1)])
    return f"{[first, last]} holds {held}, and no span holds {clip(text)}; {remedy}"


def _pairs(answer: Mapping[str, Any], field: str, where: str) -> list[Span]:
    """Spans as stated, ends inclusive; empty where the field is missing."""
    value = answer.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise RecordError(f"{where}.{field}", f"is {json_type(value)}, not a list of [first, last]")
    for index, pair in enumerate(value):
        if not isinstance(pair, list) or [type(end) for end in pair] != [int, int]:
            raise RecordError(f"{where}.{field}[{index}]", f"is {clip(pair)}; write [first, last] in numbers")
    return [(first, last) for first, last in value]


def _characters(pair: Span, record: Mapping[str, Any]) -> Span:
    """Character span of a token span, end exclusive; (0, 0) for tokens that do not exist."""
    tokens = record.get("context_tokens")
    if not isinstance(tokens, list):
        state = f"is {json_type(tokens)}" if "context_tokens" in record else "is missing"
        raise RecordError(
            "context_tokens", f"{state} and char_spans do not hold the answer; correct char_spans"
        )
    first, last = pair
    if not 0 <= first <= last < len(tokens):
        return 0, 0
    for index in pair:
        token = tokens[index]
        if not isinstance(token, list) or [type(part) for part in token] != [str, int]:
            raise RecordError(f"context_tokens[{index}]", f"is {clip(token)}; write [token, offset]")
    return tokens[first][1], tokens[last][1] + len(tokens[last][0])


def _holds(context: str, start: int, end: int, text: str) -> bool:
    """Whether ``context[start:end]`` equals ``text``, up to case, Unicode form and inner white space."""
    span = context[start:end] if 0 <= start < end <= len(context) else ""
    return span == text or (span == span.strip() and _folded(span) == _folded(text))


def _folded(text: str) -> list[str]:
    return unicodedata.normalize("NFC", text).casefold().split()


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number, value) of every line that is not blank, decompressed while reading."""
    number = 0
    try:
        with path.open("rb") as file:
            packed = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if packed else path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield number, _value(line, f"{path}: line {number}")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: cannot be unpacked after line {number} ({error}); fetch it again") from None
    except OSError as error:
        raise DataError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions"
        ) from None


def _value(line: bytes, place: str) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: byte {error.start} is not UTF-8; fetch the file again") from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{place}: broken JSON, column {error.colno}: {error.msg}; correct that line"
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: cannot be read ({error}); write it again") from None


FORMAT = Format(
    "mrqa:FILE",
    "an MRQA file",
    open=read_mrqa,
    files=partial(expand, pattern=_PATTERN),
    joins=True,
)
