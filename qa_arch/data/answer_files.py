"""Answers of any system, in a format that is recognised by the content of the file; one function a format."""

from __future__ import annotations

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qa_arch.data.input_files import Lines, decoded, load
from qa_arch.errors import DataError
from qa_arch.metrics.prediction_files import read_null_scores, read_predictions, shown_id
from qa_arch.metrics.squad import missing_ids
from qa_arch.types.text import Example, QuestionSet

UNANSWERABLE = "unanswerable"
"""The answer that the task squadv2 of lm-evaluation-harness asks for where there is none."""
FORMATS = (
    "official predictions, JSON lines of qa-arch predict, samples of lm-evaluation-harness, ExtractedAnswers"
    " of haystack, or CSV with the columns id and answer"
)
Row = tuple[str, str, str, float | None]
"""Place of the record for messages (``line 3``), question id, answer ("" for none), null odds if known."""


@dataclass(frozen=True)
class Answers:
    """An answer to every question of a set, in its order."""

    form: str
    """The format of the file, in words."""
    texts: Mapping[str, str]
    null_odds: Mapping[str, float] | None
    """Question id -> null odds or no-answer probability; None where the system gives none."""
    missing: int
    """Questions that the file leaves out: their answers are empty."""
    others: int
    """Answers in the file to questions of other sets, which are left out."""


def read_answers(
    path: Path, questions: QuestionSet, *, na_prob: str | None = None, empty: bool = False
) -> Answers:
    """The answers in ``path`` to ``questions``; ``na_prob`` is an official file of no-answer probabilities.

    The file may answer further questions. With ``empty``, questions that it leaves out have an empty answer,
    and it may then answer no others: it could be the file of another set. Raises DataError, which names file,
    record, field and remedy, also for questions that are left out.
    """
    form, rows = _recognised(path, questions)
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for place, id_, text, null_odds in rows:
        if id_ in texts:
            raise DataError(f"{path}: {place}: {shown_id(id_)} is answered twice; keep one answer")
        texts[id_] = text
        odds |= {} if null_odds is None else {id_: null_odds}
    if na_prob is not None:
        odds = read_null_scores(na_prob).values
        if lacking := [id_ for id_ in texts if id_ not in odds]:
            raise DataError(f"{na_prob}: {_few(lacking)} with an answer and no number; give one for each")
    ids = dict.fromkeys(example.id for example in questions.examples)
    if (unknown := [id_ for id_ in {**texts, **odds} if id_ not in ids]) and empty:
        raise DataError(
            f"{path}: {_few(unknown)} not in the data; give with --data the set that was answered"
        )
    if (missing := missing_ids(questions, texts)) and not empty:
        raise DataError(f"{path}: {_few(missing)} without an answer; complete it, or give --missing empty")
    known = {id_: float(odds.get(id_, math.inf)) for id_ in ids} if len(odds) >= len(texts) else None
    return Answers(form, {id_: texts.get(id_, "") for id_ in ids}, known, len(missing), len(unknown))


def _few(ids: Collection[str]) -> str:
    """How many ids, and the first of them."""
    shown = ", ".join(map(shown_id, islice(ids, 5))) + ", ..." * (len(ids) > 5)
    return f"{len(ids)} id{'s' * (len(ids) > 1)} ({shown})"


def _recognised(path: Path, questions: QuestionSet) -> tuple[str, Iterable[Row]]:
    """The format of a file, in words, and its rows."""
    text = decoded(path)
    if text.lstrip()[:1] not in ("{", "["):
        return "CSV", _of_csv(path, text)
    content = load(path)
    if isinstance(content, dict) and not content.keys() & {"doc", "id", "answers"}:
        if all(isinstance(value, list) for value in content.values()):
            return "haystack answers", _of_haystack(path, content)
        return "official predictions", _of_official(path)
    noun = "line" if isinstance(content, Lines) else "record"
    if not isinstance(content, Lines):
        content = enumerate(content if isinstance(content, list) else [content], 1)
    records = [(f"{noun} {number}", record) for number, record in content]
    first = records[0][1] if records else None
    keys = first.keys() if isinstance(first, dict) else {"answers"} if isinstance(first, list) else set()
    if "doc" in keys:
        form = f'lm-evaluation-harness samples, "{UNANSWERABLE}" read as no answer'
        return form, _of_harness(path, records)
    if "id" in keys:
        return "JSON lines of qa-arch predict", _of_lines(path, records)
    if keys & {"answers", "query", "init_parameters"}:
        return "haystack answers", _of_haystack(path, _by_question(path, records, questions))
    raise DataError(f"{path}: is in no known format; give {FORMATS}")


def _field(path: Path, place: str, record: Any, name: str, want: type | tuple[type, ...] = str) -> Any:
    """A field of a record, within others behind dots; DataError where it is missing or of another type."""
    for key in name.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    if record is None or not isinstance(record, want):
        wrong = "is missing" if record is None else "is of the wrong type"
        raise DataError(f"{path}: {place}: {name}: {wrong}; correct it, or leave the record out")
    return record


def _number(
    path: Path,
    place: str,
    name: str,
    value: Any,
    read: Callable[[Any], float] = float,
    kind: str = "number",
) -> float:
    """What ``read`` makes of the value of a field; DataError where it is NaN, too large or of no ``kind``."""
    try:
        if not math.isnan(number := read(value)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{path}: {place}: {name}: {str(value)[:20]!r} is no {kind}; correct it")


def _of_official(path: Path) -> Iterator[Row]:
    file = read_predictions(path)
    for id_ in (*file.duplicates, *file.values):  # a duplicate comes twice, and is refused
        yield "object", id_, file.values[id_], None


def _of_csv(path: Path, text: str) -> Iterator[Row]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if not {"id", "answer"} <= set(reader.fieldnames or ()):
        raise DataError(f"{path}: is no JSON, and no CSV with these columns; give {FORMATS}")
    try:
        for record in reader:
            place = f"line {reader.line_num}"
            yield place, _field(path, place, record, "id"), _field(path, place, record, "answer"), None
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.reader.line_num}: {error}; correct that line") from None


def _of_lines(path: Path, records: Iterable[tuple[str, Any]]) -> Iterator[Row]:
    """The lines of ``qa-arch predict --out FILE.jsonl``; null odds of null are infinite."""
    for place, record in records:
        id_, text = _field(path, place, record, "id", (str, int)), _field(path, place, record, "text")
        odds = math.inf if "null_odds" in record else None
        if record.get("null_odds") is not None:
            given = _field(path, place, record, "null_odds", (int, float))
            odds = _number(path, place, "null_odds", given)
        yield place, str(id_), text, odds


def _of_harness(path: Path, records: Iterable[tuple[str, Any]]) -> Iterator[Row]:
    """Samples of the tasks squadv2 and squad_completion (``--log_samples``): an answer, and of squadv2 the
    log-probability of "unanswerable", both within lists and written as texts."""
    for place, record in records:
        doc = _field(path, place, record, "doc", dict)
        id_ = _field(path, place, record, "doc.id" if "id" in doc else "doc.doc_id")
        name = "filtered_resps" if "filtered_resps" in record else "resps"
        values = [*map(_innermost, _field(path, place, record, name, list))]
        text = _field(path, place, {name: values[0] if values else None}, name).strip()
        odds = None
        if len(values) > 1:
            odds = _number(path, place, name, values[1], lambda v: math.exp(float(v)), "log-probability")
        yield place, id_, "" if text.lower() == UNANSWERABLE else text, odds


def _innermost(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value


def _of_haystack(path: Path, answers: Mapping[str, list[Any]]) -> Iterator[Row]:
    """By question id; the best answer counts. One without ``data`` is "no answer", with its probability."""
    for id_, own in answers.items():
        own = [*map(_unwrapped, own)]
        fields = [_field(path, id_, answer, "score", (int, float)) for answer in own]
        scores = [_number(path, id_, "score", score) for score in fields]
        texts = ["" if answer.get("data") is None else _field(path, id_, answer, "data") for answer in own]
        best = texts[scores.index(max(scores))] if scores else ""
        yield id_, id_, best, scores[texts.index("")] if "" in texts else None


def _by_question(
    path: Path, records: Iterable[tuple[str, Any]], questions: QuestionSet
) -> dict[str, list[Any]]:
    """Lists of answers by the id of the question with the same text; of several, of that whose passage holds
    the answer's document."""
    asking: dict[str, list[Example]] = defaultdict(list)
    for example in questions.examples:
        asking[example.question].append(example)
    groups: dict[str, list[Any]] = defaultdict(list)
    for place, record in records:
        answers = record.get("answers", [record]) if isinstance(record, dict) else record
        for answer in answers if isinstance(answers, list) else ():
            query = _field(path, place, own := _unwrapped(answer), "query")
            passage = own["document"].get("content") if isinstance(own.get("document"), dict) else None
            meant = [example.id for example in asking[query] if (passage or "") in example.context]
            if len(meant) != 1:
                wrong = f"{len(meant)} questions of the data are {query!r}"
                raise DataError(f'{path}: {place}: query: {wrong}; write {{"question id": [answers]}}')
            groups[meant[0]].append(answer)
    return groups


def _unwrapped(answer: Any) -> Any:
    """The fields of an answer, which ``to_dict`` puts into ``init_parameters``."""
    return answer.get("init_parameters", answer) if isinstance(answer, dict) else answer
