"""Read official prediction, n-best and no-answer-probability files, and the answers of any system, whose
format is detected from the content, one function per format."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qa_arch.data.files import Lines, csv_rows, load, read_text
from qa_arch.data.question_sets import clip, json_type
from qa_arch.errors import DataError
from qa_arch.files import loads
from qa_arch.metrics.squad import missing_ids
from qa_arch.terminal import counted
from qa_arch.types import QuestionSet

# Official files -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PredictionFile:
    """The contents of an official file: one value per question id."""

    path: Path
    values: dict[str, Any]
    duplicates: tuple[str, ...]
    """Ids that occur more than once; the last value counts, as in the official script."""


def read_predictions(path: str | Path) -> PredictionFile:
    """Question id -> answer text ("" = no answer).

    Raises DataError naming the file and the id of an invalid value.
    """
    file = _read(path, 'an object {"question id": "answer text"}; qa-arch adopt reads other formats')
    return _checked(file, lambda value: type(value) is str, "prediction", 'a string ("" = no answer)')


def read_null_scores(path: str | Path) -> PredictionFile:
    """Question id -> no-answer probability or null odds. Raises DataError as above, also for NaN."""

    def is_number(value: Any) -> bool:
        if type(value) is int:
            return abs(value) <= sys.float_info.max  # a larger one is no float
        return type(value) is float and value == value  # not NaN

    file = _read(path, 'an object {"question id": number}')
    return _checked(file, is_number, "no-answer score", "a number")


def read_types(path: str | Path) -> dict[str, str]:
    """Question id -> class (``MAIN:sub``), as ``qa-arch types`` writes it. Raises DataError as above."""
    file = _read(path, 'an object {"question id": "class"}')
    if not file.values:
        raise DataError(f"{path}: holds no classes; write it with qa-arch types")
    return _checked(file, lambda value: type(value) is str, "class", "a string such as NUM:date").values


def read_nbest(path: str | Path) -> dict[str, dict[str, float]]:
    """Question id -> candidate text -> probability, of an official n-best file. Raises DataError as above."""
    candidates: dict[str, dict[str, float]] = {}
    for id_, entries in _read(path, 'an object {"question id": [candidates]}').values.items():
        if not isinstance(entries, list) or not all(map(_is_candidate, entries)):
            raise DataError(
                f'{path}: {shown_id(id_)}: a candidate has no "text" and "probability" (0 to 1); give the'
                " nbest_predictions.json that belongs to the predictions"
            )
        # Among equal texts the first and most probable candidate counts.
        candidates[id_] = {entry["text"]: float(entry["probability"]) for entry in reversed(entries)}
    return candidates


def _is_candidate(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        return False
    probability = entry.get("probability")
    if isinstance(probability, bool) or not isinstance(probability, float | int):
        return False
    return 0 <= probability <= 1


def _checked(file: PredictionFile, valid: Callable[[Any], bool], what: str, wanted: str) -> PredictionFile:
    for id_, value in file.values.items():
        if not valid(value):
            given = f"{json_type(value)} ({clip(value, 24)})"
            raise DataError(f"{file.path}: {shown_id(id_)}: the {what} is {given}; give {wanted}")
    return file


def _read(path: str | Path, expected: str) -> PredictionFile:
    duplicates: list[str] = []

    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            duplicates.extend(key for key, count in counts.items() if count > 1)
        return values

    text = read_text(Path(path))
    try:
        content = loads(text, object_pairs_hook=build)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON ({error}); expected {expected}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds {json_type(content)}; expected {expected}")
    return PredictionFile(Path(path), content, tuple(duplicates))


def shown_id(id_: str) -> str:
    """The id itself, or its ``repr`` if it is blank or not printable."""
    return id_ if id_.isprintable() and id_.strip() else repr(id_)


# Answers of any system ----------------------------------------------------------------------------

UNANSWERABLE = "unanswerable"
"""The answer that lm-evaluation-harness's task squadv2 prescribes for unanswerable questions."""
FORMATS = (
    "official predictions, JSON lines with id, answer and null odds, a list for evaluate's squad_v2 metric,"
    " samples of lm-evaluation-harness, or CSV with the columns id, answer and, optionally, null_odds"
)
NULL_ODDS = ("null_odds", "no_answer_probability")
"""Names of a record's null odds; a probability of "no answer" ranks questions like them."""
Row = tuple[str, str, str, float | None]
"""(position in the file for messages, such as ``line 3``; question id; answer, "" for none; null odds)."""


@dataclass(frozen=True)
class Answers:
    """An answer to every question of a set, in the set's order."""

    form: str
    """Description of the file format."""
    texts: Mapping[str, str]
    null_odds: Mapping[str, float] | None
    """Question id -> null odds or no-answer probability; None if the system provides none."""
    missing: int
    """Number of questions missing from the file; their answers are empty."""
    others: int
    """Number of answers to questions that are not in the set, which are ignored."""


def read_answers(
    path: Path, questions: QuestionSet, *, na_prob: str | None = None, empty: bool = False
) -> Answers:
    """Read the answers in ``path`` to ``questions``.

    ``na_prob``: official file of no-answer probabilities. ``path`` may also answer other questions, unless
    ``empty`` is set, which gives missing questions an empty answer: the file could then belong to another
    set. Raises DataError naming file, record, field and remedy, also for missing questions.
    """
    form, rows = _detect_format(path)
    texts: dict[str, str] = {}
    odds: dict[str, float] = {}
    for position, id_, text, null_odds in rows:
        if id_ in texts:
            raise DataError(f"{path}: {position}: {shown_id(id_)} is answered twice; keep one answer")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            fault = f"contains a lone surrogate at character {error.start}; write the whole character"
            raise DataError(f"{path}: {position}: the answer to {shown_id(id_)} {fault}") from None
        texts[id_] = text
        odds |= {} if null_odds is None else {id_: null_odds}
    if na_prob is not None:
        odds = read_null_scores(na_prob).values
    answered = [id_ for id_, text in texts.items() if text or na_prob]  # others abstain at any threshold
    if (odds or na_prob) and (lacking := [id_ for id_ in answered if id_ not in odds]):
        raise DataError(
            f"{na_prob or path}: {_abbreviated(lacking)} with an answer but no probability or null odds; add"
            " one for each"
        )
    ids = dict.fromkeys(example.id for example in questions.examples)
    if (unknown := [id_ for id_ in {**texts, **odds} if id_ not in ids]) and empty:
        raise DataError(
            f"{path}: {_abbreviated(unknown)} not in the data; pass the set that was answered as --data"
        )
    if (missing := missing_ids(questions, texts)) and not empty:
        raise DataError(
            f"{path}: {_abbreviated(missing)} without an answer; complete it, or use --missing empty"
        )
    known = {id_: float(odds.get(id_, math.inf)) for id_ in ids} if odds else None  # inf: an empty answer
    return Answers(form, {id_: texts.get(id_, "") for id_ in ids}, known, len(missing), len(unknown))


def _abbreviated(ids: Collection[str]) -> str:
    """Number of ids, and the first five."""
    shown = ", ".join(map(shown_id, islice(ids, 5))) + ", ..." * (len(ids) > 5)
    return f"{counted(len(ids), 'id')} ({shown})"


def _detect_format(path: Path) -> tuple[str, Iterable[Row]]:
    """Description of the file format, and the rows."""
    text = read_text(path)
    if text.lstrip()[:1] not in ("{", "["):
        return "CSV", _answer_rows(path, _csv_records(path, text), "answer")
    content = load(path)
    # An object is official unless its keys are fields: any other key may be an id.
    if isinstance(content, dict) and not content.keys() & {"doc", "id"}:
        return "official predictions", _official_rows(path)
    noun = "line" if isinstance(content, Lines) else "record"
    if not isinstance(content, Lines):
        content = enumerate(content if isinstance(content, list) else [content], 1)
    records = [(f"{noun} {number}", record) for number, record in content]
    first = records[0][1] if records else None
    keys = first.keys() if isinstance(first, dict) else set()
    # The keys of the first record decide; a later one that lacks them is an error with its line.
    if "doc" in keys:
        form = f'lm-evaluation-harness samples, "{UNANSWERABLE}" read as no answer'
        return form, _harness_rows(path, records)
    if "id" in keys:
        if "prediction_text" in keys:
            return "predictions for evaluate's metrics", _answer_rows(path, records, "prediction_text")
        if keys >= {"text", "answer"}:
            fault = "text and answer: either could be the answer; keep one of them"
            raise DataError(f"{path}: {records[0][0]}: {fault}")
        return "JSON lines", _answer_rows(path, records, "text" if "text" in keys else "answer")
    raise DataError(f"{path}: unknown format; expected {FORMATS}")


def _field(path: Path, position: str, record: Any, name: str, want: type | tuple[type, ...] = str) -> Any:
    """Field of a record (dots descend into nested objects); DataError if missing or of the wrong type."""
    for key in name.split("."):
        record = record.get(key) if isinstance(record, dict) else None
    if isinstance(record, bool) or not isinstance(record, want):  # a bool is an int to isinstance
        fault = "is missing" if record is None else "has the wrong type"
        raise DataError(f"{path}: {position}: {name}: {fault}; correct it, or remove the record")
    return record


def _number(
    path: Path,
    position: str,
    name: str,
    value: Any,
    read: Callable[[Any], float] = float,
    kind: str = "number",
) -> float:
    """Convert a field by ``read``; DataError if that fails, or the result is NaN or too large."""
    try:
        if not math.isnan(number := read(value)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise DataError(f"{path}: {position}: {name}: {str(value)[:20]!r} is not a {kind}; correct it")


def _official_rows(path: Path) -> Iterator[Row]:
    file = read_predictions(path)
    for id_ in (*file.duplicates, *file.values):  # a duplicate is yielded twice, which read_answers rejects
        yield "object", id_, file.values[id_], None


def _csv_records(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    """Records as those of JSON lines; where the cell of the null odds is empty, they are missing."""
    for number, row in csv_rows(path, text, ("id", "answer"), f"expected {FORMATS}"):
        line = f"line {number}"
        odds = {name: _number(path, line, name, row[name]) for name in NULL_ODDS if row.get(name)}
        yield line, {"id": row["id"], "answer": row["answer"], **odds}


def _answer_rows(path: Path, records: Iterable[tuple[str, Any]], text: str) -> Iterator[Row]:
    """Records with id, answer and null odds, as ``qa-arch predict --out FILE.jsonl`` writes them; null odds
    of null are infinite."""
    for position, record in records:
        id_, answer = _field(path, position, record, "id", (str, int)), _field(path, position, record, text)
        null_odds = next((name for name in NULL_ODDS if name in record), "")
        odds = math.inf if null_odds else None
        if record.get(null_odds) is not None:
            value = _field(path, position, record, null_odds, (int, float))
            odds = _number(path, position, null_odds, value)
        yield position, str(id_), answer, odds


def _harness_rows(path: Path, records: Iterable[tuple[str, Any]]) -> Iterator[Row]:
    """Samples of the tasks squadv2 and squad_completion (``--log_samples``).

    A sample has the answer and, for squadv2, the log-probability of "unanswerable", both as strings in nested
    lists.
    """
    for position, record in records:
        doc = _field(path, position, record, "doc", dict)
        id_ = str(_field(path, position, record, "doc.id" if "id" in doc else "doc.doc_id", (str, int)))
        name = "filtered_resps" if "filtered_resps" in record else "resps"
        values = [*map(_innermost, _field(path, position, record, name, list))]
        text = _field(path, position, {name: values[0] if values else None}, name).strip()
        odds = None
        if len(values) > 1:
            odds = _number(path, position, name, values[1], lambda v: math.exp(float(v)), "log-probability")
        abstains = text.strip(" \t\n\"'.*").casefold().startswith(UNANSWERABLE)
        yield position, id_, "" if abstains else text, odds


def _innermost(value: Any) -> Any:
    while isinstance(value, list) and value:
        value = value[0]
    return value
