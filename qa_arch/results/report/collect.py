"""Records as the plain value that the page reads: runs, systems, scored sets and their figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.records import (
    CALIBRATED,
    CALIBRATION,
    GIVEN,
    MARGIN_0,
    MODEL,
    NEVER_NULL,
    ORACLE,
    TRAIN,
    Epoch,
    Point,
    RunRecord,
    Runs,
)
from qa_arch.results.columns import Scored, by_measure, comparison, figures, named
from qa_arch.results.comparisons import FITTED
from qa_arch.results.questions import Questions
from qa_arch.results.report.sets import (
    MEASURES,
    SPANS,
    ScoredSet,
    by_level,
    curves,
    find_baselines,
    scored_sets,
    scores,
    significance,
)
from qa_arch.results.summary import finite
from qa_arch.results.systems import System, differing, fingerprints, group_by_system, labelled, whole_config
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
    by_group: dict[int, list[Questions]] = {}
    for number, rows in scored.rows.items():
        by_group.setdefault(order[id(runs[number][1])], []).append(rows)
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
        "tests": significance(by_group, baseline, measures),
        "note": FITTED if scored.split == CALIBRATION else None,
        "baseline": baseline if baseline in by_group else None,
        "untested": untested,
        "partial": any(scored["area"] is None for scored in drawn.values()),
        "texts": scored.questions is not None,
    }


def _spans(scored: ScoredSet) -> dict[str, float]:
    """By run, F1 on the answerable questions where "no answer" is never allowed."""
    best = {str(number): scores(rows, SPANS) for number, rows in scored.rows.items()}
    return {number: float(result.mean()) for number, result in best.items() if result is not None}


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
