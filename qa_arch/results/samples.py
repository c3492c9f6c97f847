"""The scores of systems on one set, question by question: what intervals and tests are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.confidence import Bools, Floats, Ints, area_values, auroc_values
from qa_arch.metrics.significance import Effect, Interval, Unit, contrast, mean_interval
from qa_arch.metrics.threshold import fit_threshold
from qa_arch.records import CALIBRATION, RunRecord
from qa_arch.results.questions import Questions, load_aligned, load_questions
from qa_arch.results.systems import System, same_measure
from qa_arch.types.text import QuestionSet

MeasureName = Literal["exact", "f1", "spans", "auroc", "aurc"]
MEASURES: Mapping[MeasureName, str] = {
    "exact": "EM",
    "f1": "F1",
    "spans": "answerable F1 (forced answer)",
    "auroc": "AUROC, answerable",
    "aurc": "AURC",
}
"""Headings. The first two are taken at the fitted null threshold, the others need none: best spans of the
answerable questions alone; telling answerable from unanswerable ones; risk over coverage (less is better)."""
AT_THRESHOLD: tuple[MeasureName, ...] = ("exact", "f1")
UNITS: Mapping[Unit, str] = {"question": "questions", "article": "articles", "passage": "passages"}
GROUPS = 20
"""The most calibration articles that are left out one by one: more are left out in groups."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The runs of one system."""

    records: Sequence[RunRecord]
    rows: Sequence[Questions]

    def scores(self, measure: MeasureName) -> Floats | None:
        """``(R, N)``, percent, whose means are the runs' figures; spans of unanswerable questions are NaN.

        Of areas under curves they are what each question moves the area by (its influence), around the area.
        None where some run's rows do not tell it.
        """
        columns = [_scores(rows, measure) for rows in self.rows]
        known = [column for column in columns if column is not None]
        return 100 * np.stack(known) if len(known) == len(columns) else None

    @cached_property
    def thresholds(self) -> Floats | None:
        """``(R, C)`` null thresholds, fitted without each calibration article in turn; None where records do
        not hold what they were fitted on, or the rows were scored at others."""
        runs = zip(self.records, self.rows, strict=True)
        fitted = [_left_out(record, rows) for record, rows in runs]
        known = [thresholds for thresholds in fitted if thresholds is not None]
        return np.stack(known) if len(known) == len(fitted) and len({*map(len, known)}) == 1 else None

    def left_out(self, measure: MeasureName, where: Bools) -> Floats:
        """``(C,)`` means over the runs and the questions ``where``, percent, at ``thresholds``."""
        assert self.thresholds is not None
        means = [
            [_at(rows, measure, threshold)[where].mean() for threshold in thresholds]
            for rows, thresholds in zip(self.rows, self.thresholds.tolist(), strict=True)
        ]
        return 100 * np.mean(means, axis=0)


@dataclass(frozen=True, eq=False)
class Samples:
    """Systems on the same questions of one split, by their labels."""

    split: str
    systems: Mapping[str, Sample]
    articles: Ints | None
    """(N,) number of each question's article; None: questions are drawn."""
    drawn: Unit = "article"
    """Whether ``articles`` are these, or passages."""

    @property
    def unit(self) -> Unit:
        return "question" if self.articles is None else self.drawn

    @property
    def first(self) -> Questions:
        return next(iter(self.systems.values())).rows[0]

    def where(self, measure: MeasureName) -> Bools:
        """The questions that a measure is the mean of."""
        return self.first.answerable if measure == "spans" else np.ones(len(self.first), dtype=bool)

    def testable(self, where: Bools) -> bool:
        """Whether the questions are of more than one article (of more than one question)."""
        return int(where.sum() if self.articles is None else len(np.unique(self.articles[where]))) > 1

    def scores(self, label: str, measure: MeasureName, where: Bools | None = None) -> Floats:
        """``(R, n)`` of the questions ``where``; RunError where the rows do not tell them."""
        sample = self.systems[label]
        scores = sample.scores(measure)
        if scores is None:
            unknown = f"{sample.rows[0].folder}: its rows do not tell {MEASURES[measure]}"
            raise RunError(f"{unknown}; score the run again, or leave it out")
        return scores[:, self.where(measure) if where is None else where]

    def interval(self, label: str, measure: MeasureName) -> Interval:
        return mean_interval(self.scores(label, measure), self._articles_of(self.where(measure)))

    def effect(
        self,
        a: str,
        b: str,
        measure: MeasureName,
        *,
        where: Bools | None = None,
        pairs: Sequence[int] | None = None,
    ) -> Effect:
        """B against A; with ``pairs`` run r of B was made of run ``pairs[r]`` of A."""
        weights = {a: -1, b: 1}
        if pairs is None:
            return self.contrast(weights, measure, where=where)
        where = self.where(measure) if where is None else where
        x, y = (self.scores(label, measure, where) for label in (a, b))
        return self._contrast([y - x[list(pairs)]], weights, measure, where)

    def contrast(
        self, weights: Mapping[str, float], measure: MeasureName, *, where: Bools | None = None
    ) -> Effect:
        """The sum of the systems' means, each times its weight; main effects are such sums."""
        where = self.where(measure) if where is None else where
        scores = [weight * self.scores(label, measure, where) for label, weight in weights.items()]
        return self._contrast(scores, weights, measure, where)

    def _contrast(
        self, scores: Sequence[Floats], weights: Mapping[str, float], measure: MeasureName, where: Bools
    ) -> Effect:
        left_out: Sequence[float] = ()
        if measure in AT_THRESHOLD and self.calibration_articles([*weights]):
            parts = [
                weight * self.systems[label].left_out(measure, where) for label, weight in weights.items()
            ]
            left_out = np.sum(parts, axis=0).tolist()
        return contrast(scores, articles=self._articles_of(where), left_out=left_out)

    def _articles_of(self, where: Bools) -> Ints | None:
        return None if self.articles is None else self.articles[where]

    def calibration_articles(self, labels: Sequence[str]) -> int:
        """The number of calibration articles whose share the tests know; 0 where they do not."""
        samples = [self.systems[label] for label in labels]
        splits = {record.fingerprint(CALIBRATION) for sample in samples for record in sample.records}
        counts = {0 if sample.thresholds is None else sample.thresholds.shape[1] for sample in samples}
        known = self.split != CALIBRATION and len(splits) == len(counts) == 1
        return counts.pop() if known else 0


def samples_of(
    systems: Sequence[System], split: str, unit: Unit | None = None, questions: QuestionSet | None = None
) -> Samples:
    """The rows of ``systems``, and articles as ``drawn_articles``; RunError where they do not compare."""
    runs = [run for system in systems for run in system.runs]
    same_measure(runs, split)
    loaded = load_aligned(runs, split)
    rest = iter(loaded)
    known = {
        system.label: Sample([record for _, record in system.runs], [next(rest) for _ in system.runs])
        for system in systems
    }
    return Samples(split, known, drawn_articles(loaded, unit, questions))


def drawn_articles(
    rows: Sequence[Questions], unit: Unit | None, questions: QuestionSet | None = None
) -> Ints | None:
    """The number of each question's article, as the rows or the scored set ``questions`` tell it, where
    articles are to be drawn: by ``unit``, or where there are several. RunError where ``unit`` asks for
    articles and there are none, or one alone.
    """
    if unit == "question":
        return None
    numbers = next((run.article for run in rows if run.article is not None), None)
    if questions is not None:
        numbers = np.array(questions.article_numbers)
    if numbers is not None and len(np.unique(numbers)) > 1:
        return numbers
    if unit == "article" and numbers is None:
        raise RunError(
            f"{rows[0].folder}: records made before version 0.2 lack the article of a question; name the"
            " scored set (--data FILE) or score the run again (qa-arch evaluate --run)"
        )
    if unit == "article":
        raise RunError(
            f"{rows[0].folder}: all questions are of one article, so nothing can be said over articles;"
            " compare over questions (--unit question)"
        )
    return None


def _scores(rows: Questions, measure: MeasureName) -> Floats | None:
    if measure == "auroc":
        return auroc_values(-rows.null_odds, rows.answerable)
    if measure in AT_THRESHOLD:
        return np.asarray(getattr(rows, measure))
    if rows.span_f1 is None or np.isnan(rows.span_f1[rows.answerable]).any():
        return None
    if measure == "aurc":
        if np.isnan(rows.null_odds).all():
            return None
        return area_values(rows.null_odds, rows.span_f1, rows.answerable)
    return np.where(rows.answerable, rows.span_f1, np.nan) if rows.answerable.any() else None


def _at(rows: Questions, measure: MeasureName, threshold: float) -> Floats:
    """``(N,)`` the scores that the answers have at a null threshold."""
    spans = rows.span_f1 if measure == "f1" else rows.span_exact
    assert spans is not None
    return np.where(rows.null_odds > threshold, ~rows.answerable, spans)


def _left_out(record: RunRecord, rows: Questions) -> Floats | None:
    """``(C,)`` null thresholds of one run."""
    own = record.threshold.value if record.threshold else None
    if own is None or rows.span_f1 is None or rows.span_exact is None:
        return None
    if not np.allclose(_at(rows, "f1", own), rows.f1):
        return None  # scored at another threshold
    try:
        fitted_on = load_questions(rows.folder, record, CALIBRATION)
    except RunError:
        return None
    if fitted_on.article is None or fitted_on.span_f1 is None or np.isnan(fitted_on.span_f1).any():
        return None
    groups = np.unique(fitted_on.article, return_inverse=True)[1] % GROUPS
    prior = record.setting("calibration", "prior")
    columns = (fitted_on.null_odds, fitted_on.span_f1, fitted_on.answerable)
    thresholds = []
    for group in range(int(groups.max()) + 1):
        odds, spans, answerable = (values[groups != group].tolist() for values in columns)
        thresholds.append(fit_threshold(odds, spans, answerable, prior))
    return np.array(thresholds) if len(thresholds) > 1 else None
