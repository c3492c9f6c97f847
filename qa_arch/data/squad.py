"""Reader and writer of SQuAD 1.1 and 2.0 JSON (Rajpurkar et al. 2016, 2018).

Flat records with the columns of the Hugging Face hub are read too. Text is preserved byte for byte; the
questions are checked in ``examples``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from qa_arch.data.examples import RawQuestion, RecordError, article_label, clip, json_type, wrong_type
from qa_arch.data.formats import Format, OnError
from qa_arch.data.input_files import Lines, Paths, as_list, expand, load
from qa_arch.data.question_sets import QuestionSetBuilder
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, Gold, QuestionSet

_FLAT = ("context", "question")
_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'


@gc_disabled()
def read(paths: Paths, *, name: str = "", on_error: OnError = "raise") -> QuestionSet:
    """Read JSON or JSON Lines files into a single question set.

    ``paths``: a file, a folder (every ``*.json``, sorted), a glob, or a list of these. ``name`` defaults to
    the names of the paths. Raises DataError for the first fault; with ``on_error="skip"`` faulty questions
    are left out and listed in ``skipped``, and only faults of a whole file raise.
    """
    builder = QuestionSetBuilder(on_error)
    for path in expand(paths):
        value = load(path)
        builder.add(str(path), _raw_questions(value, str(path)), version_two=_is_version_two(value))
    stems = (Path(path).name.removesuffix(".json").removesuffix(".jsonl") for path in as_list(paths))
    return builder.build(name or "+".join(stems))


def _raw_questions(value: Any, file: str) -> Iterator[RawQuestion | RecordError]:
    """The questions of a decoded file, nested or flat, and a ``RecordError`` for every part without any.

    Raises DataError where the file as a whole is neither SQuAD JSON nor flat records.
    """
    if isinstance(value, Lines):
        return _flat([(f"line {number}", record) for number, record in value.records], file)
    if isinstance(value, list):
        return _flat([(f"record [{index}]", record) for index, record in enumerate(value)], file)
    if isinstance(value, dict) and "data" not in value and _is_flat(value):
        return _flat([("record [0]", value)], file)
    if not isinstance(value, dict):
        raise DataError(f"{file}: holds {json_type(value)}, not a SQuAD set ({_EXPECTED})")
    if "data" not in value:
        keys = ", ".join(clip(key, 20) for key in list(value)[:5]) or "nothing"
        raise DataError(f"{file}: has no 'data', its keys are {keys}; this is no SQuAD set ({_EXPECTED})")
    if not isinstance(value["data"], list):
        raise DataError(f"{file}: 'data' is {json_type(value['data'])}, not a list of articles ({_EXPECTED})")
    return _articles(value["data"])


def _is_version_two(value: Any) -> bool:
    """Whether the file states version 2 (``"v2.0"``, ``"2.0"``)."""
    version = value.get("version") if isinstance(value, dict) else None
    return isinstance(version, str) and version.lower().removeprefix("v").startswith("2")


def _is_flat(record: object) -> bool:
    return isinstance(record, dict) and "paragraphs" not in record and any(key in record for key in _FLAT)


def _flat(records: list[tuple[str, Any]], file: str) -> Iterator[RawQuestion | RecordError]:
    if records and not any(_is_flat(record) for _, record in records):
        first = records[0][1]
        if isinstance(first, dict) and "paragraphs" in first:
            raise DataError(f'{file}: is a bare list of articles; wrap it as {{"data": [...]}}')
        raise DataError(f"{file}: is a list of other things ({json_type(first)} first); {_EXPECTED}")
    return (
        RawQuestion(position, record, nested=False)
        if isinstance(record, dict)
        else wrong_type(position, record, "object")
        for position, record in records
    )


def _articles(articles: list[Any]) -> Iterator[RawQuestion | RecordError]:
    for index, article in enumerate(articles):
        position = f"data[{index}]"
        if not isinstance(article, dict):
            yield wrong_type(position, article, "object")
        elif _is_flat(article):
            yield RawQuestion(position, article, nested=False)
        else:
            yield from _paragraphs(article, position)


def _paragraphs(article: dict[str, Any], position: str) -> Iterator[RawQuestion | RecordError]:
    title = {"title": article["title"]} if "title" in article else {}
    position += ".paragraphs"
    paragraphs = article.get("paragraphs")
    if not isinstance(paragraphs, list):
        yield wrong_type(
            article_label(article) + position, paragraphs, "list", missing="paragraphs" not in article
        )
        return
    for index, paragraph in enumerate(paragraphs):
        place = f"{position}[{index}]"
        if not isinstance(paragraph, dict):
            yield wrong_type(article_label(article) + place, paragraph, "object")
        elif not isinstance(paragraph.get("qas"), list):
            missing = "qas" not in paragraph
            yield wrong_type(f"{article_label(article)}{place}.qas", paragraph.get("qas"), "list", missing)
        else:
            context = {"context": paragraph["context"]} if "context" in paragraph else {}
            yield from _questions(paragraph["qas"], {**title, **context}, f"{place}.qas")


def _questions(qas: list[Any], shared: dict[str, Any], position: str) -> Iterator[RawQuestion | RecordError]:
    for index, qa in enumerate(qas):
        place = f"{position}[{index}]"
        if isinstance(qa, dict):
            yield RawQuestion(place, {**qa, **shared}, nested=True)
        else:
            yield wrong_type(article_label(shared) + place, qa, "object")


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
    return qa


def _plain(golds: tuple[Gold, ...]) -> list[dict[str, Any]]:
    return [{"text": gold.text, "answer_start": gold.start} for gold in golds]


FORMAT = Format("SQuAD JSON (files, folders, globs)", "a file", open=read, joins=True)
"""The format of sources without a scheme."""
