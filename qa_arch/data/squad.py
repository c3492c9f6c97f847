"""Read and write SQuAD 1.1 and 2.0 JSON (Rajpurkar et al. 2016, 2018).

Also reads flat records with the columns of the Hugging Face hub, as JSON, JSON Lines or CSV. Text is
preserved byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from qa_arch.data.formats import Format, OnError, Use
from qa_arch.data.input_files import Lines, Paths, as_list, csv_rows, expand, load, read_text
from qa_arch.data.question_sets import (
    Questions,
    RawQuestion,
    RecordError,
    build,
    clip,
    require_field,
    wrong_type,
)
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, Gold, QuestionSet

_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'
_FLAT = {"context", "question"}
_CSV = ("id", "question", "context", "answers", "starts")
_VERSION_TWO = re.compile(r"v?2(\.\d){0,2}", re.IGNORECASE)
"""Not the date that some files have as their version."""


@gc_disabled()
def read(paths: Paths, *, name: str = "", on_error: OnError = "raise", use: Use = "training") -> QuestionSet:
    """Read JSON, JSON Lines or CSV files into a single question set.

    ``paths``: a file, a folder (every JSON, JSON Lines and CSV file, sorted), a glob, or a list of these.
    ``name`` defaults to the file names. Raises DataError for the first fault; with ``on_error="skip"`` faulty
    questions are listed in ``skipped``, and only faults of a whole file raise.
    """
    stems = (re.sub(r"\.(jsonl?|csv)(\.gz)?$", "", Path(path).name) for path in as_list(paths))
    return build(name or "+".join(stems), map(_read_file, expand(paths)), on_error, use)


def _read_file(path: Path) -> tuple[str, bool, Questions]:
    """(name, whether it declares version 2 (``"v2.0"``, ``"2.0"``), questions) of a file.

    Raises DataError if the file as a whole is neither SQuAD JSON nor flat records.
    """
    value = Lines(_csv_records(path)) if path.name.removesuffix(".gz").endswith(".csv") else load(path)
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        version_two = _VERSION_TWO.fullmatch(str(value.get("version")).strip()) is not None
        return str(path), version_two, _nested_questions(value["data"], not version_two)
    if isinstance(value, Lines):
        records = [(f"line {number}", record) for number, record in value]
    else:
        listed = value if isinstance(value, list) else [value]
        records = [(f"record [{index}]", record) for index, record in enumerate(listed)]
    if not any(_is_flat(record) for _, record in records) and records:
        raise DataError(f"{path}: holds {clip(records[0][1])}, not a SQuAD set; {_EXPECTED}")
    return str(path), False, [_flat_question(position, record) for position, record in records]


def _csv_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, flat record) of every row.

    ``answers`` and ``starts`` hold one value or a JSON list, and are empty for an unanswerable question. In
    other columns an empty cell is a missing field. Raises DataError.
    """
    for line, row in csv_rows(path, read_text(path), _CSV, f"the columns are {', '.join(_CSV)}"):
        answers = {"text": _parse_cell(row["answers"]), "answer_start": _parse_cell(row["starts"])}
        stated = {name: cell for name, cell in row.items() if cell or name in _CSV}
        yield line, {**stated, "answers": answers}


def _parse_cell(text: str) -> list[Any]:
    try:
        return json.loads(text) if text.startswith("[") else [text] * bool(text)
    except (ValueError, RecursionError):  # a text that begins with a bracket
        return [text]


def _is_flat(record: object) -> bool:
    return isinstance(record, dict) and "paragraphs" not in record and not _FLAT.isdisjoint(record)


def _flat_question(position: str, record: Any) -> RawQuestion | RecordError:
    if isinstance(record, dict):
        return RawQuestion(position, record)
    return RecordError(position, wrong_type(record, dict))


def _nested_questions(articles: list[Any], flagged: bool) -> Iterator[RawQuestion | RecordError]:
    """Yield the questions of SQuAD's nested JSON, and a RecordError for every malformed part.

    ``flagged``: whether unanswerable questions need the flag of version 2.0.
    """
    for index, article in enumerate(articles):
        position = f"data[{index}]"
        if _is_flat(article):
            yield RawQuestion(position, article)
            continue
        try:
            paragraphs = _require_list(article, "paragraphs", position)
        except RecordError as fault:
            yield fault
            continue
        for number, paragraph in enumerate(paragraphs):
            yield from _paragraph_questions(article, paragraph, f"{position}.paragraphs[{number}]", flagged)


def _paragraph_questions(
    article: dict[str, Any], paragraph: Any, where: str, flagged: bool
) -> Iterator[RawQuestion | RecordError]:
    try:
        qas = _require_list(paragraph, "qas", where)
    except RecordError as fault:
        yield fault
        return
    parts = (("title", article), ("context", paragraph))
    shared = {name: part[name] for name, part in parts if name in part}
    for index, qa in enumerate(qas):
        position = f"{where}.qas[{index}]"
        if isinstance(qa, dict):
            yield RawQuestion(position, {**qa, **shared}, flagged)
        else:
            yield RecordError(position, wrong_type(qa, dict))


def _require_list(value: Any, name: str, where: str) -> list[Any]:
    if not isinstance(value, dict):
        raise RecordError(where, wrong_type(value, dict))
    return require_field(value, name, list, f"{where}.")


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


FORMAT = Format("SQuAD JSON (files, folders, globs)", "a file", open=read, joins=True)
"""Format of sources without a scheme."""
