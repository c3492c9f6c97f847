"""Reader and writer of SQuAD 1.1 and 2.0 JSON (Rajpurkar et al. 2016, 2018).

Flat records with the columns of the Hugging Face hub are read too, as JSON, JSON Lines or CSV. Text is
preserved byte for byte.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from qa_arch.data.formats import Format, OnError
from qa_arch.data.input_files import Lines, Paths, as_list, csv_rows, expand, load
from qa_arch.data.question_sets import (
    Questions,
    RawQuestion,
    RecordError,
    build,
    clip,
    passage_title,
    typed,
    wrong_type,
)
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, Gold, QuestionSet

_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'
_FLAT = {"context", "question"}
_CSV = ("id", "question", "context", "answers", "starts")


@gc_disabled()
def read(paths: Paths, *, name: str = "", on_error: OnError = "raise") -> QuestionSet:
    """Read JSON, JSON Lines or CSV files into a single question set.

    ``paths``: a file, a folder (every ``*.json``, sorted), a glob, or a list of these. ``name`` defaults to
    the names of the paths. Raises DataError for the first fault; with ``on_error="skip"`` faulty questions
    are left out and listed in ``skipped``, and only faults of a whole file raise.
    """
    stems = (re.sub(r"\.(jsonl?|csv)$", "", Path(path).name) for path in as_list(paths))
    return build(name or "+".join(stems), map(_file, expand(paths)), on_error)


def _file(path: Path) -> tuple[str, bool, Questions]:
    """The questions of a file, and whether it states version 2 (``"v2.0"``, ``"2.0"``).

    Raises DataError where the file as a whole is neither SQuAD JSON nor flat records.
    """
    value = Lines(_csv(path)) if path.suffix == ".csv" else load(path)
    version = str(value.get("version")) if isinstance(value, dict) else ""
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return str(path), version.lower().startswith(("2", "v2")), _articles(value["data"])
    if isinstance(value, Lines):
        records = [(f"line {number}", record) for number, record in value]
    else:
        listed = value if isinstance(value, list) else [value]
        records = [(f"record [{index}]", record) for index, record in enumerate(listed)]
    if not any(_is_flat(record) for _, record in records) and records:
        raise DataError(f"{path}: holds {clip(records[0][1])}, not a SQuAD set; {_EXPECTED}")
    return str(path), False, [_flat(position, record) for position, record in records]


def _csv(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line, flat record) of every row.

    ``answers`` and ``starts`` hold one value or a JSON list, and nothing for an unanswerable question. Where
    there is no column ``title``, each passage is an article of its own. Raises DataError.
    """
    for line, row in csv_rows(path, _CSV, f"the columns are {', '.join(_CSV)}"):
        try:
            starts = [int(start) for start in _cell(row["starts"])]
            answers = {"text": _cell(row["answers"]), "answer_start": starts}
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise DataError(f"{path}: line {line}: {error}; correct that line") from None
        title = row.get("title") or passage_title(row["context"])
        yield line, {**row, "title": title, "answers": answers}


def _cell(text: str) -> list[Any]:
    return json.loads(text) if text.startswith("[") else [text] * bool(text)


def _is_flat(record: object) -> bool:
    return isinstance(record, dict) and "paragraphs" not in record and not _FLAT.isdisjoint(record)


def _flat(position: str, record: Any) -> RawQuestion | RecordError:
    if isinstance(record, dict):
        return RawQuestion(position, record)
    return RecordError(position, wrong_type(record, dict))


def _articles(articles: list[Any]) -> Iterator[RawQuestion | RecordError]:
    """The questions of SQuAD's nested JSON, and a RecordError for every part without any."""
    for index, article in enumerate(articles):
        place = f"data[{index}]"
        if _is_flat(article):
            yield RawQuestion(place, article)
            continue
        try:
            paragraphs = _list(article, "paragraphs", place)
        except RecordError as fault:
            yield fault
            continue
        for number, paragraph in enumerate(paragraphs):
            yield from _paragraph(article, paragraph, f"{place}.paragraphs[{number}]")


def _paragraph(article: dict[str, Any], paragraph: Any, place: str) -> Iterator[RawQuestion | RecordError]:
    try:
        qas = _list(paragraph, "qas", place)
    except RecordError as fault:
        yield fault
        return
    parts = (("title", article), ("context", paragraph))
    shared = {name: part[name] for name, part in parts if name in part}
    for index, qa in enumerate(qas):
        position = f"{place}.qas[{index}]"
        if isinstance(qa, dict):
            yield RawQuestion(position, {**qa, **shared}, nested=True)
        else:
            yield RecordError(position, wrong_type(qa, dict))


def _list(holder: Any, name: str, place: str) -> list[Any]:
    if not isinstance(holder, dict):
        raise RecordError(place, wrong_type(holder, dict))
    return typed(holder, name, list, f"{place}.")


def write(questions: QuestionSet) -> dict[str, Any]:
    """Official SQuAD JSON of ``questions`` in the version of their protocol; ``read`` restores the same set.

    Consecutive questions with the same title and context share an article and a paragraph.
    """
    two = questions.protocol == "2.0"
    data = []
    for title, article in groupby(questions.examples, key=lambda example: example.title):
        passages = groupby(article, key=lambda example: example.context)
        paragraphs = [
            {"context": context, "qas": [_qa(example, two) for example in group]}
            for context, group in passages
        ]
        data.append({"title": title, "paragraphs": paragraphs})
    return {"version": "v2.0" if two else "1.1", "data": data}


def _qa(example: Example, two: bool) -> dict[str, Any]:
    qa: dict[str, Any] = {"id": example.id, "question": example.question, "answers": _plain(example.answers)}
    if two:
        qa["is_impossible"] = not example.answerable
    if example.plausible:
        qa["plausible_answers"] = _plain(example.plausible)
    if example.kind is not None:
        qa["kind"] = example.kind
    if example.original is not None:
        qa["original_id"] = example.original
    return qa


def _plain(golds: tuple[Gold, ...]) -> list[dict[str, Any]]:
    return [{"text": gold.text, "answer_start": gold.start} for gold in golds]


FORMAT = Format("SQuAD JSON (files, folders, globs)", "a file", open=read, joins=True)
"""The format of sources without a scheme."""
