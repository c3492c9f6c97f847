"""The comparison of runs: one row a run, with what its numbers were measured by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from qa_arch.errors import RunError
from qa_arch.results.record import Runs
from qa_arch.types.records import (
    CALIBRATION,
    DEV,
    MARGIN_0,
    NEVER_NULL,
    ORACLE,
    SELECTION,
    TRAIN,
    Measure,
    Point,
    RunRecord,
    SplitFacts,
)

HEADINGS = {
    "model": "model",
    "seed": "seed",
    "exact": "EM",
    "f1": "F1",
    "HasAns_exact": "HasAns EM",
    "HasAns_f1": "HasAns F1",
    "NoAns_exact": "NoAns EM",
    "NoAns_f1": "NoAns F1",
    "f1_at_0": "F1 at margin 0",
    "f1_oracle": "F1 oracle",
    "spans_f1": "HasAns F1, never null",
    "answerable_ap": "AP, answerable",
    "null_threshold": "null margin",
    "parameters": "parameters",
    "train_questions": "training questions",
    "epochs": "epochs",
    "seconds": "seconds",
    "predict_seconds": "seconds to predict",
    "batch": "global batch",
    "micro": "micro batch",
    "accumulate": "accumulated",
    "devices": "devices",
    "strategy": "strategy",
    "arithmetic": "computed in",
    "steps": "optimizer steps",
    "status": "status",
    "run": "run",
    "examples_per_second": "windows/s",
    "peak_memory_mb": "peak MB",
    "recall": "recall",
    "precision": "precision",
}
"""Every column of runs that find spans, and its heading."""
SELECTION_HEADINGS = {
    "accuracy": "top-1",
    "mrr": "MRR",
    "main_accuracy": "top-1, main class",
    "insuranceqa_dev": "published: InsuranceQA validation",
    "insuranceqa_test1": "published: test 1",
    "insuranceqa_test2": "published: test 2",
}
"""The same of runs that select answers, beside what both have."""
ALL_HEADINGS = HEADINGS | SELECTION_HEADINGS
"""Every column that a table can show."""

MEMORY = {
    "cuda": "peak memory: what was allocated on the first GPU",
    "cpu": "peak memory: the resident memory of the first process, libraries included",
}
"""What ``peak_memory_mb`` measures, by kind of device."""

COLUMNS = ("model", "exact", "f1", "HasAns_f1", "NoAns_f1", "null_threshold", "parameters", "seconds")
SELECTION_COLUMNS = ("model", "accuracy", "mrr", "parameters", "seconds")
TYPE_COLUMNS = ("model", "accuracy", "main_accuracy", "mrr", "parameters", "seconds")
"""What is shown where nothing else is asked for; the second for answer selection, the third for classes."""


@dataclass(frozen=True)
class Drawn:
    """A column for people that one or several figures of a row make; a dash where the first is missing."""

    keys: Sequence[str]
    text: Callable[..., str]


@dataclass(frozen=True)
class Table:
    """Rows for people and programs; ``columns`` maps the keys that are shown to headings, in order."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()
    drawn: Mapping[str, Drawn] = field(default_factory=dict)
    """By key of ``columns``, those that are not one value of the row as the field prints it."""

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


def comparison(
    runs: Runs,
    *,
    split: str | None = None,
    title: str | None = None,
    columns: Sequence[str] | None = None,
) -> Table:
    """Runs beside each other, and beside the rows that need no learning where these were recorded.

    ``split`` defaults to dev, or calibration where no run was scored on dev. A run that did not
    finish keeps its row and says why. Runs scored on different data, under different protocols or
    with different versions of the metric are refused with RunError.
    """
    if not runs:
        raise RunError("no runs to compare; name a folder that holds run.json files")
    split = split or next((s for s in (DEV, CALIBRATION) if any(s in r.scores for _, r in runs)), DEV)
    measured = {measure: folder for folder, record in runs if (measure := record.measure(split))}
    if len(measured) > 1:
        places = ", ".join(str(folder) for folder in measured.values())
        raise RunError(
            f"runs scored on {len(measured)} different {split} sets, protocols or metric versions do not"
            f" compare ({places}); compare one kind at a time"
        )
    rows = [*_reference_rows(runs, split), *(_row(record, folder, split) for folder, record in runs)]
    if columns is None:
        columns = SELECTION_COLUMNS if SELECTION in {m.protocol for m in measured} else COLUMNS
        if any("main_accuracy" in row for row in rows):
            columns = TYPE_COLUMNS
        if any(count > 1 for count in Counter(record.model for _, record in runs).values()):
            columns = (columns[0], "seed", *columns[1:])
    shown = {key: ALL_HEADINGS[key] for key in columns}
    return Table(title or f"{runs[0][1].name}: {split}", shown, rows, _notes(runs, split, shown))


def by_measure(runs: Runs) -> list[list[tuple[Path, RunRecord]]]:
    """Runs grouped into tables: one for each experiment and each set that it was scored on.

    A run without scores stands beside the first of its experiment that was trained on the same set.
    """
    groups: dict[tuple[str, str, Measure | None], list[tuple[Path, RunRecord]]] = {}
    beside: dict[tuple[str, Any], tuple[str, str, Measure | None]] = {}
    for folder, record in sorted(runs, key=lambda run: not run[1].scores):  # stable: scored runs first
        split = next((split for split in (DEV, CALIBRATION) if split in record.scores), "")
        key = record.name, split, record.measure(split)
        first = beside.setdefault((record.name, record.fingerprint(TRAIN)), key)
        groups.setdefault(key if record.scores else first, []).append((folder, record))
    return [groups[key] for key in sorted(groups, key=str)]


def _row(record: RunRecord, folder: Path, split: str) -> dict[str, Any]:
    row: dict[str, Any] = {"model": record.model, "seed": record.seed, "status": record.status}
    row |= {"split": split, "run": str(folder)}
    if (point := record.compared_point(split)) is not None:
        row |= _figures(point)
        row["f1_at_0"], row["f1_oracle"] = (_f1(record.point(split, name)) for name in (MARGIN_0, ORACLE))
        row["spans_f1"] = _spans_f1(record.point(split, NEVER_NULL), point.protocol)
    row["parameters"] = record.parameters.total
    row["train_questions"] = record.facts(TRAIN).questions
    row["epochs"] = len(record.epochs) or None
    row["seconds"] = record.seconds.fit
    row["predict_seconds"] = record.seconds.predict
    return row | _means(record)


def _f1(point: Point | None) -> float | None:
    return None if point is None else point.f1


def _spans_f1(point: Point | None, protocol: str) -> float | None:
    if point is None:
        return None
    value = point.metric("HasAns_f1")
    return point.f1 if value is None and protocol == "1.1" else value


def _means(record: RunRecord) -> dict[str, Any]:
    """What the run was made with; its batch as the config states it where it ended early."""
    trainer, batch = record.config.get("trainer", {}), record.batch
    size = trainer.get("batch_size") if trainer.get("token_budget") is None else None
    stated = {"micro": size, "accumulate": trainer.get("accumulate"), "devices": trainer.get("devices")}
    sizes = {key: value if (own := getattr(batch, key)) is None else own for key, value in stated.items()}
    product = batch.global_size
    if product is None and all(isinstance(value, int) for value in sizes.values()):
        product = prod(sizes.values())
    return {
        "batch": product,
        **sizes,
        "strategy": record.strategy,
        "arithmetic": record.precision or trainer.get("precision"),
        "steps": record.epochs[-1].step if record.epochs else None,
        "examples_per_second": record.examples_per_second,
        "peak_memory_mb": record.peak_memory_mb,
    }


def _figures(point: Point) -> dict[str, Any]:
    """The compared figures of one operating point."""
    if point.protocol == SELECTION:
        shown = ("accuracy", "main_accuracy", "mrr")
        figures = {key: point.metric(key) for key in shown if key in point.metrics}
        return {**figures, "protocol": point.protocol}
    groups = ("HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1")
    return {
        "exact": point.exact,
        "f1": point.f1,
        **{key: point.metric(key) for key in groups},
        "recall": point.metric("token_recall"),
        "precision": point.metric("token_precision"),
        "answerable_ap": point.metric("pr_oracle_ap"),
        "null_threshold": point.threshold,
        "protocol": point.protocol,
    }


def _reference_rows(runs: Runs, split: str) -> list[dict[str, Any]]:
    """The heuristics' rows, once: they depend on the data alone."""
    for _, record in runs:
        if scored := record.references.get(split):
            return [{"model": name, "split": split, **_figures(scores)} for name, scores in scored.items()]
    return []


def _notes(runs: Runs, split: str, shown: Mapping[str, str]) -> list[str]:
    notes = []
    scored = next(((r, p) for _, r in runs if (p := r.compared_point(split))), None)
    if scored is not None:
        record, point = scored
        notes.append(_measured_on(record.facts(split), split, point.protocol))
        if point.protocol == "2.0" and {"f1", "exact"} & set(shown):
            fitted_on = record.threshold.fitted_on if record.threshold else "nothing"
            notes.append(f"null margin fitted on {fitted_on}")
    if "seconds" in shown:
        notes.append("seconds of training, without preparation and validation")
    if "peak_memory_mb" in shown:
        kinds = {record.device.kind for _, record in runs}
        notes += [said for kind, said in MEMORY.items() if kind in kinds]
    for folder, record in runs:
        compared = record.compared_point(split)
        if compared is not None and compared.overlap:
            notes.append(
                f"{folder}: scored although {len(compared.overlap)} articles are also in its training data"
            )
    return notes


def _measured_on(facts: SplitFacts, split: str, protocol: str) -> str:
    questions = f"{facts.name or split}: {facts.questions or 0:,} questions"
    if protocol == SELECTION:
        offered = f"{facts.candidates or 0:,.1f} candidates each on average"
        return f"{questions}, {offered}; where scores are equal the right candidate stands last"
    return f"{questions}, of them {facts.unanswerable or 0:,} unanswerable; official SQuAD {protocol} scores"
