"""A published table with our figures beside it, row by row.

    title: "Table 2.3"
    rows:
      - {model: Boundary, hidden: 150, parameters: 882452, exact: 61.1, f1: 71.2,
         records: boundary, command: qa-arch train model=match_lstm/boundary ...}

``records`` is a folder or glob below ``records/``: of several runs the row shows the mean. A row whose
runs are missing says so and names its ``command``; one without ``command`` is published only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from qa_arch.results.comparison import Table, comparison
from qa_arch.results.openings import opened_note
from qa_arch.results.record import RECORD, read_record
from qa_arch.types.records import RunRecord

HEADINGS = {
    "model": "configuration",
    "hidden": "l",
    "parameters": "parameters",
    "exact": "EM, published",
    "f1": "F1, published",
    "our_exact": "EM, ours",
    "our_f1": "F1, ours",
    "our_parameters": "parameters, ours",
    "train_questions": "training questions",
    "epochs": "epochs",
    "vectors": "vectors",
    "runs": "runs",
}


@dataclass(frozen=True)
class BesideRow:
    """One published row, where our runs of it lie, and what makes them."""

    model: str
    exact: float | None = None
    f1: float | None = None
    parameters: int | None = None
    hidden: int | None = None
    records: str | None = None
    command: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class BesideSpec:
    """A published table with ours beside it."""

    title: str
    rows: list[BesideRow]
    split: Literal["dev", "calibration"] = "dev"
    notes: list[str] = field(default_factory=list)


Runs = list[tuple[Path, RunRecord]]


def beside(folder: Path, spec: BesideSpec) -> Table:
    """The table; ``folder`` holds the records, in the folder of the experiment.

    RunError where runs of two rows do not compare.
    """
    runs = {row.model: _scored(folder, row, spec.split) for row in spec.rows}
    every = [run for found in runs.values() for run in found]
    notes = [*comparison(every, split=spec.split, columns=["model"]).notes] if every else []
    notes += spec.notes
    for row in spec.rows:
        if row.note:
            notes.append(f"{row.model}: {row.note}")
        if row.command and not runs[row.model]:
            notes.append(f"{row.model}, to be run: `{row.command}`")
    measures = {record.measure(spec.split) for _, record in every}
    known = {measure.fingerprint for measure in measures if measure}
    if spec.split == "dev" and (opened := opened_note(folder.parent, known)):
        notes.append(opened)
    rows = [_row(row, runs[row.model], spec.split) for row in spec.rows]
    return Table(spec.title, dict(HEADINGS), rows, notes)


def _scored(folder: Path, row: BesideRow, split: str) -> Runs:
    """The runs of a row that were scored on the split."""
    if row.records is None:
        return []
    paths = sorted(dict.fromkeys(folder.glob(f"{row.records.rstrip('/')}/**/{RECORD}")))
    runs = [(path.parent.relative_to(folder), read_record(path)) for path in paths]
    return [run for run in runs if run[1].measure(split)]


def _row(row: BesideRow, runs: Runs, split: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "model": row.model,
        "hidden": row.hidden,
        "parameters": row.parameters,
        "exact": row.exact,
        "f1": row.f1,
    }
    if not runs:
        return {**made, "our_exact": "to be run" if row.command else None}
    ours = [one for one in comparison(runs, split=split).rows if "status" in one]
    return {
        **made,
        "our_exact": fmean(one["exact"] for one in ours),
        "our_f1": fmean(one["f1"] for one in ours),
        "our_parameters": _same(one["parameters"] for one in ours),
        "train_questions": _same(one["train_questions"] for one in ours),
        "epochs": _same(one["epochs"] for one in ours),
        "vectors": _same(_vectors(record) for _, record in runs),
        "runs": len(runs),
    }


def _same(values: Any) -> Any:
    """The value that all have; of numbers that differ the mean, of others all."""
    found = list(dict.fromkeys(values))
    if len(found) == 1:
        return found[0]
    if all(isinstance(value, int | float) for value in found):
        return fmean(found)
    return ", ".join(str(value) for value in found)


def _vectors(record: RunRecord) -> str | None:
    """The name of the file of word vectors."""
    glove = record.config.get("glove", {})
    return Path(str(glove["path"])).stem if glove.get("use") and glove.get("path") else None
