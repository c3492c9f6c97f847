"""Records as the plain value that the page reads: runs, systems, scored sets and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_arch.errors import RunError
from qa_arch.results.columns import Scored, figures, named
from qa_arch.results.errors import Mistakes, mistakes
from qa_arch.results.pairwise import FITTED
from qa_arch.results.question_breakdowns import Breakdown, breakdowns
from qa_arch.results.questions import Questions, load_questions, questions_folder
from qa_arch.results.record import MODEL, QUESTIONS, Runs
from qa_arch.results.report.curves import by_level, curves, with_spans
from qa_arch.results.report.system_tests import MEASURES, SPANS, find_baselines, scores, significance
from qa_arch.results.summary import finite
from qa_arch.results.systems import System, differing, group_by_system
from qa_arch.types.records import (
    CALIBRATED,
    CALIBRATION,
    GIVEN,
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    TRAIN,
    Measure,
    Point,
    Points,
    RunRecord,
    SplitFacts,
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
    sets = _sets(runs, questions, types, problems)
    if questions is not None and all(one.questions is None for one in sets):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on"
        )
    members = [list(dict.fromkeys(order[id(runs[number][1])] for number in one.runs)) for one in sets]
    found = find_baselines(baseline, groups, members)
    untested = [(one, why) for one, (_, why) in zip(sets, found, strict=True) if why and one.rows]
    problems += [f"--baseline, on {one.title}: {why}; not tested there" for one, why in untested]
    value = {
        "runs": [_run(folder, record, order[id(record)]) for folder, record in runs],
        "groups": [_group(group, groups) for group in groups],
        "sets": [_set(one, runs, order, *of_set) for one, of_set in zip(sets, found, strict=True)],
        "askedColumns": [{"key": c.key, "head": c.heading, "text": c.left} for c in named(columns)],
    }
    for scored, shown in zip(sets, value["sets"], strict=True):
        shown["columns"] = {str(number): _columns(scored, runs, number, columns) for number in scored.runs}
    return Collected(value, sets, problems)


def _columns(scored: ScoredSet, runs: Runs, number: int, keys: Sequence[str]) -> dict[str, Any]:
    """The figures of one run in the columns that were asked for."""
    folder, record = runs[number]
    row = Scored(record.model, scored.split, record.compared_point(scored.split), record, folder)
    computed = figures(row, keys)
    return {key: computed.get(key) for key in keys}


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
            measure = record.measure(split)
            if measure is None:
                continue
            one = found.setdefault((split, measure), ScoredSet(split, measure, record.facts(split)))
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
            one.breakdowns = breakdowns(first, one.questions, known)
    if types and not any(facet.key == "class" for one in found.values() for facet in one.breakdowns):
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


def _points(points: Points) -> dict[str, dict[str, Any]]:
    kept = {}
    for name in POINTS:
        if name in points:
            kept[name] = _figures(points[name])
    return kept


def _figures(point: Point) -> dict[str, Any]:
    figures = {key: point.threshold if key == "threshold" else point.metric(key) for key in FIGURES}
    return {key: value for key, value in figures.items() if value is not None}


def _group(group: System, groups: Sequence[System]) -> dict[str, Any]:
    namesakes = [other.record for other in groups if other.record.model == group.record.model]
    place = next(i for i, record in enumerate(namesakes) if record is group.record)
    own = {key: values[place] for key, values in differing(namesakes).items()} if len(namesakes) > 1 else {}
    return {"label": group.label, "model": group.record.model, "settings": own}


def _set(
    one: ScoredSet,
    runs: Runs,
    order: Mapping[int, int],
    baseline: int | None,
    untested: str | None,
) -> dict[str, Any]:
    by_group: dict[int, list[Questions]] = {}
    for number, rows in one.rows.items():
        by_group.setdefault(order[id(runs[number][1])], []).append(rows)
    measures = [name for name in MEASURES if name != SPANS or one.about.unanswerable]
    drawn = {str(number): curves(rows) for number, rows in one.rows.items()}
    return {
        "key": one.key,
        "split": one.split,
        "name": one.about.name or one.split,
        "protocol": one.measure.protocol,
        "metric": one.measure.metric_version,
        "fingerprint": one.measure.fingerprint[:12],
        "questions": one.about.questions,
        "unanswerable": one.about.unanswerable,
        "runs": one.runs,
        "point": CALIBRATED if one.measure.protocol == "2.0" else NEVER_NULL,
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
            for facet in one.breakdowns
        ],
        "measures": measures,
        "spans": _spans(one) if SPANS in measures else {},
        "tests": significance(by_group, baseline, measures),
        "note": FITTED if one.split == CALIBRATION else None,
        "baseline": baseline if baseline in by_group else None,
        "untested": untested,
        "partial": any(one["area"] is None for one in drawn.values()),
        "texts": one.questions is not None,
    }


def _spans(one: ScoredSet) -> dict[str, float]:
    """By run, F1 on the answerable questions where "no answer" is never allowed."""
    best = {str(number): scores(rows, SPANS) for number, rows in one.rows.items()}
    return {number: float(found.mean()) for number, found in best.items() if found is not None}


def _references(one: ScoredSet, runs: Runs) -> list[dict[str, Any]]:
    for number in one.runs:
        if scored := runs[number][1].references.get(one.split):
            return [{"name": name, **_figures(point)} for name, point in scored.items()]
    return []
