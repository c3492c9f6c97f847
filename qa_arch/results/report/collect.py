"""Collect records into the JSON value that the page reads: runs, systems and scored sets.

A scored set has question rows, breakdowns, curves, and tests against a baseline.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from qa_arch.errors import RunError
from qa_arch.metrics.confidence import Reliability, reliability, thresholds
from qa_arch.metrics.significance import Unit, holm
from qa_arch.records import (
    CALIBRATED,
    CALIBRATION,
    DEV,
    GIVEN,
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    QUESTIONS,
    TRAIN,
    Measure,
    Point,
    RunRecord,
    Runs,
    SplitFacts,
    questions_folder,
)
from qa_arch.results.comparisons import FITTED
from qa_arch.results.errors import Mistakes, mistakes
from qa_arch.results.questions import Breakdown, Questions, breakdowns, load_questions
from qa_arch.results.samples import MeasureName, Sample, Samples, drawn_articles
from qa_arch.results.summary import finite
from qa_arch.results.systems import find_system, fingerprints, group_by_system, whole_config
from qa_arch.types.text import QuestionSet

log = logging.getLogger(__name__)

FIGURES = (
    *("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1"),
    *("threshold", "answerable_precision", "answerable_recall"),
)
POINTS = (CALIBRATED, NEVER_NULL, MARGIN_0, ORACLE, GIVEN)
EPOCH = ("train_loss", "calibration_loss", *(f"calibration_{name}" for name in ("exact", "f1", "spans_f1")))
SPANS: Literal["spans"] = "spans"
MEASURES: tuple[MeasureName, ...] = ("exact", "f1", SPANS)
"""Measures of the page; the last only if some questions have no answer, else it equals F1."""


def collect(
    runs: Runs,
    *,
    questions: QuestionSet | None = None,
    baseline: str | None = None,
    unit: Unit | None = None,
    types: Mapping[str, str] | None = None,
    problems: list[str],
) -> tuple[dict[str, Any], list[ScoredSet]]:
    """Return the JSON value of the page, and the sets whose question rows are still to be packed.

    ``questions`` are the texts of one of the sets. Intervals and tests are over articles if a set has several
    and ``unit`` does not say otherwise. ``types`` maps question ids to classes. Runs without question rows
    keep their scores; what is missing is appended to ``problems``. Raises RunError if no run was scored on
    ``questions``, if ``types`` belong to other questions, or if no set has a system called ``baseline``. A
    set without such a system, or with several, is not tested.
    """
    groups = group_by_system(runs)
    order = {id(record): g for g, group in enumerate(groups) for _, record in group.runs}
    group_of = [order[id(record)] for _, record in runs]
    sets = scored_sets(runs, questions, types, problems)
    set_values, reasons = [], []
    for scored in sets:
        members = [groups[g] for g in dict.fromkeys(group_of[number] for number in scored.runs)]
        reference, reason = None, None
        try:
            reference = groups.index(find_system(members, baseline)) if baseline else None
        except RunError as error:
            reason = str(error)
            reasons.append(reason)
            if scored.rows:
                problems.append(f"--baseline, on {scored.title}: {reason}; not tested there")
        set_values.append({**_set(scored, runs, group_of, reference, unit), "untested": reason})
    if baseline and len(reasons) == len(sets):
        raise RunError(f"--baseline: {'; '.join(dict.fromkeys(reasons)) or 'no run has scores'}")
    value = {
        "runs": [_run(folder, record, group) for (folder, record), group in zip(runs, group_of, strict=True)],
        "groups": [{"label": group.label} for group in groups],
        "sets": set_values,
    }
    return value, sets


def _run(folder: Path, record: RunRecord, group: int) -> dict[str, Any]:
    devices = record.batch.devices or 1
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
        "config": record.run_hash[:10],
        "device": f"{record.device.kind or '?'}, {record.device.name or '?'}",
        "strategy": "single device" if devices == 1 else f"{record.strategy or 'spread'} × {devices}",
        "precision": record.setting("trainer", "precision"),
        "batch": record.batch.global_size,
        "train": record.facts(TRAIN).questions,
        "parameters": record.parameters.total,
        "fit": record.seconds.fit,
        "predict": record.seconds.predict,
        "memory": record.peak_memory_mb,
        "rate": record.examples_per_second,
        "margin": record.threshold.value if record.threshold else None,
        "adopted": record.adopted,
        "trainable": not (record.adopted or record.config.get("compression")),  # train refuses their configs
        "epochs": [{key: finite(epoch.value(key)) for key in EPOCH} for epoch in record.epochs],
        "best": record.best_epoch,
        "scores": scores,
    }


def _figures(point: Point) -> dict[str, Any]:
    flat = {**point.flat(), "exact": point.exact}
    return {key: value for key in FIGURES if (value := finite(flat.get(key))) is not None}


def _set(
    scored: ScoredSet, runs: Runs, group_of: Sequence[int], baseline: int | None, unit: Unit | None
) -> dict[str, Any]:
    by_group: dict[int, list[int]] = {}
    for number in scored.rows:
        by_group.setdefault(group_of[number], []).append(number)
    samples = {
        str(group): Sample([runs[n][1] for n in numbers], [scored.rows[n] for n in numbers])
        for group, numbers in by_group.items()
    }
    measures = [name for name in MEASURES if name != SPANS or scored.facts.unanswerable]
    spans = {number: Sample([], [rows]).scores(SPANS) for number, rows in scored.rows.items()}
    references = (runs[number][1].references.get(scored.split) for number in scored.runs)
    known = {number: rows for number, rows in scored.rows.items() if not np.isnan(rows.null_odds).all()}
    drawn = {str(number): curves(rows) for number, rows in known.items()}
    for key, own in drawn.items():
        if runs[int(key)][1].adopted:  # whose null odds have their own scale
            own.pop("answerability", None)
    return {
        "key": scored.key,
        "split": scored.split,
        "name": scored.facts.name or scored.split,
        "protocol": scored.measure.protocol,
        "metric": scored.measure.metric_version,
        "fingerprint": scored.measure.fingerprint[:12],
        "questions": scored.facts.questions,
        "unanswerable": scored.facts.unanswerable,
        "rules": scored.facts.rules,
        "runs": scored.runs,
        "point": CALIBRATED if scored.measure.protocol == "2.0" else NEVER_NULL,
        "references": [
            {"name": name, **_figures(point)} for name, point in next(filter(None, references), {}).items()
        ],
        "curves": drawn,
        "errors": {str(number): result.figures() for number, result in scored.mistakes.items()},
        "facets": [
            {
                "key": breakdown.key,
                "title": breakdown.title,
                "names": list(breakdown.names),
                "count": np.bincount(breakdown.level, minlength=len(breakdown.names)).tolist(),
                "runs": {str(number): by_level(rows, breakdown) for number, rows in scored.rows.items()},
            }
            for breakdown in scored.breakdowns
        ],
        "measures": measures,
        "spans": {str(n): float(np.nanmean(f1)) for n, f1 in spans.items() if f1 is not None},
        **significance(scored, samples, None if baseline is None else str(baseline), measures, unit),
        "note": FITTED if scored.split == CALIBRATION else None,
        "baseline": baseline if baseline in by_group else None,
        "partial": any(curve["area"] is None for curve in drawn.values()),
        "texts": scored.questions is not None,
    }


def run_settings(runs: Runs) -> dict[str, Any]:
    """``all``: setting -> value shared by every run; ``own``: the other settings, run by run.

    Values are strings. Data hashes and package versions are included.
    """
    per_run = [
        {key: _text(value) for key, value in whole_config(record).items()}
        | fingerprints(record)
        | {f"version of {name}": version for name, version in record.versions.items()}
        for _, record in runs
    ]
    first = per_run[0] if per_run else {}
    same = {key: value for key, value in first.items() if all(own.get(key) == value for own in per_run)}
    own = [{key: value for key, value in values.items() if key not in same} for values in per_run]
    return {"all": same, "own": own}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@dataclass
class ScoredSet:
    """A set that runs were scored on by one protocol and metric, so that their scores are comparable."""

    split: str
    measure: Measure
    facts: SplitFacts
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
        """Name of its data, and the split if it differs."""
        return ", ".join(dict.fromkeys((self.facts.name or self.split, self.split)))


def scored_sets(
    runs: Runs, questions: QuestionSet | None, types: Mapping[str, str] | None, problems: list[str]
) -> list[ScoredSet]:
    """The sets that ``runs`` were scored on: dev first, then those of most runs, calibration last.

    RunError if no run was scored on ``questions``, or ``types`` belong to other questions.
    """
    result: dict[tuple[str, Measure], ScoredSet] = {}
    for number, (folder, record) in enumerate(runs):
        for split in record.scores:
            measure = record.measure(split)
            if measure is None:
                continue
            scored = result.setdefault((split, measure), ScoredSet(split, measure, record.facts(split)))
            scored.runs.append(number)
            if split == CALIBRATION:  # its rows are shown only if it is the only scored set: dev is held out
                rows = questions_folder(folder, CALIBRATION) / QUESTIONS
                if len(record.scores) > 1 or not rows.is_file():
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
        first = next(iter(scored.rows.values()))
        known = types if types and not types.keys().isdisjoint(first.ids) else None
        scored.breakdowns = breakdowns(first, scored.questions, known)
    if types and not any(item.key == "class" for scored in result.values() for item in scored.breakdowns):
        raise RunError("--types: the runs were scored on none of its questions")
    if questions is not None and all(scored.questions is None for scored in result.values()):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on (as language:CODE:FILE, if it was)"
        )
    return sorted(result.values(), key=lambda s: (s.split == CALIBRATION, s.split != DEV, -len(s.runs)))


def _align(scored: ScoredSet, problems: list[str]) -> None:
    """Drop rows that are not of the same questions in the same order as the first run's."""
    first = next(iter(scored.rows.values()), None)
    for number, rows in list(scored.rows.items()):
        if first is not None and rows.ids != first.ids:
            problems.append(f"{rows.folder}: its {scored.split} rows belong to other questions; left out")
            del scored.rows[number]


def curves(rows: Questions) -> dict[str, Any]:
    """Curves of scores, risk, precision and recall over null thresholds, and reliability diagrams."""
    by_f1, area = thresholds(rows.null_odds, rows.span_f1, rows.answerable)
    by_exact, _ = thresholds(rows.null_odds, rows.span_exact, rows.answerable)
    result: dict[str, Any] = {
        "thresholds": {
            name: _rounded(curve, 3 if name == "margin" else 2)
            for name, curve in {**by_f1, "exact": by_exact["score"]}.items()
        },
        "area": area,
    }
    if not rows.answerable.all():
        # The softmax of the best span's score against the null score.
        result["answerability"] = _reliability(reliability(expit(-rows.null_odds), rows.answerable))
    if not np.isnan(rows.probability).all():
        answered = ~rows.abstained
        result["answers"] = _reliability(reliability(rows.probability[answered], rows.exact[answered] > 0))
    if not np.isnan(rows.confidence).all():
        result["fitted"] = _reliability(reliability(rows.confidence, rows.exact > 0))
    return result


def by_level(rows: Questions, breakdown: Breakdown) -> list[list[float | None]]:
    """[EM, F1, F1 of the best spans of the answerable questions] in percent for every level."""
    all_ = np.ones(len(rows), dtype=bool)
    result = []
    for values, where in ((rows.exact, all_), (rows.f1, all_), (rows.span_f1, rows.answerable)):
        level, levels = breakdown.level[where], len(breakdown.names)
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
    """Rounded values, None for NaN and infinity, which JSON lacks."""
    return [round(value, digits) if np.isfinite(value) else None for value in values.tolist()]


def significance(
    scored: ScoredSet,
    known: Mapping[str, Sample],
    baseline: str | None,
    measures: Sequence[MeasureName],
    unit: Unit | None = None,
) -> dict[str, Any]:
    """``tests``: by measure, intervals of every system (by group number) whose rows have it, and tests of the
    others against ``baseline``; ``unit``: their sampling unit. The same figures as ``qa-arch compare``."""
    tests: dict[str, Any] = {measure: {"intervals": {}, "effects": {}} for measure in measures}
    if not scored.rows:
        return {"tests": tests, "unit": None}
    articles = drawn_articles(list(scored.rows.values()), unit, scored.questions)
    samples = Samples(scored.split, known, articles)
    what = f"{'comparing' if baseline in known else 'intervals of'} {len(known)}"
    log.info("%s: %s system%s over %ss", scored.title, what, "s" * (len(known) > 1), samples.unit)
    for measure in measures:
        if not samples.testable(samples.where(measure)):
            continue
        systems = [label for label, sample in known.items() if sample.scores(measure) is not None]
        others = [label for label in systems if label != baseline] if baseline in systems else []
        effects = {label: samples.effect(str(baseline), label, measure) for label in others}
        corrected = holm([effect.p for effect in effects.values()])
        tests[measure] = {
            "intervals": {label: list(samples.interval(label, measure)) for label in systems},
            "effects": {
                label: {"delta": effect.delta, "interval": list(effect.interval), "p": effect.p, "holm": p}
                for (label, effect), p in zip(effects.items(), corrected, strict=True)
            },
        }
    return {"tests": tests, "unit": f"{samples.unit}s"}
