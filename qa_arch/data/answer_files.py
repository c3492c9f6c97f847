"""Read answers of any system; the format is detected from the content, one function per format."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from qa_arch.data.files import Lines, csv_rows, load, read_text
from qa_arch.data.question_sets import clip
from qa_arch.errors import DataError
from qa_arch.metrics.prediction_files import read_null_scores, read_predictions, shown_id
from qa_arch.metrics.squad import missing_ids
from qa_arch.types import Example, QuestionSet

UNANSWERABLE = "unanswerable"
"""The answer that lm-evaluation-harness's task squadv2 prescribes for unanswerable questions."""
FORMATS = (
    "official predictions, JSON lines with id, answer and null odds, a list for evaluate's squad_v2 metric,"
    " samples of lm-evaluation-harness, answers of haystack or of transformers' pipeline, n-best lists with"
    " scores, or CSV with the columns id and answer"
)
RANKED: Mapping[str, str] = {
    "data": "haystack answers",
    "answer": "answers of haystack 1 or transformers' pipeline",
    "text": "n-best lists with scores",
}
"""Key of the text of a ranked answer -> description of the format. A null or empty text is "no answer"."""
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
    form, rows = _detect_format(path, questions)
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
    known = {id_: float(odds.get(id_, math.inf)) for id_ in ids} if odds else None
    return Answers(form, {id_: texts.get(id_, "") for id_ in ids}, known, len(missing), len(unknown))


def _abbreviated(ids: Collection[str]) -> str:
    """Number of ids, and the first five."""
    shown = ", ".join(map(shown_id, islice(ids, 5))) + ", ..." * (len(ids) > 5)
    return f"{len(ids)} id{'s' * (len(ids) > 1)} ({shown})"


def _detect_format(path: Path, questions: QuestionSet) -> tuple[str, Iterable[Row]]:
    """Description of the file format, and the rows."""
    text = read_text(path)
    if text.lstrip()[:1] not in ("{", "["):
        return "CSV", _csv_rows(path, text)
    content = load(path)
    # An object is official unless its keys are fields: any other key may be an id.
    if isinstance(content, dict) and not content.keys() & {"doc", "id", "answers"}:
        if all(isinstance(value, list | dict) for value in content.values()):
            lists = {id_: value if isinstance(value, list) else [value] for id_, value in content.items()}
            best = [span for spans in lists.values() for span in spans[:1]]
            if any(isinstance(span, dict) and "probability" in span for span in best):
                raise DataError(f"{path}: is an n-best file; give the predictions.json written with it")
            return _ranked_rows(path, lists)
        return "official predictions", _official_rows(path)
    noun = "line" if isinstance(content, Lines) else "record"
    if not isinstance(content, Lines):
        content = enumerate(content if isinstance(content, list) else [content], 1)
    records = [(f"{noun} {number}", record) for number, record in content]
    first = records[0][1] if records else None
    keys = first.keys() if isinstance(first, dict) else {"answers"} if isinstance(first, list) else set()
    # The keys of the first record decide; a later one that lacks them is an error with its line.
    if "doc" in keys:
        form = f'lm-evaluation-harness samples, "{UNANSWERABLE}" read as no answer'
        return form, _harness_rows(path, records)
    if "id" in keys:
        if "prediction_text" in keys:
            return "predictions for evaluate's metrics", _answer_rows(path, records, "prediction_text")
        return "JSON lines", _answer_rows(path, records, "text" if "text" in keys else "answer")
    if keys & {"answers", "query", "init_parameters"}:
        return _ranked_rows(path, _group_by_question(path, records, questions))
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


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    for number, record in csv_rows(path, text, ("id", "answer"), f"expected {FORMATS}"):
        line = f"line {number}"
        yield line, _field(path, line, record, "id"), _field(path, line, record, "answer"), None


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


def _ranked_rows(path: Path, answers: Mapping[str, list[Any]]) -> tuple[str, list[Row]]:
    """Description of the format, and the answer of highest score per question id.

    The score of haystack's "no answer" is a probability, and so the null odds; other scores of it are
    compared with that of the best span. A list without "no answer" says nothing about its score, and null
    odds of some questions only are worthless: all are then unknown.
    """
    form, rows, unknown = RANKED["data"], [], 0
    for id_, ranked in answers.items():
        candidates = [*map(_unwrapped, ranked)]
        fields = [_field(path, id_, answer, "score", (int, float)) for answer in candidates]
        scores = [_number(path, id_, "score", score) for score in fields]
        texts = []
        for answer in candidates:
            key = next((key for key in RANKED if key in answer), None)
            if key is None:
                raise DataError(
                    f"{path}: {id_}: an answer has none of {', '.join(RANKED)}; expected {FORMATS}"
                )
            form = RANKED[key]
            texts.append("" if answer[key] is None else _field(path, id_, answer, key))
        best = texts[scores.index(max(scores))] if scores else ""
        odds = scores[texts.index("")] if "" in texts else None
        # Null odds compare "no answer" with the best span, as ours do.
        if odds is not None and form != RANKED["data"]:
            odds -= max((s for s, text in zip(scores, texts, strict=True) if text), default=-math.inf)
        unknown += odds is None and best != ""
        rows.append((id_, best, odds))
    if unknown and any(odds is not None for _, _, odds in rows):
        form += f'; no null odds, as {unknown} lists have no score of "no answer"'
    return form, [(id_, id_, text, None if unknown else odds) for id_, text, odds in rows]


def _group_by_question(
    path: Path, records: Iterable[tuple[str, Any]], questions: QuestionSet
) -> dict[str, list[Any]]:
    """Group answers by the id of the question with their query text.

    If several questions have the same text, the answer's document must occur in the passage of exactly one.
    """
    examples_by_text: dict[str, list[Example]] = defaultdict(list)
    for example in questions.examples:
        examples_by_text[example.question].append(example)
    groups: dict[str, list[Any]] = defaultdict(list)
    for position, record in records:
        answers = record.get("answers", [record]) if isinstance(record, dict) else record
        for answer in answers if isinstance(answers, list) else ():
            fields = _unwrapped(answer)
            if isinstance(fields, dict) and isinstance(record, dict):  # haystack 1 names the query once
                fields = {"query": record.get("query"), **fields}
            query = _field(path, position, fields, "query")
            document = fields.get("document")
            passage = document.get("content") if isinstance(document, dict) else fields.get("context")
            matches = [e.id for e in examples_by_text[query] if (passage or "") in e.context]
            if len(matches) != 1:
                fault = f"{len(matches)} questions of the data are {clip(query)}"
                raise DataError(f'{path}: {position}: query: {fault}; write {{"question id": [answers]}}')
            groups[matches[0]].append(answer)
    return groups


def _unwrapped(answer: Any) -> Any:
    """Fields of an answer, which haystack's ``to_dict`` nests in ``init_parameters``."""
    return answer.get("init_parameters", answer) if isinstance(answer, dict) else answer
