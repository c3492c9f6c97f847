"""Records as the plain value that the page reads: runs, systems, scored sets and their figures.

A scored set has rows of questions, breakdowns, curves, and tests against a baseline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qa_arch.errors import RunError
from qa_arch.metrics.confidence import Reliability, answerable_confidence, reliability, thresholds
from qa_arch.metrics.significance import holm
from qa_arch.metrics.squad import score_questions
from qa_arch.records import (
    CALIBRATED,
    CALIBRATION,
    DEV,
    GIVEN,
    MARGIN_0,
    MODEL,
    NEVER_NULL,
    ORACLE,
    QUESTIONS,
    TRAIN,
    Epoch,
    Measure,
    Point,
    RunRecord,
    Runs,
    SplitFacts,
    questions_folder,
)
from qa_arch.results.columns import Scored, by_measure, comparison, figures, named
from qa_arch.results.comparisons import FITTED
from qa_arch.results.questions import (
    Breakdown,
    Mistakes,
    Questions,
    breakdowns,
    load_questions,
    mistakes,
)
from qa_arch.results.samples import UNITS, MeasureName, Sample, Samples, drawn_articles
from qa_arch.results.summary import finite
from qa_arch.results.systems import (
    System,
    differing,
    find_system,
    fingerprints,
    group_by_system,
    labelled,
    whole_config,
)
from qa_arch.types.text import QuestionSet

FIGURES = (
    "exact",
    "f1",
    "HasAns_exact",
    "HasAns_f1",
    "NoAns_exact",
    "NoAns_f1",
    "threshold",
    "answerable_precision",
    "answerable_recall",
)
POINTS = (CALIBRATED, NEVER_NULL, MARGIN_0, ORACLE, GIVEN)
EPOCH = ("train_loss", "calibration_loss", *(f"calibration_{name}" for name in ("exact", "f1", "spans_f1")))
LANGUAGE_EPOCH = ("train_loss", "calibration_loss", "calibration_perplexity")
TESTED = 24
"""Systems that are tested against the baseline; beyond that the correction leaves little to find."""
SPANS: Literal["spans"] = "spans"
MEASURES: tuple[MeasureName, ...] = ("exact", "f1", SPANS)
"""What the page can be switched to; the last where some questions have no answer, else it is F1."""


@dataclass
class Collected:
    """``value`` is what goes into the page as it is; ``sets`` hold the rows still to be packed."""

    value: dict[str, Any]
    sets: list[ScoredSet]
    problems: list[str]


def collect(
    runs: Runs,
    *,
    questions: QuestionSet | None = None,
    baseline: str | None = None,
    types: Mapping[str, str] | None = None,
    columns: Sequence[str] = (),
) -> Collected:
    """Everything that can be shown of ``runs``; ``questions`` are the texts of one of the scored sets.

    ``types`` are classes of questions by id, ``columns`` (keys of ``results.columns``) stand in the table
    beside the page's own. Runs without rows of questions keep their scores, and the
    page says what is missing. RunError where no run was scored on ``questions``, where ``types`` are of
    other questions, or no system of any set is called ``baseline``. Where a set alone has no such system,
    or several, it goes without tests, and the page and ``problems`` say so.
    """
    groups = group_by_system(runs)
    order = {id(record): g for g, group in enumerate(groups) for _, record in group.runs}
    problems: list[str] = []
    sets = scored_sets(runs, questions, types, problems)
    members = [list(dict.fromkeys(order[id(runs[number][1])] for number in scored.runs)) for scored in sets]
    shown = []
    for scored, (reference, why) in zip(sets, find_baselines(baseline, groups, members), strict=True):
        if why and scored.rows:
            problems.append(f"--baseline, on {scored.title}: {why}; not tested there")
        requested = {str(number): _columns(scored, runs, number, columns) for number in scored.runs}
        shown.append({**_set(scored, runs, order, reference, why), "columns": requested})
    value = {
        "runs": [_run(folder, record, order[id(record)]) for folder, record in runs],
        "groups": [_group(group, groups) for group in groups],
        "sets": shown,
        "askedColumns": [{"key": c.key, "head": c.heading, "text": c.left} for c in named(columns)],
    }
    return Collected(value, sets, problems)


def _columns(scored: ScoredSet, runs: Runs, number: int, keys: Sequence[str]) -> dict[str, Any]:
    """The figures of one run in the columns that were asked for."""
    folder, record = runs[number]
    row = Scored(record.model, scored.split, record.compared_point(scored.split), record, folder)
    computed = figures(row, keys)
    return {key: computed.get(key) for key in keys}


def _run(folder: Path, record: RunRecord, group: int) -> dict[str, Any]:
    scores = {
        split: {name: _figures(points[name]) for name in POINTS if name in points}
        for split, points in record.scores.items()
    }
    return {
        "name": folder.resolve().name,
        "folder": str(folder),
        "experiment": record.name,
        "group": group,
        "model": record.model,
        "seed": record.seed,
        "status": record.status,
        "error": record.error.strip().splitlines()[-1] if record.error and record.error.strip() else None,
        "created": record.created,
        "commit": record.commit and record.commit[:10] + ("+" if record.dirty else ""),
        "config": record.config_hash[:10],
        "device": f"{record.device.kind or '?'}, {record.device.name or '?'}",
        "strategy": _strategy(record),
        "precision": record.setting("trainer", "precision"),
        "batch": record.batch.global_size,
        "train": record.facts(TRAIN).questions,
        "parameters": record.parameters.total,
        "fit": record.seconds.fit,
        "predict": record.seconds.predict,
        "memory": record.peak_memory_mb,
        "rate": record.examples_per_second,
        "margin": record.threshold.value if record.threshold else None,
        "weights": (folder / MODEL).is_dir(),
        "matching": "match" in record.parameters.blocks,
        "fitted_on": record.threshold.fitted_on if record.threshold else None,
        "epochs": [{key: finite(epoch.value(key)) for key in EPOCH} for epoch in record.epochs],
        "best": record.best_epoch,
        "scores": scores,
    }


def _strategy(record: RunRecord) -> str:
    """How training was spread: the device alone, or how many and by what."""
    devices = record.batch.devices or 1
    named = record.strategy or record.setting("trainer", "strategy")
    if named and named not in ("auto", "single"):
        return f"{named} × {devices}"
    return "single device" if devices == 1 else f"{devices} devices"


def _figures(point: Point) -> dict[str, Any]:
    figures = {key: point.threshold if key == "threshold" else point.metric(key) for key in FIGURES}
    return {key: value for key, value in figures.items() if value is not None}


def _group(group: System, groups: Sequence[System]) -> dict[str, Any]:
    namesakes = [other.record for other in groups if other.record.model == group.record.model]
    place = next(i for i, record in enumerate(namesakes) if record is group.record)
    own = {key: values[place] for key, values in differing(namesakes).items()} if len(namesakes) > 1 else {}
    return {"label": group.label, "model": group.record.model, "settings": own}


def _set(
    scored: ScoredSet,
    runs: Runs,
    order: Mapping[int, int],
    baseline: int | None,
    untested: str | None,
) -> dict[str, Any]:
    by_group: dict[int, list[int]] = {}
    for number in scored.rows:
        by_group.setdefault(order[id(runs[number][1])], []).append(number)
    samples = {
        str(group): Sample([runs[n][1] for n in numbers], [scored.rows[n] for n in numbers])
        for group, numbers in by_group.items()
    }
    measures = [name for name in MEASURES if name != SPANS or scored.about.unanswerable]
    drawn = {str(number): curves(rows) for number, rows in scored.rows.items()}
    return {
        "key": scored.key,
        "split": scored.split,
        "name": scored.about.name or scored.split,
        "protocol": scored.measure.protocol,
        "metric": scored.measure.metric_version,
        "fingerprint": scored.measure.fingerprint[:12],
        "questions": scored.about.questions,
        "unanswerable": scored.about.unanswerable,
        "runs": scored.runs,
        "point": CALIBRATED if scored.measure.protocol == "2.0" else NEVER_NULL,
        "references": _references(scored, runs),
        "curves": drawn,
        "errors": {str(number): result.figures for number, result in scored.mistakes.items()},
        "facets": [
            {
                "key": facet.key,
                "title": facet.title,
                "names": list(facet.names),
                "count": [int((facet.level == level).sum()) for level in range(len(facet.names))],
                "runs": {str(number): by_level(rows, facet) for number, rows in scored.rows.items()},
            }
            for facet in scored.breakdowns
        ],
        "measures": measures,
        "spans": _spans(scored) if SPANS in measures else {},
        **significance(scored, samples, None if baseline is None else str(baseline), measures),
        "note": FITTED if scored.split == CALIBRATION else None,
        "baseline": baseline if baseline in by_group else None,
        "untested": untested,
        "partial": any(scored["area"] is None for scored in drawn.values()),
        "texts": scored.questions is not None,
    }


def _spans(scored: ScoredSet) -> dict[str, float]:
    """By run, F1 on the answerable questions where "no answer" is never allowed."""
    best = {str(number): Sample([], [rows]).scores(SPANS) for number, rows in scored.rows.items()}
    return {number: float(np.nanmean(result)) for number, result in best.items() if result is not None}


def _references(scored: ScoredSet, runs: Runs) -> list[dict[str, Any]]:
    for number in scored.runs:
        if points := runs[number][1].references.get(scored.split):
            return [{"name": name, **_figures(point)} for name, point in points.items()]
    return []


def run_settings(runs: Runs) -> dict[str, Any]:
    """``all``: setting -> value where every run has the same; ``own``: the others, run by run.

    Values are texts. Beside the settings stand the hashes of the data and the versions of the packages.
    """
    of_runs = [
        {key: _text(value) for key, value in whole_config(record).items()}
        | fingerprints(record)
        | {f"version of {name}": version for name, version in record.versions.items()}
        for _, record in runs
    ]
    first = of_runs[0] if of_runs else {}
    same = {key: value for key, value in first.items() if all(own.get(key) == value for own in of_runs)}
    own = [{key: value for key, value in values.items() if key not in same} for values in of_runs]
    return {"all": same, "own": own}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def language_runs(runs: Runs) -> dict[str, Any]:
    """``tables``, as text, of runs that predict the same tokens, and ``curves``: a run's name and epochs."""

    def epoch(of: Epoch) -> dict[str, float | None]:
        return {key: finite(of.value(key)) for key in LANGUAGE_EPOCH}

    tables = [labelled(comparison(group), group) for group in by_measure(runs)]
    seeds = ((system.label, record) for system in group_by_system(runs) for _, record in system.runs)
    return {
        "tables": [
            {
                "title": table.title,
                "heads": [{"text": column.heading, "left": column.left} for column in table.columns],
                "rows": [[column.text(row) for column in table.columns] for row in table.rows],
                "notes": list(table.notes),
            }
            for table in tables
        ],
        "curves": [
            {"label": f"{label}, seed {record.seed}", "epochs": list(map(epoch, record.epochs))}
            for label, record in seeds
            if record.epochs
        ],
    }


@dataclass
class ScoredSet:
    """Questions that runs were scored on, by one protocol and metric: what may be drawn together."""

    split: str
    measure: Measure
    about: SplitFacts
    runs: list[int] = field(default_factory=list)
    rows: dict[int, Questions] = field(default_factory=dict)
    mistakes: dict[int, Mistakes] = field(default_factory=dict)
    breakdowns: list[Breakdown] = field(default_factory=list)
    questions: QuestionSet | None = None

    @property
    def key(self) -> str:
        return f"{self.split}-{self.measure.fingerprint[:8]}-{self.measure.protocol}"

    @property
    def title(self) -> str:
        """What its data is called, and the split where that says more."""
        return ", ".join(dict.fromkeys((self.about.name or self.split, self.split)))


def scored_sets(
    runs: Runs, questions: QuestionSet | None, types: Mapping[str, str] | None, problems: list[str]
) -> list[ScoredSet]:
    """The sets that ``runs`` were scored on: dev first, then those of most runs, calibration last.

    RunError where no run was scored on ``questions``, or ``types`` are of other questions.
    """
    result: dict[tuple[str, Measure], ScoredSet] = {}
    for number, (folder, record) in enumerate(runs):
        for split in record.scores:
            measure = record.measure(split)
            if measure is None:
                continue
            scored = result.setdefault((split, measure), ScoredSet(split, measure, record.facts(split)))
            scored.runs.append(number)
            if split == CALIBRATION and not _only_calibration(folder, record):
                continue
            try:
                scored.rows[number] = load_questions(folder, record, split)
            except RunError as error:
                problems.append(str(error))
    for scored in result.values():
        _align(scored, problems)
        if not scored.rows:
            continue
        if questions is not None and questions.fingerprint == scored.measure.fingerprint:
            scored.questions = questions
        scored.mistakes = {number: mistakes(rows, scored.questions) for number, rows in scored.rows.items()}
        scored.rows = {number: with_spans(rows, scored.questions) for number, rows in scored.rows.items()}
        first = next(iter(scored.rows.values()))
        known = types if types and not types.keys().isdisjoint(first.ids) else None
        scored.breakdowns = breakdowns(first, scored.questions, known)
    if types and not any(facet.key == "class" for scored in result.values() for facet in scored.breakdowns):
        raise RunError("--types: its questions are none of those that the runs were scored on")
    if questions is not None and all(scored.questions is None for scored in result.values()):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on"
        )
    return sorted(result.values(), key=lambda s: (s.split == CALIBRATION, s.split != DEV, -len(s.runs)))


def _only_calibration(folder: Path, record: RunRecord) -> bool:
    """Whether the questions of calibration are all that there is to show, as where dev stays closed."""
    rows = questions_folder(folder, CALIBRATION) / QUESTIONS
    return set(record.scores) == {CALIBRATION} and rows.is_file()


def _align(scored: ScoredSet, problems: list[str]) -> None:
    """Leave out rows that are not of the same questions in the same order as the first run's."""
    first = next(iter(scored.rows.values()), None)
    for number, rows in list(scored.rows.items()):
        if first is not None and rows.ids != first.ids:
            problems.append(f"{rows.folder}: its {scored.split} rows are of other questions; left out")
            del scored.rows[number]


def with_spans(rows: Questions, questions: QuestionSet | None) -> Questions:
    """``rows`` with the scores of the best spans, from the texts where the record does not hold them.

    Without the texts, what an abstained, answerable question's span would have scored is not known:
    NaN, and the curves stop there.
    """
    if rows.span_f1 is not None and rows.span_exact is not None:
        return rows
    if questions is None:
        exact, f1 = (np.where(rows.abstained, np.nan, values) for values in (rows.exact, rows.f1))
        return replace(rows, span_exact=exact, span_f1=f1)
    spans = zip(questions.examples, rows.start.tolist(), rows.end.tolist(), strict=True)
    texts = {e.id: e.context[start:end] if start >= 0 else "" for e, start, end in spans}
    scored = score_questions(questions, texts)
    exact, f1 = (np.array([getattr(score, key) for score in scored], float) for key in ("exact", "f1"))
    return replace(rows, span_exact=exact, span_f1=f1)


def curves(rows: Questions) -> dict[str, Any]:
    """Thresholds, risk, precision and recall of abstaining, and reliability; for SQuAD 1.1 without null."""
    assert rows.span_f1 is not None
    assert rows.span_exact is not None
    by_f1 = thresholds(rows.null_odds, rows.span_f1, rows.answerable)
    by_exact = thresholds(rows.null_odds, rows.span_exact, rows.answerable)
    result: dict[str, Any] = {
        "thresholds": {
            "margin": _rounded(by_f1.margin, 3),
            "coverage": _rounded(by_f1.coverage, 2),
            "risk": _rounded(by_f1.risk, 2),
            "F1": _rounded(by_f1.score, 2),
            "EM": _rounded(by_exact.score, 2),
            "HasAns F1": _rounded(by_f1.has_answer, 2),
            "NoAns F1": _rounded(by_f1.no_answer, 2),
            "precision": _rounded(by_f1.precision, 2),
            "recall": _rounded(by_f1.recall, 2),
        },
        "area": by_f1.area,
    }
    if not rows.answerable.all():
        confidence = answerable_confidence(rows.null_odds)
        result["answerability"] = _reliability(reliability(confidence, rows.answerable))
    if rows.probability is not None:
        given = ~rows.abstained
        result["answers"] = _reliability(reliability(rows.probability[given], rows.exact[given] > 0))
    if rows.confidence is not None:
        result["fitted"] = _reliability(reliability(rows.confidence, rows.exact > 0))
    return result


def by_level(rows: Questions, facet: Breakdown) -> list[list[float | None]]:
    """[EM, F1, F1 of the best spans of the answerable questions] in percent of every level of a facet."""
    assert rows.span_f1 is not None
    all_ = np.ones(len(rows), dtype=bool)
    result = []
    for values, where in ((rows.exact, all_), (rows.f1, all_), (rows.span_f1, rows.answerable)):
        level, levels = facet.level[where], len(facet.names)
        with np.errstate(invalid="ignore"):
            mean = np.bincount(level, values[where], levels) / np.bincount(level, minlength=levels)
        result.append(_rounded(100 * mean, 2))
    return result


def _reliability(result: Reliability) -> dict[str, Any]:
    return {
        "confidence": _rounded(result.confidence, 4),
        "observed": _rounded(result.observed, 4),
        "count": result.count.tolist(),
        "ece": round(result.ece, 4),
    }


def _rounded(values: npt.NDArray, digits: int) -> list[float | None]:
    """JSON has no NaN and no infinity: None."""
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def find_baselines(
    name: str | None, groups: Sequence[System], sets: Sequence[Sequence[int]]
) -> list[tuple[int | None, str | None]]:
    """Of each scored set, given by its groups, the one that ``name`` means among them, or why none.

    RunError where it means none of any set.
    """
    if name is None:
        return [(None, None)] * len(sets)
    result: list[tuple[int | None, str | None]] = []
    for members in sets:
        try:
            group = find_system([groups[g] for g in members], name)
        except RunError as error:
            result.append((None, str(error)))
        else:
            result.append((next(g for g in members if groups[g] is group), None))
    if all(reference is None for reference, _ in result):
        reasons = "; ".join(dict.fromkeys(why for _, why in result if why)) or "no run has scores"
        raise RunError(f"--baseline: {reasons}")
    return result


def significance(
    scored: ScoredSet, known: Mapping[str, Sample], baseline: str | None, measures: Sequence[MeasureName]
) -> dict[str, Any]:
    """``tests``: by measure, intervals of every system (a group's number) whose rows tell it, and tests of
    the others against ``baseline``; ``unit``: what both are over. The figures of ``qa-arch compare``."""
    if not scored.rows:
        return {"tests": {measure: {"intervals": {}, "effects": {}} for measure in measures}, "unit": None}
    articles = drawn_articles(list(scored.rows.values()), None, scored.questions)
    samples = Samples(scored.split, known, articles)
    tests = {measure: _tested(samples, baseline, measure) for measure in measures}
    return {"tests": tests, "unit": UNITS[samples.unit]}


def _tested(samples: Samples, baseline: str | None, measure: MeasureName) -> dict[str, Any]:
    if not samples.testable(samples.where(measure)):
        return {"intervals": {}, "effects": {}}
    known = [label for label, sample in samples.systems.items() if sample.scores(measure) is not None]
    others = [label for label in known if label != baseline][:TESTED] if baseline in known else []
    assert baseline is not None or not others
    effects = {label: samples.effect(str(baseline), label, measure) for label in others}
    corrected = holm([tested.p for tested in effects.values()])
    return {
        "intervals": {label: list(samples.interval(label, measure)) for label in known},
        "effects": {
            label: {"delta": tested.delta, "interval": list(tested.interval), "p": tested.p, "holm": p}
            for (label, tested), p in zip(effects.items(), corrected, strict=True)
        },
    }
