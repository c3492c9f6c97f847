"""Error analysis: classify each wrong answer, from the question rows of a run.

The rows are the columns of ``questions.parquet``. Their scores alone give the kind of mistake. With the data
set, their offsets also give the texts: how a wrong span overlaps the gold, the article of a question, and
whether a false answer is a plausible one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from qa_arch.errors import DataError
from qa_arch.metrics.languages import ENGLISH
from qa_arch.metrics.squad import Normalised, score_questions
from qa_arch.types.text import Example, QuestionSet

Outcome = Literal["right", "wrong_span", "wrong_abstention", "missed_answer", "undue_answer", "unanswered"]
"""``wrong_span``: an answerable question was answered, but not exactly. ``wrong_abstention``: it was not
answered although the best span was right. ``missed_answer``: it was not answered, and the best span was
wrong too. ``undue_answer``: a false answer, given to an unanswerable question (the name in the records).
``unanswered``: ``wrong_abstention`` or ``missed_answer``, if the rows do not say which."""

Boundary = Literal["short", "long", "crossing", "apart", "same"]
"""A wrong span relative to the gold that it overlaps most: inside it, around it, across one of its ends,
disjoint from it; ``same``: the same span, not a match because the gold has no words."""

NEAR_MISS = 0.5
"""Minimum F1 of a near miss."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Outcome of one question."""

    id: str
    kind: str | None
    outcome: Outcome
    answerable: bool
    f1: float
    """F1 of a wrong span with its best-matching gold answer."""
    boundary: Boundary | None = None
    """Boundary of a wrong span; None for other outcomes, or without texts."""
    plausible: bool | None = None
    """Whether a false answer is one of the data's plausible answers; None if it has none."""
    article: str | None = None
    """None without texts."""

    @property
    def near_miss(self) -> bool:
        return self.outcome == "wrong_span" and self.f1 >= NEAR_MISS

    @property
    def overlaps(self) -> bool:
        """Whether this is a boundary error: a wrong span that shares words with a gold answer."""
        return self.outcome == "wrong_span" and self.f1 > 0


@dataclass(frozen=True, slots=True)
class ErrorCounts:
    """Numbers of questions; every outcome and boundary is a key, even at count 0."""

    questions: int
    outcomes: Mapping[Outcome, int]
    overlapping: int
    """Wrong spans that share words with a gold answer."""
    near_misses: int
    boundaries: Mapping[Boundary, int]
    plausible: int
    """False answers that are plausible answers, out of the ``with_plausible`` questions that have some."""
    with_plausible: int


def judge(rows: Mapping[str, Sequence[Any]], questions: QuestionSet | None = None) -> tuple[Judged, ...]:
    """Outcome of every row, in row order, judged with the texts of ``questions`` or by scores alone.

    ``rows``: ``id``, ``kind``, ``answerable``, ``abstained``, ``exact``, ``f1``, the offsets of the best span
    at any threshold (``start``, -1 if there was none, and ``end``), and whether it is right,
    ``span_exact``. If old records lack it, the texts are scored again; without texts, or where it is NaN, an
    answerable question that was not answered is ``unanswered``. Raises DataError if the rows belong to other
    questions.
    """
    by_id = {example.id: example for example in questions.examples} if questions else {}
    if questions and (unknown := [id_ for id_ in rows["id"] if id_ not in by_id]):
        raise DataError(
            f"{questions.name}: {len(unknown)} scored questions are not in it, the first is {unknown[0]};"
            " give the data that the run was scored on"
        )
    spans = list(zip(rows["start"], rows["end"], strict=True))
    texts = (
        {id_: _text(by_id[id_], *span) for id_, span in zip(rows["id"], spans, strict=True)} if by_id else {}
    )
    best: Sequence[bool] | None = rows.get("span_exact")
    if best is None and questions:
        scored = {s.id: bool(s.exact) for s in score_questions(questions, texts)}
        best = [scored[id_] for id_ in rows["id"]]
    normal = Normalised(questions.language if questions else ENGLISH)
    columns = (rows[name] for name in ("id", "kind", "answerable", "abstained", "exact", "f1"))
    judged = []
    for place, (id_, kind, answerable, abstained, exact, f1) in enumerate(zip(*columns, strict=True)):
        right = best[place] if best is not None and abstained else exact
        outcome = _outcome(bool(answerable), bool(abstained), bool(right))
        if abstained and answerable and (best is None or best[place] != best[place]):  # NaN: unknown
            outcome = "unanswered"
        example = by_id.get(id_)
        details: dict[str, Any] = {"article": example.title} if example else {}
        if example and outcome == "wrong_span":
            details["boundary"] = boundary(example, *spans[place])
        if example and outcome == "undue_answer":
            details["plausible"] = _plausible(example, texts[id_], normal)
        judged.append(Judged(id_, kind, outcome, bool(answerable), f1, **details))
    return tuple(judged)


def count(judged: Iterable[Judged]) -> ErrorCounts:
    rows = list(judged)
    outcomes = Counter(row.outcome for row in rows)
    boundaries = Counter(row.boundary for row in rows)
    return ErrorCounts(
        questions=len(rows),
        outcomes={name: outcomes[name] for name in get_args(Outcome)},
        overlapping=sum(row.overlaps for row in rows),
        near_misses=sum(row.near_miss for row in rows),
        boundaries={name: boundaries[name] for name in get_args(Boundary)},
        plausible=sum(row.plausible is True for row in rows),
        with_plausible=sum(row.plausible is not None for row in rows),
    )


def boundary(example: Example, start: int, end: int) -> Boundary:
    """Position of the span relative to the gold it shares the most characters with (the first on a tie)."""
    gold = max(example.answers, key=lambda gold: min(end, gold.end) - max(start, gold.start))
    if end <= gold.start or gold.end <= start:
        return "apart"
    if (start, end) == (gold.start, gold.end):
        return "same"
    if gold.start <= start and end <= gold.end:
        return "short"
    return "long" if start <= gold.start and gold.end <= end else "crossing"


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


def _plausible(example: Example, text: str, normal: Normalised) -> bool | None:
    if not example.plausible:
        return None
    return normal[text] in {normal[gold.text] for gold in example.plausible}
