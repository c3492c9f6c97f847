"""Records as the plain value that the page reads: runs, systems, scored sets and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qa_arch.errors import RunError
from qa_arch.metrics.significance import bootstrap_interval, effect, holm
from qa_arch.results.comparison import Measure, Runs, measure_of
from qa_arch.results.errors import Mistakes, mistakes
from qa_arch.results.facets import Facet, facets
from qa_arch.results.groups import Group, differing, group_runs
from qa_arch.results.questions import CALIBRATION, Questions, load_questions, questions_folder
from qa_arch.results.record import QUESTIONS, RunRecord
from qa_arch.results.report.curves import by_level, curves, with_spans
from qa_arch.results.summary import finite
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
POINTS = ("calibrated", "never_null", "margin_0", "oracle", "given")
EPOCH = ("train_loss", "calibration_loss", "calibration_exact", "calibration_f1")
TESTED = 24
"""Systems that are tested against the baseline; beyond that the correction leaves little to find."""
RESAMPLES = 2_000


@dataclass
class ScoredSet:
    """Questions that runs were scored on, by one protocol and metric: what may be drawn together."""

    split: str
    measure: Measure
    about: Mapping[str, Any]
    runs: list[int] = field(default_factory=list)
    rows: dict[int, Questions] = field(default_factory=dict)
    mistakes: dict[int, Mistakes] = field(default_factory=dict)
    facets: list[Facet] = field(default_factory=list)
    questions: QuestionSet | None = None

    @property
    def key(self) -> str:
        return f"{self.split}-{self.measure.fingerprint[:8]}-{self.measure.protocol}"


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
) -> Collected:
    """Everything that can be shown of ``runs``; ``questions`` are the texts of one of the scored sets.

    ``types`` are classes of questions by id. Runs without rows of questions keep their scores, and the
    page says what is missing. RunError where no run was scored on ``questions``, where ``types`` are of
    other questions, or no system is called ``baseline``.
    """
    groups = group_runs(runs)
    order = {id(record): g for g, group in enumerate(groups) for _, record in group.runs}
    problems: list[str] = []
    sets = _sets(runs, questions, types, problems)
    if questions is not None and all(one.questions is None for one in sets):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on"
        )
    if baseline is not None and baseline not in [group.label for group in groups]:
        raise RunError(
            f"--baseline: no system is called '{baseline}' (there are: {'; '.join(g.label for g in groups)})"
        )
    value = {
        "runs": [_run(folder, record, order[id(record)]) for folder, record in runs],
        "groups": [_group(group, groups) for group in groups],
        "sets": [_set(one, runs, groups, order, baseline) for one in sets],
    }
    return Collected(value, sets, problems)


def _stands_alone(folder: Path, record: RunRecord) -> bool:
    """Whether the questions of calibration are all that there is to show, as where dev stays closed."""
    return (
        set(record.scores) == {CALIBRATION} and (questions_folder(folder, CALIBRATION) / QUESTIONS).is_file()
    )


def _sets(
    runs: Runs, questions: QuestionSet | None, types: Mapping[str, str] | None, problems: list[str]
) -> list[ScoredSet]:
    found: dict[tuple[str, Measure], ScoredSet] = {}
    for number, (folder, record) in enumerate(runs):
        for split in record.scores:
            measure = measure_of(record, split)
            if measure is None:
                continue
            one = found.setdefault((split, measure), ScoredSet(split, measure, record.data.get(split, {})))
            one.runs.append(number)
            if split == CALIBRATION and not _stands_alone(folder, record):
                continue
            try:
                one.rows[number] = load_questions(folder, record, split)
            except RunError as error:
                problems.append(str(error))
    for one in found.values():
        _align(one, problems)
        if questions is not None and questions.fingerprint == one.measure.fingerprint and one.rows:
            one.questions = questions
        if one.rows:
            one.mistakes = {number: mistakes(rows, one.questions) for number, rows in one.rows.items()}
            one.rows = {number: with_spans(rows, one.questions) for number, rows in one.rows.items()}
            first = next(iter(one.rows.values()))
            known = types if types and not types.keys().isdisjoint(first.ids) else None
            one.facets = facets(first, one.questions, known)
    if types and not any(facet.key == "class" for one in found.values() for facet in one.facets):
        raise RunError("--types: its questions are none of those that the runs were scored on")
    # What was measured on most questions first, calibration last.
    return sorted(
        found.values(), key=lambda one: (one.split == CALIBRATION, one.split != "dev", -len(one.runs))
    )


def _align(one: ScoredSet, problems: list[str]) -> None:
    """Leave out rows that are not of the same questions in the same order as the first run's."""
    first = next(iter(one.rows.values()), None)
    for number, rows in list(one.rows.items()):
        if first is not None and rows.ids != first.ids:
            problems.append(f"{rows.folder}: its {one.split} rows are of other questions; left out")
            del one.rows[number]


def _run(folder: Path, record: RunRecord, group: int) -> dict[str, Any]:
    config = record.config
    trainer, batch = config.get("trainer", {}), record.batch
    scores = {split: _points(points) for split, points in record.scores.items()}
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
        "device": f"{record.device.get('kind', '?')}, {record.device.get('name', '?')}",
        "strategy": _strategy(record),
        "precision": trainer.get("precision"),
        "batch": batch.get("global"),
        "train": record.data.get("train", {}).get("questions"),
        "parameters": record.parameters.get("total"),
        "fit": record.seconds.get("fit"),
        "predict": record.seconds.get("predict"),
        "memory": record.peak_memory_mb,
        "rate": record.examples_per_second,
        "margin": record.margin.get("value"),
        "matching": "match" in record.parameters.get("blocks", {}),
        "fitted_on": record.margin.get("fitted_on"),
        "epochs": [{key: finite(epoch.get(key)) for key in EPOCH} for epoch in record.epochs],
        "best": record.best_epoch,
        "scores": scores,
    }


def _strategy(record: RunRecord) -> str:
    """How training was spread: the device alone, or how many and by what."""
    devices = record.batch.get("devices", 1)
    named = record.strategy or record.config.get("trainer", {}).get("strategy")
    if named and named not in ("auto", "single"):
        return f"{named} × {devices}"
    return "single device" if devices == 1 else f"{devices} devices"


def _points(points: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    kept = {}
    for name in POINTS:
        if name in points:
            kept[name] = _figures(points[name])
    return kept


def _figures(point: Mapping[str, Any]) -> dict[str, Any]:
    named = {**point, "exact": point.get("exact", point.get("exact_match"))}
    return {key: named[key] for key in FIGURES if named.get(key) is not None}


def _group(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    namesakes = [other.record for other in groups if other.record.model == group.record.model]
    place = next(i for i, record in enumerate(namesakes) if record is group.record)
    own = {key: values[place] for key, values in differing(namesakes).items()} if len(namesakes) > 1 else {}
    return {"label": group.label, "model": group.record.model, "settings": own}


def _set(
    one: ScoredSet,
    runs: Runs,
    groups: Sequence[Group],
    order: Mapping[int, int],
    baseline: str | None,
) -> dict[str, Any]:
    by_group: dict[int, list[int]] = {}
    for number in one.rows:
        by_group.setdefault(order[id(runs[number][1])], []).append(number)
    drawn = {str(number): curves(rows) for number, rows in one.rows.items()}
    return {
        "key": one.key,
        "split": one.split,
        "name": one.about.get("name", one.split),
        "protocol": one.measure.protocol,
        "metric": one.measure.metric_version,
        "fingerprint": one.measure.fingerprint[:12],
        "questions": one.about.get("questions"),
        "unanswerable": one.about.get("unanswerable"),
        "runs": one.runs,
        "point": "calibrated" if one.measure.protocol == "2.0" else "never_null",
        "references": _references(one, runs),
        "curves": drawn,
        "errors": {str(number): found.figures for number, found in one.mistakes.items()},
        "facets": [
            {
                "key": facet.key,
                "title": facet.title,
                "names": list(facet.names),
                "count": [int((facet.level == level).sum()) for level in range(len(facet.names))],
                "runs": {str(number): by_level(rows, facet) for number, rows in one.rows.items()},
            }
            for facet in one.facets
        ],
        "tests": _tests(one, by_group, groups, baseline),
        "partial": any(one["area"] is None for one in drawn.values()),
        "texts": one.questions is not None,
    }


def _references(one: ScoredSet, runs: Runs) -> list[dict[str, Any]]:
    for number in one.runs:
        if scored := runs[number][1].references.get(one.split):
            return [{"name": name, **_figures(point)} for name, point in scored.items()]
    return []


def _tests(
    one: ScoredSet, by_group: Mapping[int, list[int]], groups: Sequence[Group], baseline: str | None
) -> dict[str, Any]:
    """Intervals of every system, and tests against the baseline where one is named."""
    stacked = {
        group: 100 * np.stack([one.rows[number].f1 for number in members])
        for group, members in by_group.items()
    }
    intervals = {
        str(group): list(bootstrap_interval(scores, resamples=RESAMPLES)) for group, scores in stacked.items()
    }
    reference = next((g for g in stacked if groups[g].label == baseline), None)
    if baseline is None or reference is None:
        return {"intervals": intervals, "baseline": None, "effects": {}}
    others = [group for group in stacked if group != reference][:TESTED]
    found = {g: effect(stacked[reference], stacked[g], resamples=RESAMPLES) for g in others}
    corrected = holm([found[group].p_bootstrap for group in others])
    effects = {
        str(group): {
            "delta": found[group].delta,
            "interval": list(found[group].interval),
            "p": found[group].p_bootstrap,
            "holm": p,
        }
        for group, p in zip(others, corrected, strict=True)
    }
    return {"intervals": intervals, "baseline": reference, "effects": effects}
