"""Systems on several test sets: a table of systems by sets, and one of the tests behind it.

Runs are matched to a set by its fingerprint, adopted and trained runs alike. Sets of SQuAD 1.1 are compared
by answerable F1, and so is the dev set then, so that a drop from dev does not include abstaining.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.abstention import Floats, Ints
from qa_arch.metrics.significance import Unit
from qa_arch.records import CALIBRATION, DEV, ORACLE, TRAIN, Measure, RunRecord, SplitFacts
from qa_arch.results import effects
from qa_arch.results.columns import ece, overlap_notes
from qa_arch.results.effects import SINGLE_RUN, Difference, MeasureName, Missing, Sample, Samples, rounded
from qa_arch.results.systems import (
    System,
    load_questions,
    require_aligned,
    require_distinct_seeds,
    require_one_measure,
)
from qa_arch.results.tables import Column, Table, number, text, two_decimals
from qa_arch.terminal import counted

OWN_DEV = "own_dev"
"""Key of the scores on the dev sets of the runs, which no set may be called."""


@dataclass(frozen=True)
class SuiteSet:
    """A set of a suite, with its sampling unit and published scores."""

    name: str
    facts: SplitFacts
    unit: Unit | None = None
    """Sampling unit; None: articles if there are several."""
    passages: Ints | None = None
    """Passage number of each question, shape (N,), if passages are the sampling unit."""
    contrasts: Ints | None = None
    """Contrast set number of each question, shape (N,), if some sets have several questions."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Published F1 by system."""

    @property
    def measure(self) -> MeasureName:
        """Measure that systems are compared by on the set."""
        return "forced_f1" if self.facts.protocol == "1.1" else "f1"

    def split_in(self, record: RunRecord) -> str | None:
        """Name of the set in the run's record; None if the run was not scored on it, or was trained or fitted
        on it."""
        split = record.split_of(str(self.facts.fingerprint))
        return None if split in (TRAIN, CALIBRATION) else split


def suite_tables(
    systems: Sequence[System], sets: Sequence[SuiteSet], baseline: str | None = None, *, title: str = "Suite"
) -> list[Table]:
    """Table of ``systems`` by ``sets``, and a table with, for each set, intervals, drop from dev, differences
    from ``baseline`` (a label) with p-values corrected over all sets (Holm), calibration error and threshold.

    RunError if no system was scored on any set.
    """
    by_set = [_scored_systems(systems, test) for test in sets]
    if not any(samples.systems for samples in by_set):
        raise RunError("none of the runs was scored on any set of the suite")
    return [
        _score_table(systems, sets, by_set, title),
        _test_table(systems, sets, by_set, baseline, f"{title}: intervals, tests and calibration"),
    ]


def _scored_systems(systems: Sequence[System], test: SuiteSet) -> Samples:
    """Samples of the systems that were scored on the set; RunError if they allow no interval, or are not
    comparable."""
    known: dict[str, Sample] = {}
    measures: dict[Path, Measure] = {}
    for system in systems:
        scored = [(*run, split) for run in system.runs if (split := test.split_in(run[1]))]
        require_distinct_seeds(System(system.label, tuple((folder, record) for folder, record, _ in scored)))
        if scored:
            known[system.label] = Sample([r for _, r, _ in scored], [load_questions(*run) for run in scored])
        measures |= {f: measure for f, record, split in scored if (measure := record.measure(split))}
    rows = [row for sample in known.values() for row in sample.rows]
    require_one_measure(measures)
    require_aligned(rows, test.name)
    if test.passages is not None:
        samples = Samples(test.name, known, test.passages, "passage")
    else:
        samples = Samples(test.name, known, effects.drawn_articles(rows, test.unit) if rows else None)
    if rows and not samples.testable(samples.where(test.measure)):
        raise RunError(
            f"{test.name}: an interval over {samples.unit}s needs several, and the scores are of a single"
            f" {samples.unit}; change the set's unit, or leave it out of the suite"
        )
    return samples


def _score_table(
    systems: Sequence[System], sets: Sequence[SuiteSet], by_set: Sequence[Samples], title: str
) -> Table:
    rows: list[dict[str, Any]] = []
    shown = {test.facts.fingerprint for test in sets}
    missing: Missing = {}
    for system in systems:
        records = [r for _, r in system.runs]
        # A run that was scored on none of the sets is not missed in the means.
        records = [r for r in records if any(test.split_in(r) for test in sets)] or records
        seeds = {r.seed for r in records}
        row: dict[str, Any] = {"model": system.label, "seeds": len(seeds)}
        # A run's own dev set has a column unless it is one of the sets shown.
        trained = [r for r in records if not r.adopted and r.fingerprint(DEV) not in shown]
        points = [(r.seed, point) for r in trained if (point := r.compared_point(DEV))]
        dev = [(seed, point.f1) for seed, point in points if point.f1 is not None]
        scored = {OWN_DEV: dev}
        for test, samples in zip(sets, by_set, strict=True):
            if sample := samples.systems.get(system.label):
                f1 = samples.scores(system.label, test.measure).mean(1)
                scored[test.name] = [(r.seed, x) for r, x in zip(sample.records, f1, strict=True)]
        for key, own in scored.items():
            lacking = sorted(seeds - {seed for seed, _ in own})
            values: dict[str, Any] = {str(run): value for run, (_, value) in enumerate(own)}
            values |= dict.fromkeys(f"{system.label}, seed {seed}" for seed in lacking)
            if known := effects.values_of_all(key, values, missing):
                row |= effects.mean_figures(key, np.array(known)[:, None])
        rows.append(row)
    for name in dict.fromkeys(name for test in sets for name in test.published):
        figures = {f"{test.name}_mean": test.published.get(name) for test in sets}
        rows.append({"model": f"{name} (published)"} | figures)
    columns = [text("model", "model"), number("seeds", "seeds")]
    if any(f"{OWN_DEV}_mean" in row for row in rows):
        columns.append(effects.mean_column(OWN_DEV, "dev of the run", weight=-1))
    columns += [effects.mean_column(test.name, test.name) for test in sets]
    notes = ["F1, mean ± standard deviation over seeds"]
    for test in sets:
        facts, code = test.facts, test.facts.details.get("language")
        language = f", by the rules of language {code}" if code else ""
        spans, at = ", of the best spans", " at the null threshold of calibration, if any"
        forced = spans if test.measure == "forced_f1" else at
        nothing = f", {facts.unanswerable:,} of them unanswerable" if facts.unanswerable else ""
        skipped = f", faulty records left out: {facts.skipped:,}" if facts.skipped else ""
        counts = f"{counted(facts.questions or 0, 'question')}{nothing}{skipped}"
        notes.append(f"{test.name}: {counts}; F1{forced}{language}")
    headings = {OWN_DEV: "dev of the run", **{test.name: test.name for test in sets}}
    return Table(title, columns, rows, [*notes, *effects.missing_notes(missing, headings)])


def _test_table(
    systems: Sequence[System],
    sets: Sequence[SuiteSet],
    by_set: Sequence[Samples],
    baseline: str | None,
    title: str,
) -> Table:
    rows: list[dict[str, Any]] = []
    tested: list[tuple[dict[str, Any], Difference]] = []
    missing: Missing = {}
    for test, samples in zip(sets, by_set, strict=True):
        for label, sample in samples.systems.items():
            scores = samples.scores(label, test.measure)
            row: dict[str, Any] = {"set": test.name, "model": label, "seeds": len(sample.rows)}
            row |= effects.mean_figures("f1", scores)
            row |= effects.interval_figures("f1", samples.interval(label, test.measure))
            row |= _transfer_figures(test, sample, scores.mean(1).tolist(), missing)
            rows.append(row)
        if baseline and baseline in samples.systems:
            own = {row["model"]: row for row in rows if row["set"] == test.name}
            tested += [(own[row.name], row) for row in effects.effects(samples, baseline, test.measure, None)]
    # Corrected over all sets together: each set is one more chance to find something.
    for (row, _), difference in zip(tested, effects.corrected([row for _, row in tested]), strict=True):
        row |= difference.figures
    columns: list[Column] = [text("set", "set"), text("model", "model"), number("seeds", "seeds", weight=-1)]
    columns += [effects.mean_column("f1", "F1", weight=3), effects.interval_column("f1", weight=-1)]
    columns.append(number("from_dev", "from dev", lambda drop: f"{drop:+.2f}", weight=1))
    if baseline:
        columns += [*effects.delta_columns("Δ"), effects.P_VALUE, effects.P_HOLM]
    contrasts = any(row["consistency"] is not None for row in rows)
    if contrasts:
        columns.append(number("consistency", "consistency", two_decimals))
    columns += [number("ece", "ECE", weight=-1), number("aurc", "AURC", weight=-1)]
    columns.append(number("threshold_loss", "lost by threshold", two_decimals, weight=-1))
    units = dict.fromkeys(f"{samples.unit}s" for samples in by_set if samples.systems)
    notes = [
        f"intervals over {' or '.join(units)}; from dev: F1 minus F1 on the run's dev set, both answerable"
        " F1 for sets of SQuAD 1.1; none for a set of 2.0 if dev is of 1.1",
        *(
            [f"Δ: against {baseline}; Holm over {len(tested)} comparisons, all sets together"]
            if tested
            else []
        ),
        "ECE of fitted confidences; AURC: risk over coverage of the best spans; lost by threshold: F1 at the"
        " set's own best null threshold minus F1 at that of calibration",
        *(
            ["consistency: % of the contrast sets (a question and its contrasts) with every answer exact"]
            if contrasts
            else []
        ),
        *([SINGLE_RUN] if any(row["seeds"] == 1 for row in rows) else []),
        *overlap_notes(
            (folder, record, split)
            for test in sets
            for system in systems
            for folder, record in system.runs
            if (split := test.split_in(record))
        ),
        *effects.missing_notes(missing, {column.key: column.heading for column in columns}),
    ]
    return Table(title, columns, rows, notes)


def _transfer_figures(
    test: SuiteSet, sample: Sample, f1: Sequence[float], missing: Missing
) -> dict[str, Any]:
    """Means over the runs of the drop from dev, consistency, calibration error, AURC and F1 lost by the
    threshold."""
    values: dict[str, dict[str, float | None]] = {
        key: {} for key in ("from_dev", "consistency", "ece", "aurc", "threshold_loss")
    }
    risk = sample.scores("aurc")
    for n, (record, rows, value) in enumerate(zip(sample.records, sample.rows, f1, strict=True)):
        split, dev, run = test.split_in(record) or "", _dev_f1(record, test.measure), str(rows.folder)
        best, own = record.point(split, ORACLE), record.compared_point(split)
        values["from_dev"][run] = None if split == DEV or dev is None else value - dev
        values["threshold_loss"][run] = (best.f1 or 0.0) - (own.f1 or 0.0) if best and own else None
        if test.contrasts is not None:
            exact = rows.span_exact if test.measure == "forced_f1" else rows.exact
            values["consistency"][run] = _consistency(test.contrasts, exact)
        values["ece"][run] = ece(rows.confidence, rows.exact)
        values["aurc"][run] = None if risk is None else float(risk[n].mean())  # mean influence: the area
    means = {key: effects.values_of_all(key, own, missing) for key, own in values.items()}
    return {key: rounded(fmean(known)) if known else None for key, known in means.items()}


def _consistency(contrasts: Ints, exact: Floats) -> float:
    """Contrast consistency (Gardner et al. 2020): % of the contrast sets, of several questions each, in which
    every answer is exact."""
    questions, right = np.bincount(contrasts), np.bincount(contrasts, exact)
    return float(100 * np.mean((right == questions)[questions > 1]))


def _dev_f1(record: RunRecord, measure: MeasureName) -> float | None:
    """F1 on the run's dev set, of the best spans, or at the null threshold, which SQuAD 1.1 does without."""
    if measure == "forced_f1":
        return record.forced_f1(DEV)
    point = record.compared_point(DEV)
    return point.f1 if point and point.protocol == "2.0" else None
