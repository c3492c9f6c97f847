"""From decoded JSON to raw questions: SQuAD's nested articles and the hub's flat records.

Nothing is checked here but the skeleton; ``examples`` checks each question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from qa_arch.data.input_files import Lines
from qa_arch.errors import DataError

_FLAT = ("context", "question")


class RecordError(Exception):
    """Something wrong with one record: ``where`` it is, and a message that says what to do."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(where, message)
        self.where = where
        self.message = message


@dataclass(frozen=True, slots=True)
class Raw:
    """One question as the data has it: its own fields and its article's, all unchecked."""

    position: str
    fields: Mapping[str, Any]
    nested: bool
    """True in SQuAD's own shape, where only ``is_impossible`` makes a question unanswerable;
    in the flat shape an empty list of answers does."""
    line: int | None = None
    """Line of the file, where a format wants it named beside the question's id."""

    @property
    def label(self) -> str:
        """Article and question id, or the position in the file where there is no id."""
        identity = self.fields.get("id")
        named = isinstance(identity, str) and identity.strip()
        if self.line is not None:
            return f"line {self.line}, question {clip(identity)}" if named else self.position
        question = f"question {clip(identity)}" if named else self.position
        return f"{_article(self.fields)}{question}"


def clip(text: object, width: int = 60) -> str:
    """``repr`` of a text, shortened: invisible and broken characters show, lines stay one line."""
    return repr(text[:width] + "…" if isinstance(text, str) and len(text) > width else text)


def json_type(value: object) -> str:
    """The JSON type of ``value`` as a reader of the file calls it."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null" if value is None else type(value).__name__)


def raw_questions(value: Any, file: str) -> Iterator[Raw | RecordError]:
    """Every question of a decoded file, and a ``RecordError`` for every part that holds none.

    Raises DataError where the file as a whole has neither shape.
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


def says_version_two(value: Any) -> bool:
    """Whether the file's own ``version`` field says SQuAD 2.0 (``"v2.0"``, ``"2.0"``)."""
    version = value.get("version") if isinstance(value, dict) else None
    return isinstance(version, str) and version.lower().removeprefix("v").startswith("2")


_EXPECTED = 'expected {"data": [{"title", "paragraphs"}]} or records of id, title, context, question, answers'


def _is_flat(record: object) -> bool:
    return isinstance(record, dict) and "paragraphs" not in record and any(key in record for key in _FLAT)


def _flat(records: list[tuple[str, Any]], file: str) -> Iterator[Raw | RecordError]:
    if records and not any(_is_flat(record) for _, record in records):
        first = records[0][1]
        if isinstance(first, dict) and "paragraphs" in first:
            raise DataError(f'{file}: is a bare list of articles; wrap it as {{"data": [...]}}')
        raise DataError(f"{file}: is a list of something else ({json_type(first)} first); {_EXPECTED}")
    return (
        Raw(position, record, nested=False) if isinstance(record, dict) else _odd(position, record, "object")
        for position, record in records
    )


def _articles(articles: list[Any]) -> Iterator[Raw | RecordError]:
    for index, article in enumerate(articles):
        position = f"data[{index}]"
        if not isinstance(article, dict):
            yield _odd(position, article, "object")
        elif _is_flat(article):
            yield Raw(position, article, nested=False)
        else:
            yield from _paragraphs(article, position)


def _paragraphs(article: dict[str, Any], position: str) -> Iterator[Raw | RecordError]:
    title = {"title": article["title"]} if "title" in article else {}
    position += ".paragraphs"
    paragraphs = article.get("paragraphs")
    if not isinstance(paragraphs, list):
        yield _odd(_article(article) + position, paragraphs, "list", missing="paragraphs" not in article)
        return
    for index, paragraph in enumerate(paragraphs):
        place = f"{position}[{index}]"
        if not isinstance(paragraph, dict):
            yield _odd(_article(article) + place, paragraph, "object")
        elif not isinstance(paragraph.get("qas"), list):
            missing = "qas" not in paragraph
            yield _odd(f"{_article(article)}{place}.qas", paragraph.get("qas"), "list", missing)
        else:
            context = {"context": paragraph["context"]} if "context" in paragraph else {}
            yield from _questions(paragraph["qas"], {**title, **context}, f"{place}.qas")


def _questions(qas: list[Any], shared: dict[str, Any], position: str) -> Iterator[Raw | RecordError]:
    for index, qa in enumerate(qas):
        place = f"{position}[{index}]"
        if isinstance(qa, dict):
            yield Raw(place, {**qa, **shared}, nested=True)
        else:
            yield _odd(_article(shared) + place, qa, "object")


def _article(fields: Mapping[str, Any]) -> str:
    title = fields.get("title")
    return f"article {clip(title)}, " if isinstance(title, str) and title.strip() else ""


def _odd(where: str, value: object, wanted: str, missing: bool = False) -> RecordError:
    article = "an" if wanted == "object" else "a"
    state = "is missing" if missing else f"is {json_type(value)}"
    return RecordError(where, f"{state}; it must be {article} {wanted}: mend or remove it")
