"""Records as the plain value that the page reads: runs, systems, scored sets and their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qa_arch.errors import RunError
from qa_arch.results.columns import Scored, figures, named
from qa_arch.results.mistakes import Mistakes, mistakes
from qa_arch.results.pairwise import FITTED
from qa_arch.results.question_breakdowns import Breakdown, breakdowns
from qa_arch.results.question_rows import Questions, load_questions, questions_folder
from qa_arch.results.record import MODEL, QUESTIONS, Runs
from qa_arch.results.report.curve_data import by_level, curves, with_spans
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
    if questions is not None and all(scored.questions is None for scored in sets):
        raise RunError(
            f"--data: no run was scored on {questions.name} (hash {questions.fingerprint[:12]}); name the"
            " file that they were scored on"
        )
    members = [list(dict.fromkeys(order[id(runs[number][1])] for number in scored.runs)) for scored in sets]
    result = find_baselines(baseline, groups, members)
    untested = [(scored, why) for scored, (_, why) in zip(sets, result, strict=True) if why and scored.rows]
    problems += [f"--baseline, on {scored.title}: {why}; not tested there" for scored, why in untested]
    value = {
        "runs": [_run(folder, record, order[id(record)]) for folder, record in runs],
        "groups": [_group(group, groups) for group in groups],
        "sets": [_set(scored, runs, order, *of_set) for scored, of_set in zip(sets, result, strict=True)],
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
    result: dict[tuple[str, Measure], ScoredSet] = {}
    for number, (folder, record) in enumerate(runs):
        for split in record.scores:
            measure = record.measure(split)
            if measure is None:
                continue
            scored = result.setdefault((split, measure), ScoredSet(split, measure, record.facts(split)))
            scored.runs.append(number)
            if split == CALIBRATION and not _stands_alone(folder, record):
                continue
            try:
                scored.rows[number] = load_questions(folder, record, split)
            except RunError as error:
                problems.append(str(error))
    for scored in result.values():
        _align(scored, problems)
        if questions is not None and questions.fingerprint == scored.measure.fingerprint and scored.rows:
            scored.questions = questions
        if scored.rows:
            scored.mistakes = {
                number: mistakes(rows, scored.questions) for number, rows in scored.rows.items()
            }
            scored.rows = {number: with_spans(rows, scored.questions) for number, rows in scored.rows.items()}
            first = next(iter(scored.rows.values()))
            known = types if types and not types.keys().isdisjoint(first.ids) else None
            scored.breakdowns = breakdowns(first, scored.questions, known)
    if types and not any(facet.key == "class" for scored in result.values() for facet in scored.breakdowns):
        raise RunError("--types: its questions are none of those that the runs were scored on")
    # dev first, then the sets that most runs were scored on, calibration last.
    return sorted(
        result.values(),
        key=lambda scored: (
            scored.split == CALIBRATION,
            scored.split != "dev",
            -len(scored.runs),
        ),
    )


def _align(scored: ScoredSet, problems: list[str]) -> None:
    """Leave out rows that are not of the same questions in the same order as the first run's."""
    first = next(iter(scored.rows.values()), None)
    for number, rows in list(scored.rows.items()):
        if first is not None and rows.ids != first.ids:
            problems.append(f"{rows.folder}: its {scored.split} rows are of other questions; left out")
            del scored.rows[number]


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
    return {name: _figures(points[name]) for name in POINTS if name in points}


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
