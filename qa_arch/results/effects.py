"""One table of effects: differences between systems on one set, with intervals and corrected p-values.

``samples_of`` reads the questions of systems, ``effects`` tests every other system against a baseline (or
every named contrast) in one measure, and the tables below choose their columns from its rows. Means are over
seeds; intervals and p-values are over articles (or questions), seeds and calibration articles
(``metrics.significance``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from qa_arch.config.check import convert
from qa_arch.errors import ConfigError, RunError
from qa_arch.metrics.abstention import Bools, Floats, Ints, area_values, auroc_values, fit_threshold
from qa_arch.metrics.significance import GROUPS, Effect, Interval, Unit, contrast, in_order, mean_interval
from qa_arch.records import CALIBRATION, RunRecord
from qa_arch.results.columns import overlap_notes
from qa_arch.results.systems import (
    Questions,
    System,
    listed,
    load_aligned,
    load_questions,
    require_distinct_seeds,
    require_same_measure,
)
from qa_arch.results.tables import Column, number
from qa_arch.types import QuestionSet

MeasureName = Literal["exact", "f1", "forced_f1", "auroc", "aurc"]
MEASURES: Mapping[MeasureName, str] = {
    "exact": "EM",
    "f1": "F1",
    "forced_f1": "answerable F1 (forced answer)",
    "auroc": "AUROC, answerable",
    "aurc": "AURC",
}
"""Headings. The first two are measured at the fitted null threshold, the others need none: best spans of
answerable questions; separation of answerable from unanswerable; risk over coverage (lower is better)."""
AT_THRESHOLD: tuple[MeasureName, ...] = ("exact", "f1")
FITTED = "null threshold and epoch were chosen on these same questions"
"""Note on the calibration split, where the threshold is equally optimistic for every system."""
SINGLE_RUN = "one run of a system: interval and p are for that run, seed variance unknown"
PLACES = 6
"""Decimals kept: more than anyone reads, few enough to hide the rounding differences between processors."""
HOLM: Sequence[str] = ()
"""Correction by Holm 1979 over all rows."""


@dataclass(frozen=True, eq=False)
class Sample:
    """The runs of one system."""

    records: Sequence[RunRecord]
    rows: Sequence[Questions]

    def scores(self, measure: MeasureName) -> Floats | None:
        """Per-question scores ``(R, N)`` in percent, whose means are the runs' scores.

        Spans of unanswerable questions are NaN. For areas under curves they are each question's influence,
        centred on the area. None if the rows of some run lack the measure.
        """
        columns = [_scores(rows, measure) for rows in self.rows]
        known = [column for column in columns if column is not None]
        return 100 * np.stack(known) if len(known) == len(columns) else None

    @cached_property
    def thresholds(self) -> Floats | None:
        """Null thresholds ``(R, C)`` fitted without each calibration article (or group) in turn; None if
        records lack what they were fitted on, or the rows were scored at other thresholds."""
        runs = zip(self.records, self.rows, strict=True)
        fitted = [_jackknife_thresholds(record, rows) for record, rows in runs]
        known = [thresholds for thresholds in fitted if thresholds is not None]
        return np.stack(known) if len(known) == len(fitted) and len({*map(len, known)}) == 1 else None

    @cached_property
    def calibration_articles(self) -> int:
        """Number of articles that the thresholds were fitted on."""
        article = load_questions(self.rows[0].folder, self.records[0], CALIBRATION).article
        assert article is not None, "thresholds leave out one article at a time"
        return len(np.unique(article))

    def left_out(self, measure: MeasureName, where: Bools) -> Floats:
        """Means ``(C,)`` in percent over the runs and the questions ``where``, at ``thresholds``."""
        assert self.thresholds is not None
        means = [
            [_scores_at_threshold(rows, measure, threshold)[where].mean() for threshold in thresholds]
            for rows, thresholds in zip(self.rows, self.thresholds.tolist(), strict=True)
        ]
        return 100 * np.mean(means, axis=0)


@dataclass(frozen=True, eq=False)
class Samples:
    """Systems on the same questions of one split, by label."""

    split: str
    systems: Mapping[str, Sample]
    articles: Ints | None
    """Article number of each question, shape (N,); None if questions are the sampling unit."""
    drawn: Unit = "article"
    """Sampling unit that ``articles`` numbers: articles or passages."""

    @property
    def unit(self) -> Unit:
        return "question" if self.articles is None else self.drawn

    @property
    def first(self) -> Questions:
        return next(iter(self.systems.values())).rows[0]

    @property
    def rules(self) -> str:
        """Clause on how answers are compared, "" for English."""
        return next(iter(self.systems.values())).records[0].facts(self.split).rules

    @property
    def cautions(self) -> list[str]:
        """Notes on what makes scores better, or intervals narrower, than they seem."""
        samples = self.systems.values()
        scored = (
            (rows.folder, record, self.split)
            for sample in samples
            for record, rows in zip(sample.records, sample.rows, strict=True)
        )
        return [
            *([SINGLE_RUN] if any(len(sample.rows) == 1 for sample in samples) else []),
            *([FITTED] if self.split == CALIBRATION else []),
            *overlap_notes(scored),
        ]

    def where(self, measure: MeasureName) -> Bools:
        """Mask of the questions that a measure averages over."""
        return measured(self.first, measure)

    def testable(self, where: Bools) -> bool:
        """Whether there are several sampling units among the questions ``where``."""
        return int(where.sum() if self.articles is None else len(np.unique(self.articles[where]))) > 1

    def scores(self, label: str, measure: MeasureName, where: Bools | None = None) -> Floats:
        """Scores ``(R, n)`` of the questions ``where``; RunError if the rows lack the measure."""
        scores = self.systems[label].scores(measure)
        if scores is None:
            raise RunError(self.lacking(measure))
        return scores[:, self.where(measure) if where is None else where]

    def lacking(self, measure: MeasureName) -> str:
        """Whose rows lack the measure, or why all do, and the remedy; "" if none do."""
        lacking = [sample for sample in self.systems.values() if sample.scores(measure) is None]
        if not lacking:
            return ""
        kinds = np.unique(self.first.answerable).tolist()
        if (measure == "auroc" and len(kinds) < 2) or (measure == "forced_f1" and kinds == [False]):
            only = "answerable" if kinds[0] else "unanswerable"
            return f"{self.split} has only {only} questions, so no {MEASURES[measure]}"
        folders = listed([str(sample.rows[0].folder) for sample in lacking])
        adopted = {sample.records[0].adopted for sample in lacking}
        needed = "" if measure == "forced_f1" else " with null odds (qa-arch adopt ... --na-prob)"
        needed += "" if measure == "auroc" else " from a file that answers every question"
        remedies = [
            *(["score the run again"] if False in adopted else []),
            *([f"adopt answers{needed}"] if True in adopted else []),
        ]
        return f"{folders}: no {MEASURES[measure]} in the rows; {', '.join(remedies)}, or leave them out"

    def interval(self, label: str, measure: MeasureName) -> Interval:
        return mean_interval(self.scores(label, measure), self._articles_of(self.where(measure)))

    def contrast(
        self,
        weights: Mapping[str, float],
        measure: MeasureName,
        *,
        where: Bools | None = None,
        pairs: Sequence[int] | None = None,
    ) -> Effect:
        """Weighted sum of the systems' means: a difference, or for example a main effect.

        With ``pairs``, run r of the last of two systems was derived from run ``pairs[r]`` of the first.
        """
        where = self.where(measure) if where is None else where
        scores = [weight * self.scores(label, measure, where) for label, weight in weights.items()]
        if pairs is not None:
            # Weighted -1 and 1, the two are one system of differences, in which what a pair shares cancels.
            scores = [scores[0][list(pairs)] + scores[1]]
        left_out, counted = [], 0
        if measure in AT_THRESHOLD and self._varies_threshold([*weights]):
            parts = [
                weight * self.systems[label].left_out(measure, where) for label, weight in weights.items()
            ]
            left_out = np.sum(parts, axis=0).tolist()
            counted = self.systems[next(iter(weights))].calibration_articles  # all systems have the same
        articles = self._articles_of(where)
        return contrast(scores, articles=articles, left_out=left_out, calibration_units=counted)

    def _articles_of(self, where: Bools) -> Ints | None:
        return None if self.articles is None else self.articles[where]

    def _varies_threshold(self, labels: Sequence[str]) -> bool:
        """Whether the variance over calibration articles is known: all systems must have the same ones."""
        samples = [self.systems[label] for label in labels]
        splits = {record.fingerprint(CALIBRATION) for sample in samples for record in sample.records}
        counts = {0 if sample.thresholds is None else sample.thresholds.shape[1] for sample in samples}
        return self.split != CALIBRATION and len(splits) == len(counts) == 1 and 0 not in counts


def measured(rows: Questions, measure: MeasureName) -> Bools:
    """Mask of the questions that a measure averages over."""
    return rows.answerable if measure == "forced_f1" else np.ones(len(rows), dtype=bool)


def samples_of(
    systems: Sequence[System], split: str, unit: Unit | None = None, questions: QuestionSet | None = None
) -> Samples:
    """Load the rows of ``systems``, with their ``drawn_articles``; RunError if they are not comparable, or if
    a seed occurs twice."""
    for system in systems:
        require_distinct_seeds(system, split)
    runs = [run for system in systems for run in system.runs]
    require_same_measure(runs, split)
    loaded = load_aligned(runs, split)
    remaining = iter(loaded)
    known = {
        system.label: Sample([record for _, record in system.runs], [next(remaining) for _ in system.runs])
        for system in systems
    }
    return Samples(split, known, drawn_articles(loaded, unit, questions))


def drawn_articles(
    rows: Sequence[Questions], unit: Unit | None, questions: QuestionSet | None = None
) -> Ints | None:
    """Article number of each question, from the rows or the scored set ``questions``; None if questions are
    the sampling unit.

    Articles are the unit if ``unit`` says so, or by default if there are several. RunError if ``unit`` asks
    for articles and there are none, or a single one; ConfigError for any other unit.
    """
    unit = convert(Literal["question", "article"] | None, unit, "unit")
    if unit == "question":
        return None
    # All rows are of the same questions: the articles of any run are those of all.
    numbers = next((run.article for run in rows if run.article is not None), None)
    if questions is not None:
        numbers = np.array(questions.article_numbers)
    if numbers is not None and len(np.unique(numbers)) > 1:
        return numbers
    if unit == "article" and numbers is None:
        raise RunError(
            f"{rows[0].folder}: the rows lack the article of a question; name the scored set (--data FILE) or"
            " score the run again (qa-arch evaluate --run)"
        )
    if unit == "article":
        raise RunError(
            f"{rows[0].folder}: all questions come from one article, which allows no intervals over articles;"
            " compare over questions (--unit question)"
        )
    return None


def _scores(rows: Questions, measure: MeasureName) -> Floats | None:
    if measure == "auroc":
        return auroc_values(-rows.null_odds, rows.answerable)
    if measure in AT_THRESHOLD:
        return np.asarray(getattr(rows, measure))
    # An adopted system hides the span behind an abstention; an unanswerable question needs none.
    if np.isnan(rows.span_f1[rows.answerable]).any():
        return None
    if measure == "aurc":
        if np.isnan(rows.null_odds).all():
            return None
        return area_values(rows.null_odds, rows.span_f1, rows.answerable)
    return np.where(rows.answerable, rows.span_f1, np.nan) if rows.answerable.any() else None


def _scores_at_threshold(rows: Questions, measure: MeasureName, threshold: float) -> Floats:
    """Scores of the answers at a null threshold, shape (N,)."""
    spans = rows.span_f1 if measure == "f1" else rows.span_exact
    return np.where(rows.null_odds > threshold, ~rows.answerable, spans)


def _jackknife_thresholds(record: RunRecord, rows: Questions) -> Floats | None:
    """Null thresholds ``(C,)`` of one run, fitted without each calibration article (or group) in turn."""
    fitted = record.threshold
    # Another threshold may answer any question, so the scores of all spans must be known.
    if fitted is None or fitted.value is None or np.isnan(rows.span_f1).any():
        return None
    if not np.allclose(_scores_at_threshold(rows, "f1", fitted.value), rows.f1):
        return None  # scored at another threshold
    try:
        fitted_on = load_questions(rows.folder, record, CALIBRATION)
    except RunError:
        return None
    if fitted_on.article is None or np.isnan(fitted_on.span_f1).any():
        return None
    groups = np.unique(fitted_on.article, return_inverse=True)[1] % GROUPS  # an article each, if few
    columns = (fitted_on.null_odds, fitted_on.span_f1, fitted_on.answerable)
    thresholds = []
    for group in range(int(groups.max()) + 1):
        odds, spans, answerable = (values[groups != group].tolist() for values in columns)
        thresholds.append(fit_threshold(odds, spans, answerable, fitted.prior, fitted.width))  # as recorded
    return np.array(thresholds) if len(thresholds) > 1 else None


@dataclass(frozen=True)
class Difference:
    """A row of the table of effects."""

    name: str
    """Label of the system, or name of the contrast."""
    measure: MeasureName
    effect: Effect
    p: float | None = None
    """p-value corrected for the family it was tested in; None: not corrected."""

    @property
    def figures(self) -> dict[str, float | None]:
        """Values of ``delta_columns``, ``P_VALUE`` and ``P_HOLM``."""
        return {
            "delta": round(self.effect.delta, PLACES),
            **interval_figures("delta", self.effect.interval),
            "p": round(self.effect.p, PLACES),
            "p_holm": rounded(self.p),
        }


def effects(
    samples: Samples,
    baseline: str | Mapping[str, Mapping[str, float]],
    measure: MeasureName = "f1",
    correction: Sequence[str] | None = HOLM,
    *,
    where: Bools | None = None,
    paired: bool = False,
) -> list[Difference]:
    """Differences in ``measure`` of every other system from ``baseline``, or every contrast that ``baseline``
    names (name -> weight of each system), over the questions ``where`` (default: all of the measure).

    ``correction`` is that of ``corrected``. With ``paired``, each run was derived from the baseline's run of
    the same seed and is compared with it.
    """
    measure = convert(MeasureName, measure, "measure")
    if isinstance(baseline, str):
        others = [label for label in samples.systems if label != baseline]
        baseline = {label: {baseline: -1, label: 1} for label in others}  # in the order of _same_seeds
    rows = []
    for name, weights in baseline.items():
        pairs = _same_seeds(samples, *weights) if paired else None
        effect = samples.contrast(weights, measure, where=where, pairs=pairs)
        rows.append(Difference(name, measure, effect))
    return corrected(rows, correction)


def corrected(rows: Sequence[Difference], correction: Sequence[str] | None = HOLM) -> list[Difference]:
    """Rows with p-values corrected as one family of tests.

    ``correction`` names rows that are tested in this order, fixed in advance, each only if all before it are
    significant, and all others after them by Holm: over all rows if it names none (``HOLM``). None: no
    correction. ConfigError for an unknown name.
    """
    if correction is None:
        return list(rows)
    names = [row.name for row in rows]
    if unknown := [name for name in correction if name not in names]:
        raise ConfigError(f"order: '{unknown[0]}' is not one of the systems compared ({', '.join(names)})")
    # Each row of the order is a family of its own; all others are the last family.
    rest = [place for place, name in enumerate(names) if name not in correction]
    families = [*([names.index(name)] for name in correction), rest]
    adjusted = in_order([[rows[place].effect.p for place in family] for family in families])
    p_values = {
        place: p
        for family, own in zip(families, adjusted, strict=True)
        for place, p in zip(family, own, strict=True)
    }
    return [replace(row, p=p_values[place]) for place, row in enumerate(rows)]


def _same_seeds(samples: Samples, baseline: str, label: str) -> list[int]:
    """Index of the baseline's run with the same seed, for each run of the system."""
    seeds, others = ([record.seed for record in samples.systems[name].records] for name in (baseline, label))
    if unmatched := sorted(set(others) - set(seeds)):
        raise RunError(f"{label}: no run of {baseline} has the seed {unmatched[0]}")
    return [seeds.index(seed) for seed in others]


def rounded(value: float | None) -> float | None:
    """Round a value to the decimals that tables keep."""
    return None if value is None else round(float(value), PLACES)


def mean_figures(key: str, scores: Floats) -> dict[str, float | None]:
    """Mean and standard deviation over the runs of scores ``(R, N)``."""
    means = scores.mean(1)
    sd = means.std(ddof=1) if len(means) > 1 else None
    return {f"{key}_mean": rounded(means.mean()), f"{key}_sd": rounded(sd)}


Missing = dict[tuple[str, ...], list[str]]
"""Keys of the means that are left empty, by the runs that lack their values."""


def values_of_all(key: str, values: Mapping[str, Any], missing: Missing) -> list[Any]:
    """Values by run for a mean over all of them; empty, and noted in ``missing``, if only some have one."""
    # A mean over the others would be of fewer runs than the table says.
    lacking = tuple(run for run, value in values.items() if value is None)
    if 0 < len(lacking) < len(values):
        missing.setdefault(lacking, []).append(key)
    return [] if lacking else list(values.values())


def missing_notes(missing: Missing, headings: Mapping[str, str]) -> list[str]:
    """Notes on the ``missing`` means that have one of the ``headings``."""
    named: dict[str, dict[str, None]] = {}
    for runs, keys in missing.items():
        if names := "; ".join(dict.fromkeys(headings[key] for key in keys if key in headings)):
            named.setdefault(names, {}).update(dict.fromkeys(runs))
    return [f"no mean of {names}: missing in {listed([*runs])}" for names, runs in named.items()]


def interval_figures(key: str, interval: Interval) -> dict[str, float]:
    """Ends of a 95% interval."""
    return {f"{key}_95_{end}": round(value, PLACES) for end, value in interval._asdict().items()}


def mean_column(key: str, heading: str, *, weight: int = 0) -> Column:
    """Column of a mean, with its standard deviation over seeds if there are several."""

    def spread(mean: float, sd: float | None) -> str:
        return f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}"

    return number(key, heading, spread, (f"{key}_mean", f"{key}_sd"), weight=weight)


def interval_column(key: str, sign: str = "", *, weight: int) -> Column:
    def bounds(low: float, high: float) -> str:
        return f"{low:{sign}.2f} to {high:{sign}.2f}"

    keys = (f"{key}_95_low", f"{key}_95_high")
    return number(f"{key}_interval", "95% interval", bounds, keys, weight=weight)


def delta_columns(heading: str) -> list[Column]:
    """Columns of a difference and its interval, which a narrow terminal keeps longer than the two means."""
    delta = number("delta", heading, lambda delta: f"{delta:+.2f}", weight=2)
    return [delta, interval_column("delta", "+", weight=2)]


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


P_VALUE = number("p", "p", p_value, weight=1)
P_HOLM = number("p_holm", "p, Holm", p_value, weight=2)
