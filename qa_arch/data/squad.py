"""Reader and writer of SQuAD 1.1 and 2.0 JSON (Rajpurkar et al. 2016, 2018).

Flat records with the columns of the Hugging Face hub are read too. Text is preserved byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from qa_arch.data.formats import Format, OnError
from qa_arch.data.input_files import Lines, Paths, as_list, expand, load
from qa_arch.data.question_sets import (
    QuestionSetBuilder,
    RawQuestion,
    RecordError,
    article_label,
    clip,
    json_type,
    typed,
    wrong_type,
)
from qa_arch.errors import DataError
from qa_arch.system.garbage import gc_disabled
from qa_arch.types.text import Example, Gold, QuestionSet

_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'
_FLAT = {"context", "question"}


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
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        return _articles(value["data"])
    if isinstance(value, Lines):
        records = [(f"line {number}", record) for number, record in value]
    else:
        listed = value if isinstance(value, list) else [value]
        records = [(f"record [{index}]", record) for index, record in enumerate(listed)]
    if records and not any(_is_flat(record) for _, record in records):
        first = records[0][1]
        keys = ", ".join(clip(key, 20) for key in list(first)[:5]) if isinstance(first, dict) else ""
        kind = "" if first is value else "a list, first "
        raise DataError(
            f"{file}: holds {kind}{json_type(first)}{keys and ' with '}{keys}, not a SQuAD set; {_EXPECTED}"
        )
    return (
        RawQuestion(position, record, nested=False)
        if isinstance(record, dict)
        else RecordError(position, wrong_type(record, dict))
        for position, record in records
    )


def _is_version_two(value: Any) -> bool:
    """Whether the file states version 2 (``"v2.0"``, ``"2.0"``)."""
    version = value.get("version") if isinstance(value, dict) else None
    return isinstance(version, str) and version.lower().removeprefix("v").startswith("2")


def _is_flat(record: object) -> bool:
    return isinstance(record, dict) and "paragraphs" not in record and not _FLAT.isdisjoint(record)


def _articles(articles: list[Any]) -> Iterator[RawQuestion | RecordError]:
    for index, article in enumerate(articles):
        place = f"data[{index}]"
        if _is_flat(article):
            yield RawQuestion(place, article, nested=False)
            continue
        try:
            label = article_label(article) if isinstance(article, dict) else ""
            for number, paragraph in enumerate(_list(article, "paragraphs", label + place)):
                yield from _paragraph(article, paragraph, f"{place}.paragraphs[{number}]")
        except RecordError as fault:
            yield fault


def _paragraph(article: dict[str, Any], paragraph: Any, place: str) -> Iterator[RawQuestion | RecordError]:
    label = article_label(article)
    try:
        qas = _list(paragraph, "qas", label + place)
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
            yield RecordError(label + position, wrong_type(qa, dict))


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
    return qa


def _plain(golds: tuple[Gold, ...]) -> list[dict[str, Any]]:
    return [{"text": gold.text, "answer_start": gold.start} for gold in golds]


FORMAT = Format("SQuAD JSON (files, folders, globs)", "a file", open=read, joins=True)
"""The format of sources without a scheme."""
