"""The mistakes of one run for people: what they are, and which kinds and articles of questions are worst."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from qa_arch.metrics.error_analysis import (
    SPANS,
    Boundary,
    ErrorCounts,
    Judged,
    Outcome,
    count,
    count_by,
    judge,
    judge_scores,
)
from qa_arch.results.columns import Table, number, text
from qa_arch.results.question_rows import Questions
from qa_arch.types.text import QuestionSet

NAMES: dict[Outcome, str] = {
    "right": "right",
    "wrong_span": "wrong span",
    "wrong_abstention": "wrong abstention",
    "missed_answer": "missed answer",
    "unanswered": "answerable, not answered",
    "undue_answer": "false answer",
}
BOUNDARIES: dict[Boundary, str] = {
    "short": "part of the gold",
    "long": "more than the gold",
    "crossing": "over one end of the gold",
    "apart": "elsewhere",
    "same": "the gold, which has no words",
}
LEGEND = (
    "wrong span: answered, not exactly (boundary: it shares words with a gold answer; near miss: its F1 is"
    " 50 or more); wrong abstention: not answered though the best span was right; missed answer: not"
    " answered, and the best span was wrong too; false answer: there is none"
)
_COLUMNS = {
    "questions": "questions",
    "right": "right, %",
    "wrong_span": "wrong span",
    "overlapping": "boundary",
    "near_misses": "near miss",
    "wrong_abstention": "abstained",
    "missed_answer": "missed",
    "unanswered": "not answered",
    "undue_answer": "false",
    "plausible": "plausible",
}
"""Columns of a breakdown, narrow enough for a screen."""
WORST = 20
"""Rows of a breakdown at most; ``as_dict`` holds all."""


@dataclass(frozen=True)
class Mistakes:
    """Every question of a scored set, judged; ``texts`` says whether beside the data or by scores alone."""

    judged: tuple[Judged, ...]
    texts: bool
    told_apart: bool = True
    """Whether abstentions from right and from wrong spans are; old records lack the spans' scores."""

    @property
    def counts(self) -> ErrorCounts:
        return count(self.judged)

    @property
    def named(self) -> dict[str, int]:
        """The outcomes of all questions by their names for people."""
        return {NAMES[outcome]: number for outcome, number in self.outcomes(self.counts).items()}

    @property
    def figures(self) -> dict[str, Any]:
        """Counts over all questions; boundaries and plausible answers only with texts."""
        return self._figures(self.counts)

    def outcomes(self, counts: ErrorCounts) -> dict[Outcome, int]:
        """The counts of the outcomes that can be known here, which are all questions."""
        unknown = {"unanswered"} if self.told_apart else {"wrong_abstention", "missed_answer"}
        return {name: counts.outcomes.get(name, 0) for name in NAMES if name not in unknown}

    def as_dict(self) -> dict[str, Any]:
        """``figures`` over all, by kind and by article."""
        return {
            "texts": self.texts,
            **self.figures,
            "by_kind": {name: self._figures(counts) for name, counts in self._by(kind_name).items()},
            "by_article": {name: self._figures(counts) for name, counts in self._by(_article).items()},
        }

    def tables(self) -> list[Table]:
        """By kind, where the data tags kinds, and by article, where the texts are there: the worst first."""
        tables = []
        if any(row.kind for row in self.judged):
            tables.append(self._table("kind", kind_name))
        if self.texts:
            tables.append(self._table("article", _article))
        return tables

    def _by(self, key: Callable[[Judged], str | None]) -> dict[str, ErrorCounts]:
        return {name: counts for name, counts in count_by(self.judged, key).items() if name is not None}

    def _figures(self, counts: ErrorCounts) -> dict[str, Any]:
        figures = {"questions": counts.total, "outcomes": self.outcomes(counts)}
        figures |= {"overlapping": counts.overlapping, "near_misses": counts.near_misses}
        if self.texts:
            figures |= {"boundaries": dict(counts.boundaries)}
            figures |= {"plausible": counts.plausible, "with_plausible": counts.with_plausible}
        return figures

    def _table(self, heading: str, key: Callable[[Judged], str | None]) -> Table:
        rows = [self._row(name, counts) for name, counts in self._by(key).items()]
        rows.sort(key=lambda row: row["right"])
        which = "the worst first" if len(rows) <= WORST else f"the {WORST} worst of {len(rows):,}"
        shown = [number(key, head) for key, head in _COLUMNS.items() if any(key in row for row in rows)]
        return Table(f"By {heading}, {which}", [text("name", heading), *shown], rows[:WORST])

    def _row(self, name: str, counts: ErrorCounts) -> dict[str, Any]:
        outcomes: dict[str, int] = dict(self.outcomes(counts).items())
        right = 100 * outcomes.pop("right") / max(counts.total, 1)
        row: dict[str, Any] = {"name": name, "questions": counts.total, "right": right, **outcomes}
        row |= {"overlapping": counts.overlapping, "near_misses": counts.near_misses}
        if counts.with_plausible:
            row["plausible"] = f"{counts.plausible:,} of {counts.with_plausible:,}"
        return row


def mistakes(rows: Questions, questions: QuestionSet | None = None) -> Mistakes:
    """Judge ``rows`` beside the set that they were scored on, or by their scores where it is not given.

    Raises DataError where the rows are of other questions.
    """
    if questions is not None:
        places: dict[str, Any] = {"id": rows.ids}
        places |= {key: getattr(rows, key).tolist() for key in ("start", "end", "abstained")}
        spans = {key: getattr(rows, key) for key in SPANS}
        places |= {key: values.tolist() for key, values in spans.items() if values is not None}
        return Mistakes(judge(questions, places), texts=True)
    columns: dict[str, Any] = {"id": rows.ids, "kind": rows.kind}
    columns |= {key: getattr(rows, key).tolist() for key in ("answerable", "abstained", "exact", "f1")}
    if rows.span_exact is not None:
        columns["span_exact"] = rows.span_exact.tolist()
    return Mistakes(judge_scores(columns), texts=False, told_apart=rows.span_exact is not None)


def kind_name(row: Judged) -> str:
    """The question's tag; of untagged ones, whether they have an answer."""
    return row.kind or ("answerable" if row.answerable else "not tagged")


def _article(row: Judged) -> str | None:
    return row.article
