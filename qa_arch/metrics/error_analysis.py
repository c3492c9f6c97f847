"""Error analysis: the kind of mistake of each wrong answer, from the question rows of a run.

The rows are the columns of ``questions.parquet``. Their scores alone give the kind of mistake
(``judge_scores``). With the data set, their offsets give the texts as well (``judge``): how a wrong span
overlaps the gold, the article of a question, and whether a false answer is a plausible one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, get_args

from qa_arch.errors import DataError
from qa_arch.metrics.squad import normalise, score_questions
from qa_arch.types.text import Example, QuestionSet

Outcome = Literal["right", "wrong_span", "wrong_abstention", "missed_answer", "undue_answer", "unanswered"]
"""``wrong_span``: an answerable question was answered, but not exactly. ``wrong_abstention``: it was not
answered although the best span was right. ``missed_answer``: it was not answered, and the best span was
wrong as well. ``undue_answer``: a false answer, given to an unanswerable question (the name in the records).
``unanswered``: ``wrong_abstention`` or ``missed_answer``, where the rows cannot tell which."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)[:-1]

Boundary = Literal["short", "long", "crossing", "apart", "same"]
"""A wrong span relative to the gold that it overlaps most: inside it, around it, across one of its ends,
without a common character; ``same``: the same span without a match, as for a gold without words."""

NEAR_MISS = 0.5
"""Minimal F1 of a near miss."""
COLUMNS = ("id", "start", "end", "abstained")
SPANS = ("span_exact", "span_f1")
SCORED = ("id", "kind", "answerable", "abstained", "exact", "f1")
"""Columns for ``judge_scores``; ``span_exact``, the score of the best span, separates the two abstentions."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcome of one question."""

    id: str
    kind: str | None
    outcome: Outcome
    answerable: bool
    f1: float
    """Of a wrong span, against the gold that it is nearest to."""
    boundary: Boundary | None = None
    """Of a wrong span; None for every other outcome, and where only scores were judged."""
    plausible: bool | None = None
    """Of a false answer: whether it is one of the plausible answers of the data; None if there are none."""
    article: str | None = None
    """None where only scores were judged."""

    @property
    def near_miss(self) -> bool:
        return self.outcome == "wrong_span" and self.f1 >= NEAR_MISS

    @property
    def overlaps(self) -> bool:
        """Whether a wrong span shares words with a gold answer, a boundary error."""
        return self.outcome == "wrong_span" and self.f1 > 0


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Number of questions per outcome and per boundary error."""

    total: int
    outcomes: Mapping[Outcome, int]
    boundaries: Mapping[Boundary, int]
    overlapping: int
    """Wrong spans that share words with a gold answer."""
    near_misses: int
    plausible: int
    """False answers that are plausible answers, out of the ``with_plausible`` questions that have some."""
    with_plausible: int


def judge(questions: QuestionSet, rows: Mapping[str, Sequence[Any]]) -> tuple[Judged, ...]:
    """Outcome of every row, in the order of the rows.

    ``rows``: at least ``COLUMNS``; ``start`` and ``end`` are those of the best span at any margin,
    -1 if there was none. Without its scores (``SPANS``), which old records lack, the span is scored again.
    Raises DataError where the rows belong to other questions.
    """
    _require(rows, COLUMNS)
    by_id = {example.id: example for example in questions.examples}
    if unknown := [id_ for id_ in rows["id"] if id_ not in by_id]:
        raise DataError(
            f"{questions.name}: {len(unknown)} scored questions are not in it, the first is {unknown[0]};"
            " give the data that the run was scored on"
        )
    spans = {id_: (start, end) for id_, start, end in zip(*(rows[c] for c in COLUMNS[:3]), strict=True)}
    texts = {id_: _text(by_id[id_], *span) for id_, span in spans.items()}
    if all(name in rows for name in SPANS):
        scores = {
            id_: (exact, f1) for id_, exact, f1 in zip(rows["id"], *(rows[s] for s in SPANS), strict=True)
        }
    else:
        scores = {s.id: (s.exact, s.f1) for s in score_questions(questions, texts)}
    judged = []
    for id_, abstained in zip(rows["id"], rows["abstained"], strict=True):
        example, (exact, f1) = by_id[id_], scores[id_]
        outcome = _outcome(example.answerable, bool(abstained), bool(exact))
        judged.append(
            Judged(
                id=id_,
                kind=example.kind,
                outcome=outcome,
                answerable=example.answerable,
                f1=f1,
                boundary=boundary(example, *spans[id_]) if outcome == "wrong_span" else None,
                plausible=_plausible(example, texts[id_]) if outcome == "undue_answer" else None,
                article=example.title,
            )
        )
    return tuple(judged)


def judge_scores(rows: Mapping[str, Sequence[Any]]) -> tuple[Judged, ...]:
    """Outcome of every row by its scores alone; ``rows`` hold at least ``SCORED``.

    Boundaries, articles and plausible answers are unknown. Without the column ``span_exact``, which old
    records lack, an answerable question without an answer is ``unanswered``.
    """
    _require(rows, SCORED)
    spans = rows.get("span_exact") or [None] * len(rows["id"])
    judged = []
    for *columns, span_exact in zip(*(rows[name] for name in SCORED), spans, strict=True):
        id_, kind, answerable, abstained, exact, f1 = columns
        if answerable and abstained and span_exact is None:
            outcome: Outcome = "unanswered"
        else:
            outcome = _outcome(bool(answerable), bool(abstained), bool(span_exact if abstained else exact))
        judged.append(Judged(id_, kind, outcome, bool(answerable), f1))
    return tuple(judged)


def count(judged: Iterable[Judged]) -> ErrorCounts:
    """Counts over all questions; every outcome and boundary is a key, also with count 0."""
    rows = list(judged)
    outcomes: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
    boundaries: dict[Boundary, int] = dict.fromkeys(get_args(Boundary), 0)
    for row in rows:
        outcomes[row.outcome] = outcomes.get(row.outcome, 0) + 1
        if row.boundary is not None:
            boundaries[row.boundary] += 1
    return ErrorCounts(
        total=len(rows),
        outcomes=outcomes,
        boundaries=boundaries,
        overlapping=sum(row.overlaps for row in rows),
        near_misses=sum(row.near_miss for row in rows),
        plausible=sum(row.plausible is True for row in rows),
        with_plausible=sum(row.plausible is not None for row in rows),
    )


def count_by(judged: Iterable[Judged], key: Callable[[Judged], str | None]) -> dict[str | None, ErrorCounts]:
    """Counts per value of ``key``, sorted by name, None last."""
    groups: dict[str | None, list[Judged]] = {}
    for row in judged:
        groups.setdefault(key(row), []).append(row)
    return {name: count(groups[name]) for name in sorted(groups, key=lambda name: (name is None, name or ""))}


def boundary(example: Example, start: int, end: int) -> Boundary:
    """Position of the span relative to the gold that it shares most characters with (the first on a tie)."""
    gold = max(example.answers, key=lambda gold: min(end, gold.end) - max(start, gold.start))
    if end <= gold.start or gold.end <= start:
        return "apart"
    if (start, end) == (gold.start, gold.end):
        return "same"
    if gold.start <= start and end <= gold.end:
        return "short"
    return "long" if start <= gold.start and gold.end <= end else "crossing"


def _require(rows: Mapping[str, Sequence[Any]], columns: Sequence[str]) -> None:
    if missing := [name for name in columns if name not in rows]:
        raise DataError(f"question rows without the columns {', '.join(missing)}; score the run again")


def _outcome(answerable: bool, abstained: bool, exact: bool) -> Outcome:
    if not answerable:
        return "right" if abstained else "undue_answer"
    if abstained:
        return "wrong_abstention" if exact else "missed_answer"
    return "right" if exact else "wrong_span"


def _text(example: Example, start: int, end: int) -> str:
    """Text of the best span, "" if there was none."""
    if start < 0:
        return ""
    if not start < end <= len(example.context):
        raise DataError(
            f"question {example.id}: the recorded span {start}..{end} is not in its passage of"
            f" {len(example.context)} characters; give the data that the run was scored on"
        )
    return example.context[start:end]


def _plausible(example: Example, text: str) -> bool | None:
    if not example.plausible:
        return None
    return _normal(text) in {_normal(gold.text) for gold in example.plausible}


_normal = lru_cache(maxsize=1 << 16)(normalise)  # the runs of a report share their golds
