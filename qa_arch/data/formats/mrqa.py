"""``mrqa:FILE``: JSON Lines (plain or gzip) of the MRQA 2019 shared task (Fisch et al. 2019).

The first line is a header with the name of the data set; every other line has a passage and its questions.
Answers are detected spans of the passage with inclusive ends; every span becomes a gold answer with the text
of the passage. Passages are unchanged and keep their markers (``[TLE]``, ``[DOC]``, ``[PAR]``).

The format has no articles: the title of a question is the name of the data set and a hash of the passage, so
splits by article keep passages whole, but may separate passages of the same Wikipedia article.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.input_files import Paths, as_list, expand, json_lines, read_text
from qa_arch.data.question_sets import (
    RawQuestion,
    RecordError,
    as_flag,
    build,
    clip,
    passage_title,
    require_field,
    wrong_type,
)
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import QuestionSet

Span = tuple[int, int]
_FIELDS = {"id": "id", "qid": "id", "question": "question", "is_impossible": "is_impossible"}
"""MRQA field -> field of a flat record; false fields are dropped."""


@gc_disabled()
def read_mrqa(
    paths: Paths, *, name: str = "", on_error: OnError = "raise", use: Use = "training"
) -> QuestionSet:
    """Read files into a single question set.

    Raises DataError for the first fault; with ``on_error="skip"`` faulty questions are listed in ``skipped``,
    and only faults of a whole file (header, compression, encoding, JSON) raise.
    """
    files = (
        (str(path), False, mrqa_questions(path, json_lines(path, read_text(path)), use))
        for path in expand(paths)
    )
    stems = (Path(path).name.removesuffix(".gz").removesuffix(".jsonl") for path in as_list(paths))
    return build(name or "+".join(stems), files, on_error, use)


def mrqa_questions(
    path: Path, lines: Iterable[tuple[int, Any]], use: Use
) -> Iterator[RawQuestion | RecordError]:
    """Questions of a file's lines, given as (number, value). Raises DataError if no header names a set."""
    dataset = ""
    for number, record in lines:
        if isinstance(record, dict) and "header" in record:
            header = record["header"]
            dataset = str(header.get("dataset") or "").strip() if isinstance(header, dict) else ""
        elif isinstance(record, dict) and dataset:
            yield from _passage(record, f"line {number}", dataset, use)
        elif dataset:
            yield RecordError(f"line {number}", wrong_type(record, dict))
        if not dataset:
            raise DataError(
                f"{path}: line {number}: no data set name; the first line of an MRQA file is"
                ' {"header": {"dataset": NAME}}'
            )


def _passage(
    record: Mapping[str, Any], line: str, dataset: str, use: Use
) -> Iterator[RawQuestion | RecordError]:
    """Yield the questions of a line; a fault of the passage is reported for each of them."""
    try:
        questions = require_field(record, "qas", list, f"{line}, ")
    except RecordError as fault:
        yield fault
        return
    shared = {"title": f"{dataset} {passage_title(record.get('context'))}"}
    shared |= {"context": record["context"]} if "context" in record else {}
    for index, question in enumerate(questions):
        raw = RawQuestion(f"{line}, qas[{index}]", {})
        try:
            if not isinstance(question, dict):
                raise RecordError("", wrong_type(question, dict))
            stated = {_FIELDS[key]: question[key] for key in _FIELDS if question.get(key, False) is not False}
            raw = RawQuestion(raw.position, {**shared, **stated})
            if use == "answering" and question.get("detected_answers") is None:
                yield raw
                continue
            answers = _answers(question, record) if isinstance(record.get("context"), str) else []
            yield RawQuestion(raw.position, {**raw.fields, "answers": answers})
        except RecordError as fault:
            yield RecordError(f"{raw.label}, {fault.where}".removesuffix(", "), fault.message)


def _answers(question: Mapping[str, Any], record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Distinct detected spans, in order. Raises RecordError for an answer without a matching span."""
    detected = require_field(question, "detected_answers", list)
    if not detected and as_flag(question.get("is_impossible")) is not True:
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
    """Context spans that match the answer, ends exclusive; token spans if a character span does not match."""
    if not isinstance(answer, dict):
        raise RecordError(where, wrong_type(answer, dict))
    text, context = require_field(answer, "text", str, f"{where}."), record["context"]
    char_spans = _pairs(answer, "char_spans", where)
    spans = [(first, last + 1) for first, last in char_spans if _matches(context, first, last + 1, text)]
    if not spans or len(spans) < len(char_spans):
        by_token = [_characters(pair, record) for pair in _pairs(answer, "token_spans", where)]
        spans += [(start, end) for start, end in by_token if _matches(context, start, end, text)]
    if not spans:
        fault = "is missing"
        if char_spans:
            first, last = char_spans[0]
            fault = f"{[first, last]} holds {clip(context[max(0, first) : max(0, last + 1)])}"
        remedy = "correct the spans (both ends are inclusive) or the text"
        raise RecordError(f"{where}.char_spans", f"{fault}, and no span holds {clip(text)}; {remedy}")
    return spans


def _pairs(answer: Mapping[str, Any], field: str, where: str) -> list[Span]:
    """Spans as given in the file, ends inclusive; empty if the field is missing."""
    pairs = require_field(answer, field, list, f"{where}.") if answer.get(field) is not None else []
    if any(not isinstance(pair, list) or [type(end) for end in pair] != [int, int] for pair in pairs):
        raise RecordError(f"{where}.{field}", f"is {clip(pairs)}; write [[first, last], ...] with integers")
    return [(first, last) for first, last in pairs]


def _characters(pair: Span, record: Mapping[str, Any]) -> Span:
    """Character span of a token span, end exclusive; (0, 0) for tokens out of range."""
    tokens, (first, last) = require_field(record, "context_tokens", list), pair
    if not 0 <= first <= last < len(tokens):
        return 0, 0
    ends = [tokens[first], tokens[last]]
    if any(not isinstance(token, list) or [type(part) for part in token] != [str, int] for token in ends):
        raise RecordError("context_tokens", f"holds {clip(ends)}; write [token, offset]")
    return tokens[first][1], tokens[last][1] + len(tokens[last][0])


def _matches(context: str, start: int, end: int, text: str) -> bool:
    """Whether ``context[start:end]`` equals ``text``, up to case, Unicode form and inner white space."""
    span = context[start:end] if 0 <= start < end <= len(context) else ""
    return span == text or (span == span.strip() and _normalised(span) == _normalised(text))


def _normalised(text: str) -> list[str]:
    return unicodedata.normalize("NFC", text).casefold().split()


FORMAT = Format("mrqa:FILE", "an MRQA file", open=read_mrqa, joins=True)
