"""A published table with our figures beside it, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.results.columns import Column, Table, number, text
from qa_arch.results.comparison import comparison
from qa_arch.results.dev_access_log import dev_access_note
from qa_arch.results.record import Runs, recorded
from qa_arch.types.records import DEV, TRAIN, RunRecord

COLUMNS: Sequence[Column] = (
    text("model", "configuration"),
    number("hidden", "l"),
    number("parameters", "parameters"),
    number("exact", "EM, published"),
    number("f1", "F1, published"),
    number("our_exact", "EM, ours"),
    number("our_f1", "F1, ours"),
    number("train_exact", "EM, its training questions"),
    number("our_parameters", "parameters, ours"),
    number("train_questions", "training questions"),
    number("epochs", "epochs"),
    number("vectors", "vectors"),
    number("runs", "runs"),
)


@dataclass(frozen=True)
class PublishedRow:
    """One published row, where our runs of it lie, and what makes them.

    ``records`` is a folder or glob below ``records/``: of several runs the row shows the mean. A row whose
    runs are missing says so and names its ``command``; one without ``command`` is published only.
    """

    model: str
    exact: float | None = None
    f1: float | None = None
    parameters: int | None = None
    hidden: int | None = None
    records: str | None = None
    command: str | None = None
    note: str | None = None


def published_vs_ours(
    folder: Path, title: str, rows: Sequence[PublishedRow], *, split: str = DEV, notes: Sequence[str] = ()
) -> Table:
    """The table of the experiment in ``folder``; RunError where runs of two rows do not compare."""
    runs = {row.model: _scored(folder, row, split) for row in rows}
    every = [run for of_row in runs.values() for run in of_row]
    below = [*comparison(every, split=split, columns=["model"]).notes] if every else []
    below += notes
    for row in rows:
        if row.note:
            below.append(f"{row.model}: {row.note}")
        if row.command and not runs[row.model]:
            below.append(f"{row.model}, to be run: `{row.command}`")
    fingerprints = {measure.fingerprint for _, record in every if (measure := record.measure(split))}
    if split == DEV and (note := dev_access_note(folder, fingerprints)):
        below.append(note)
    figures = [_row(row, runs[row.model], split) for row in rows]
    learned = any(row.get("train_exact") is not None for row in figures)
    shown = [column for column in COLUMNS if column.key != "train_exact" or learned]
    return Table(title, shown, figures, below)


def _scored(folder: Path, row: PublishedRow, split: str) -> Runs:
    """The runs of a row that were scored on the split."""
    if row.records is None:
        return []
    return [run for run in recorded(folder, row.records) if run[1].measure(split)]


def _row(row: PublishedRow, runs: Runs, split: str) -> dict[str, Any]:
    published: dict[str, Any] = {
        "model": row.model,
        "hidden": row.hidden,
        "parameters": row.parameters,
        "exact": row.exact,
        "f1": row.f1,
    }
    if not runs:
        return {**published, "our_exact": "to be run" if row.command else None}
    ours = [figures for figures in comparison(runs, split=split).rows if "status" in figures]
    records = [record for _, record in runs]
    return {
        **published,
        "our_exact": mean_metric(records, split, "exact"),
        "our_f1": mean_metric(records, split, "f1"),
        "train_exact": mean_metric(records, TRAIN, "exact"),
        "our_parameters": _joined(run["parameters"] for run in ours),
        "train_questions": _joined(run["train_questions"] for run in ours),
        "epochs": _joined(run["epochs"] for run in ours),
        "vectors": _joined(map(_vectors, records)),
        "runs": len(runs),
    }


def mean_metric(records: Iterable[RunRecord], split: str, key: str) -> float | None:
    """Mean of a metric, of those runs that were scored on ``split``."""
    points = [point for record in records if (point := record.compared_point(split))]
    values = [value for point in points if (value := point.metric(key)) is not None]
    return fmean(values) if values else None


def _joined(values: Iterable[Any]) -> Any:
    """The value that all have; of numbers that differ the mean, of others all."""
    values = list(values)
    distinct = list(dict.fromkeys(values))
    if len(distinct) == 1:
        return distinct[0]
    if all(isinstance(value, int | float) for value in distinct):
        return fmean(values)
    return ", ".join(str(value) for value in distinct)


def _vectors(record: RunRecord) -> str | None:
    """The name of the file of word vectors."""
    path = record.setting("glove", "path")
    return Path(str(path)).stem if record.setting("glove", "use") and path else None
