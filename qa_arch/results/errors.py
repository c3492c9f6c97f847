"""Errors of a scored set: the outcome of every question, from its row alone or with the texts of the set.

The scores alone give the outcome. With the texts, the offsets of the spans also tell where a wrong span lies
relative to the gold, and whether a false answer is one of the plausible answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qa_arch.errors import DataError
from qa_arch.metrics.confidence import Bools, Floats, Ints
from qa_arch.metrics.squad import Normalised
from qa_arch.results.questions import Questions
from qa_arch.results.tables import Table, number, text
from qa_arch.types.text import Example, QuestionSet

OUTCOMES = {
    "right": "right",
    "wrong_span": "wrong span",
    "wrong_abstention": "wrong abstention",
    "missed_answer": "missed answer",
    "unanswered": "answerable, not answered",
    "undue_answer": "false answer",
}
"""Headings. Wrong span: an answerable question was answered, but not exactly. Wrong abstention: it was not
answered although the best span was right. Missed answer: it was not answered, and the best span was wrong.
``unanswered``: either of the two, if the rows do not say which. False answer: an unanswerable question was
answered."""
RIGHT, WRONG_SPAN, WRONG_ABSTENTION, MISSED, UNANSWERED, FALSE = range(len(OUTCOMES))
BOUNDARIES = {
    "short": "part of the gold",
    "long": "more than the gold",
    "crossing": "overlaps one end of the gold",
    "apart": "elsewhere",
    "same": "equal to a gold without words",
}
"""Headings of the positions of a wrong span relative to the gold that it overlaps most."""
NEAR_MISS = 0.5
"""Minimum F1 of a near miss."""
_COLUMNS = {
    "questions": "asked",
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
"""Columns of an error table, narrow enough for a screen."""
_WEIGHTS = {"overlapping": -1, "near_misses": -1, "plausible": -1, "questions": 0, "right": 0}
"""A narrow terminal first leaves out columns that count a part of another one, and last (1) the errors."""
WORST = 20
"""Maximum rows of an error table; ``as_dict`` has all."""


@dataclass(frozen=True, eq=False)
class Mistakes:
    """Outcomes of the questions of a scored set; boundaries, plausible answers and articles need texts."""

    rows: Questions
    outcome: Ints
    """(N,) indices into ``OUTCOMES``."""
    boundary: Ints
    """(N,) indices into ``BOUNDARIES``; -1 for other outcomes than a wrong span, or without texts."""
    plausible: Floats
    """(N,) 1 if a false answer is one of the data's plausible answers, 0 if not; NaN if the data has none."""
    articles: Sequence[str] | None
    """None without texts."""

    @property
    def overlaps(self) -> Bools:
        """(N,) whether this is a boundary error: a wrong span that shares words with a gold answer."""
        return (self.outcome == WRONG_SPAN) & (self.rows.f1 > 0)

    @property
    def near_miss(self) -> Bools:
        return (self.outcome == WRONG_SPAN) & (self.rows.f1 >= NEAR_MISS)

    def figures(self, where: Any = slice(None)) -> dict[str, Any]:
        """Counts over the questions ``where``. The outcomes, as far as the rows distinguish them, add up to
        all questions; boundaries and plausible answers only with texts."""
        counts = np.bincount(self.outcome[where], minlength=len(OUTCOMES)).tolist()
        unknown = (WRONG_ABSTENTION, MISSED) if (self.outcome == UNANSWERED).any() else (UNANSWERED,)
        figures = {
            "questions": sum(counts),
            "outcomes": {name: counts[i] for i, name in enumerate(OUTCOMES) if i not in unknown},
            "overlapping": int(self.overlaps[where].sum()),
            "near_misses": int(self.near_miss[where].sum()),
        }
        if self.articles is None:
            return figures
        boundary, plausible = self.boundary[where], self.plausible[where]
        places = np.bincount(boundary[boundary >= 0], minlength=len(BOUNDARIES)).tolist()
        figures["boundaries"] = dict(zip(BOUNDARIES, places, strict=True))
        figures["plausible"] = int((plausible == 1).sum())
        figures["with_plausible"] = int((~np.isnan(plausible)).sum())
        return figures

    def as_dict(self) -> dict[str, Any]:
        """``figures`` in total, by kind and by article."""
        by = {"by_kind": self._by(self.rows.kinds), "by_article": self._by(self.articles or ())}
        return {"texts": self.articles is not None, **self.figures(), **by}

    def tables(self) -> list[Table]:
        """Error tables by kind, if the data tags kinds, and by article, if there are texts: worst first."""
        kinds = [self._table("kind", self.rows.kinds)] if any(self.rows.kind) else []
        return kinds if self.articles is None else [*kinds, self._table("article", self.articles)]

    def _by(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """``figures`` of the questions of each name."""
        unique, group = np.unique(np.array(names, dtype=object), return_inverse=True)
        return {name: self.figures(group == index) for index, name in enumerate(unique.tolist())}

    def _table(self, heading: str, names: Sequence[str]) -> Table:
        rows = []
        for name, figures in self._by(names).items():
            row = {"name": name, **figures, **figures["outcomes"]}
            row["right"] = 100 * row["right"] / row["questions"]
            row["plausible"] = f"{row.get('plausible', 0):,} of {row.get('with_plausible', 0):,}"
            rows.append(row)
        rows.sort(key=lambda row: row["right"])
        selection = "the worst first" if len(rows) <= WORST else f"the {WORST} worst of {len(rows):,}"
        shown = [
            number(key, head, weight=_WEIGHTS.get(key, 1))
            for key, head in _COLUMNS.items()
            if rows and key in rows[0]
        ]
        if not any(row.get("with_plausible") for row in rows):
            shown = [column for column in shown if column.key != "plausible"]
        return Table(f"By {heading}, {selection}", [text("name", heading), *shown], rows[:WORST])


def mistakes(rows: Questions, questions: QuestionSet | None = None) -> Mistakes:
    """Judge ``rows`` with the set that they were scored on, or by their scores alone.

    Raises DataError if the rows belong to other questions.
    """
    right = np.where(rows.abstained, rows.span_exact, rows.exact)
    if questions is None:
        nothing = np.full(len(rows), np.nan)
        return Mistakes(rows, _outcomes(rows, right), np.full(len(rows), -1), nothing, None)
    by_id = {example.id: example for example in questions.examples}
    if unknown := [id_ for id_ in rows.ids if id_ not in by_id]:
        raise DataError(
            f"{questions.name}: {len(unknown)} scored questions are not in it, the first is {unknown[0]};"
            " give the data that the run was scored on"
        )
    examples = [by_id[id_] for id_ in rows.ids]
    spans = list(zip(rows.start.tolist(), rows.end.tolist(), strict=True))
    texts = [_text(example, *span) for example, span in zip(examples, spans, strict=True)]
    outcome, normal = _outcomes(rows, right), Normalised(questions.language)
    places, plausible = np.full(len(rows), -1), np.full(len(rows), np.nan)
    for q in np.flatnonzero(outcome == WRONG_SPAN).tolist():
        places[q] = list(BOUNDARIES).index(boundary(examples[q], *spans[q]))
    for q in np.flatnonzero(outcome == FALSE).tolist():
        if examples[q].plausible:
            plausible[q] = normal[texts[q]] in {normal[gold.text] for gold in examples[q].plausible}
    return Mistakes(rows, outcome, places, plausible, [example.title for example in examples])


def _outcomes(rows: Questions, right: Floats) -> Ints:
    """Indices into ``OUTCOMES``. ``right`` is above 0 for a right answer or, where it was withheld, a right
    best span; NaN if unknown."""
    cases = {  # the first that applies counts
        FALSE: ~rows.answerable & ~rows.abstained,
        RIGHT: ~rows.answerable | (~rows.abstained & (right > 0)),
        WRONG_SPAN: ~rows.abstained,
        UNANSWERED: np.isnan(right),
        WRONG_ABSTENTION: right > 0,
    }
    return np.select(list(cases.values()), list(cases), MISSED)


def boundary(example: Example, start: int, end: int) -> str:
    """Position of the span relative to the gold it shares the most characters with (the first on a tie)."""
    gold = max(example.answers, key=lambda gold: min(end, gold.end) - max(start, gold.start))
    if end <= gold.start or gold.end <= start:
        return "apart"
    if (start, end) == (gold.start, gold.end):
        return "same"
    if gold.start <= start and end <= gold.end:
        return "short"
    return "long" if start <= gold.start and gold.end <= end else "crossing"


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
