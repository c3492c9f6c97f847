"""Somebody else's figures beside ours: rows of published scores, and counts of data sets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.config.check import suggest
from qa_arch.config.files import read_json
from qa_arch.errors import ConfigError
from qa_arch.records import DEV, RECORDS, TRAIN, RunRecord, Runs, recorded
from qa_arch.results.columns import comparison, named
from qa_arch.results.provenance import dev_access_note
from qa_arch.results.tables import Column, Table, number, text

COUNTS = ("examples", "negatives", "articles", "articles_with_negatives")
"""What a table of data sets shows where nothing else is asked for."""
ALL_COUNTS = (*COUNTS, "questions", "answers", "question_words")
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
"""Of ``published_vs_ours``."""


@dataclass(frozen=True)
class Published:
    """A row of somebody else's figures, by column; ``note`` says by which protocol they were measured.

    With ``in_our_rows`` they get no row of their own but stand in the rows of our ``model``, in columns that
    only published figures have: for figures measured on another task.
    """

    model: str
    figures: Mapping[str, float]
    note: str
    in_our_rows: bool = False

    def __post_init__(self) -> None:
        named(self.figures, f"{self.model}, published")


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


@dataclass(frozen=True)
class DataSet:
    """One data set: its published counts, and ours from ``records/<file>``, what ``qa-arch stats`` prints."""

    name: str
    file: str
    published: Mapping[str, int] = field(default_factory=dict)
    source: str | None = None
    """What ``--data`` must name, where that is not the file's own name."""
    open: bool = True
    """False for a set that nobody can count, as its questions are kept back."""


def published_vs_ours(
    folder: Path, title: str, rows: Sequence[PublishedRow], *, split: str = DEV, notes: Sequence[str] = ()
) -> Table:
    """The table of the experiment in ``folder``; RunError where runs of two rows do not compare."""
    runs = {
        row.model: [run for run in recorded(folder, row.records) if run[1].measure(split)]
        if row.records
        else []
        for row in rows
    }
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
    figures = [_published_and_ours(row, runs[row.model], split) for row in rows]
    learned = any(row.get("train_exact") is not None for row in figures)
    shown = [column for column in COLUMNS if column.key != "train_exact" or learned]
    return Table(title, shown, figures, below)


def _published_and_ours(row: PublishedRow, runs: Runs, split: str) -> dict[str, Any]:
    """The published figures of a row and ours."""
    keys = ("model", "hidden", "parameters", "exact", "f1")
    published: dict[str, Any] = {key: getattr(row, key) for key in keys}
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


def sets_table(
    folder: Path,
    title: str,
    sets: Sequence[DataSet],
    *,
    columns: Sequence[str] = COUNTS,
    notes: Sequence[str] = (),
) -> Table:
    """Published counts and ours, a row each; a set that was not counted says by which command it is."""
    for key in columns:
        if key not in ALL_COUNTS:
            raise ConfigError(f"columns: unknown count '{key}'{suggest(key, ALL_COUNTS)}")
    rows: list[dict[str, Any]] = []
    below = list(notes)
    for data in sets:
        if data.published:
            rows.append({"set": f"{data.name} (published)", **data.published})
        if not data.open:
            continue
        path = folder / RECORDS / data.file
        counts = read_json(path, "it is what `qa-arch stats --json` prints") if path.is_file() else {}
        rows.append({"set": data.name, **{key: counts.get(key) for key in columns}})
        if not counts:
            command = f"qa-arch stats --data {data.source or data.file} --json > {path.as_posix()}"
            below.append(f"{data.name}: not counted here; `{command}` fills the row")
    shown = [text("set", "set"), *(number(key, key.replace("_", " ")) for key in columns)]
    return Table(title, shown, rows, below)
