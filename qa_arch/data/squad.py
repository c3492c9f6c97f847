"""Read and write SQuAD 1.1 and 2.0 JSON (Rajpurkar et al. 2016, 2018), and read MRQA's JSON Lines.

``mrqa:FILE``, plain or gzip, is of the MRQA 2019 shared task (Fisch et al. 2019). Its first line is a header
with the name of the data set; every other line has a passage and its questions. Answers are detected spans of
the passage with inclusive ends; every span becomes a gold answer with the text of the passage. Passages keep
their markers (``[TLE]``, ``[DOC]``, ``[PAR]``). The format has no articles: the title of a question is the
name of the data set and a hash of the passage, so splits by article keep passages whole, but may separate
passages of the same Wikipedia article.
"""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

from qa_arch.data import files
from qa_arch.data.files import TABLES, Format, Lines, OnError, Paths, Use
from qa_arch.data.question_sets import (
    Questions,
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
from qa_arch.process import gc_disabled
from qa_arch.types import Example, Gold, QuestionSet

Span = tuple[int, int]
_FIELDS = {"id": "id", "qid": "id", "question": "question", "is_impossible": "is_impossible"}
"""MRQA field -> field of a flat record; false fields are dropped."""


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
        raw = RawQuestion(f"{line}, qas[{index}]", {})  # names a fault before its fields are known
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


_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'
_FLAT = {"context", "question"}
_CSV = ("id", "question", "context", "answers")
_VERSION_TWO = re.compile(r"v?2(\.\d){0,2}", re.IGNORECASE)
"""Not the date that some files have as their version."""
Record = tuple[str, Any]
"""(position in the file for messages, value)."""


@gc_disabled()
def read(
    paths: Paths,
    *,
    name: str = "",
    on_error: OnError = "raise",
    use: Use = "training",
    mrqa: bool = False,
) -> QuestionSet:
    """Read JSON, JSON Lines, CSV, Parquet or Arrow files into a single question set.

    ``paths``: a file, a folder (of ``save_to_disk``, or every such file but Arrow, sorted), a glob, or a list
    of these. ``name`` defaults to the file names. Raises DataError for the first fault; with
    ``on_error="skip"`` faulty questions are listed in ``skipped``, and only faults of a whole file raise.
    """
    questions = (_read_file(path, use, mrqa) for path in files.expand(paths))
    ending = re.compile(r"\.(jsonl?|ndjson|[ct]sv|parquet|arrow)(\.gz)?$")
    stems = "+".join(ending.sub("", Path(path).name) for path in files.as_list(paths))
    return build(name or stems, questions, on_error, use)


def _read_file(path: Path, use: Use, mrqa: bool) -> tuple[str, bool, Questions]:
    """``questions_in`` a file."""
    if mrqa:
        value: Any = files.json_lines(path, files.read_text(path))
    elif path.suffix in TABLES:
        value = files.table_rows(path)
    else:
        is_table = path.name.removesuffix(".gz").endswith((".csv", ".tsv"))
        value = Lines(_csv_records(path, use)) if is_table else files.load(path)
    first = value[0][1] if isinstance(value, Lines) and value else None
    # MRQA's first line, whatever the file is called.
    if mrqa or (isinstance(first, dict) and first.keys() == {"header"}):
        return str(path), False, mrqa_questions(path, value, use)
    return questions_in(value, str(path))


def questions_in(value: Any, place: str) -> tuple[str, bool, Questions]:
    """(place, whether it declares version 2 (``"v2.0"``, ``"2.0"``), questions) of the JSON in ``place``.

    Raises DataError if no record has one of ``_LAYOUTS``, or one has a layout that is known, but not read.
    """
    records, is_squad = _records(value), isinstance(value, dict) and isinstance(value.get("data"), list)
    version_two = is_squad and _VERSION_TWO.fullmatch(str(value.get("version")).strip()) is not None
    layouts = [_layout(record) for _, record in records]
    for layout in filter(None, layouts):
        if layout.refused:
            raise DataError(f"{place}: is {layout.refused}, which is not read; {_EXPECTED}")
    if records and not any(layouts) and not is_squad:
        raise DataError(f"{place}: holds {clip(records[0][1])}, not a SQuAD set; {_EXPECTED}")
    other = _ARTICLE if is_squad else _RECORD  # as which a faulty record is reported
    questions = (
        (layout or other).questions(position, record, not version_two)
        for (position, record), layout in zip(records, layouts, strict=True)
    )
    return place, version_two, chain.from_iterable(questions)


def _records(value: Any) -> list[Record]:
    """Records of a file: lines, items of a list or of SQuAD's ``data``, or a table as pandas writes it."""
    if isinstance(value, Lines):
        return [(f"line {number}", record) for number, record in value]
    if isinstance(value, dict):
        data, names = value.get("data"), value.get("columns")
        if isinstance(data, list):
            if isinstance(names, list) and all(isinstance(row, list) for row in data):
                data = [dict(zip(map(str, names), row, strict=False)) for row in data]
            return [(f"data[{index}]", record) for index, record in enumerate(data)]
        # A table by column, as DataFrame.to_dict or to_json gives it: turned into rows first.
        if not _FLAT.isdisjoint(value) and all(isinstance(column, (dict, list)) for column in value.values()):
            table = {key: dict(enumerate(v)) if isinstance(v, list) else v for key, v in value.items()}
            keys = dict.fromkeys(key for column in table.values() for key in column)
            value = {key: {name: column.get(key) for name, column in table.items()} for key in keys}
        if value and all(isinstance(row, dict) for row in value.values()):
            return [(f"record [{key}]", record) for key, record in value.items()]
    listed = value if isinstance(value, list) else [value]
    return [(f"record [{index}]", record) for index, record in enumerate(listed)]


def _csv_records(path: Path, use: Use) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, flat record) of every row.

    ``answers`` and ``starts`` (or ``answer_start``) hold one value or a JSON list, and are empty for an
    unanswerable question. In other columns an empty cell is a missing field. Raises DataError.
    """
    needed = [name for name in _CSV if name != "answers" or use != "answering"]
    for line, row in files.csv_rows(
        path, files.read_text(path), needed, f"the columns are {', '.join(_CSV)}, starts"
    ):
        record: dict[str, Any] = {name: cell for name, cell in row.items() if cell or name in _CSV}
        # A cell may be a plain text, a JSON list, a hub set's dictionary, or any of them as Python prints it.
        if "answers" in row:
            starts = _parse_cell(row.get("starts") or row.get("answer_start", ""))
            texts = _parse_cell(row["answers"])
            is_column = isinstance(texts, list)  # else texts and offsets in one cell, or what cannot be read
            record["answers"] = {"text": texts, "answer_start": starts or None} if is_column else texts
        yield line, record


def _parse_cell(text: str) -> Any:
    """The list of a cell, in JSON or as Python prints it, or with its text; the dictionary of a hub set.

    The text itself if it looks like one of these and is none, such as a printed NumPy array.
    """
    if not text.startswith(("[", "{'text'")):
        return [text] * bool(text)
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    with suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = ast.literal_eval(text)
        if repr(value) == text:  # Python would join the texts of "['a' 'b']"
            return value
    return text if re.match(r"\[?['\"{]", text) else [text]


def _article_questions(where: str, article: Any, flagged: bool) -> Iterator[RawQuestion | RecordError]:
    """Yield the questions of an article of SQuAD, and a RecordError for every malformed part.

    ``flagged``: whether unanswerable questions need the flag of version 2.0.
    """
    try:
        paragraphs = require_field(article, "paragraphs", list, f"{where}.")
    except RecordError as fault:
        yield fault
        return
    title = {"title": article["title"]} if "title" in article else {}
    for number, paragraph in enumerate(paragraphs):
        part = {**paragraph, **title} if isinstance(paragraph, dict) else paragraph
        yield from _paragraph_questions(f"{where}.paragraphs[{number}]", part, flagged)


def _paragraph_questions(where: str, paragraph: Any, flagged: bool) -> Iterator[RawQuestion | RecordError]:
    try:
        qas = require_field(paragraph, "qas", list, f"{where}.")
    except RecordError as fault:
        yield fault
        return
    shared = {name: paragraph[name] for name in ("title", "context") if name in paragraph}
    for index, qa in enumerate(qas):
        position = f"{where}.qas[{index}]"
        if isinstance(qa, dict):
            yield RawQuestion(position, {**qa, **shared}, flagged)
        else:
            yield RecordError(position, wrong_type(qa, dict))


def _flat_question(where: str, record: Any, flagged: bool) -> Iterator[RawQuestion | RecordError]:
    yield (
        RawQuestion(where, record)
        if isinstance(record, dict)
        else RecordError(where, wrong_type(record, dict))
    )


class Layout(NamedTuple):
    """How the records of a file hold questions."""

    keys: set[str]
    """A record with these keys has the layout, unless an earlier one fits."""
    questions: Callable[[str, Any, bool], Iterator[RawQuestion | RecordError]] = _flat_question
    refused: str = ""
    """What a file is that cannot be read without knowing more than it says."""


_ARTICLE, _RECORD = Layout({"paragraphs"}, _article_questions), Layout({"question"})
_LAYOUTS = (
    Layout({"_input_hash"}, refused="a Prodigy export"),
    Layout({"annotations", "data"}, refused="a Label Studio export"),
    Layout({"annotation_id", "annotator"}, refused="a Label Studio export (JSON-MIN)"),
    Layout({"context_text"}, refused="CMRC 2018's own layout (its folder squad-style-data has SQuAD's)"),
    _ARTICLE,
    Layout({"qas", "context_tokens"}, refused="an MRQA file without its first line, the header"),
    Layout({"qas"}, _paragraph_questions),
    _RECORD,
    Layout({"context"}),
)


def _layout(record: Any) -> Layout | None:
    keys = record.keys() if isinstance(record, dict) else {}.keys()
    return next((layout for layout in _LAYOUTS if keys >= layout.keys), None)


def write(questions: QuestionSet) -> dict[str, Any]:
    """Convert to official SQuAD JSON in the version of the protocol; ``read`` restores the same set.

    Consecutive questions with the same title and context share an article and a paragraph.
    """
    version_two = questions.protocol == "2.0"
    data = []
    for title, article in groupby(questions.examples, key=lambda example: example.title):
        passages = groupby(article, key=lambda example: example.context)
        paragraphs = [
            {"context": context, "qas": [_question_json(example, version_two) for example in group]}
            for context, group in passages
        ]
        data.append({"title": title, "paragraphs": paragraphs})
    return {"version": "v2.0" if version_two else "1.1", "data": data}


def _question_json(example: Example, version_two: bool) -> dict[str, Any]:
    answers = _answers_json(example.answers)
    qa: dict[str, Any] = {"id": example.id, "question": example.question, "answers": answers}
    if version_two:
        qa["is_impossible"] = not example.answerable
    if example.plausible:
        qa["plausible_answers"] = _answers_json(example.plausible)
    if example.kind is not None:
        qa["kind"] = example.kind
    if example.original is not None:
        qa["original_id"] = example.original
    return qa


def _answers_json(golds: tuple[Gold, ...]) -> list[dict[str, Any]]:
    return [{"text": gold.text, "answer_start": gold.start} for gold in golds]


FORMAT = Format(
    "FILE (JSON, JSON Lines, CSV or Parquet), FOLDER (of files, or from save_to_disk), 'GLOB'",
    "a file",
    open=read,
    joins=True,
)
"""Format of sources without a scheme."""
MRQA = Format("mrqa:FILE", "an MRQA file", open=partial(read, mrqa=True), joins=True)
