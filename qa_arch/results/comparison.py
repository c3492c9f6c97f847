"""The comparison of runs: one row a run, with what its numbers were measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qa_arch.errors import RunError
from qa_arch.results.record import RunRecord

POINTS = ("calibrated", "never_null")
"""The operating point that is compared: the calibrated margin, or SQuAD 1.1's, which has no null."""


@dataclass(frozen=True)
class Table:
    """Rows for people and programs; ``columns`` maps keys to headings, in order."""

    title: str
    columns: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


COLUMNS = {
    "model": "model",
    "exact": "EM",
    "f1": "F1",
    "HasAns_f1": "HasAns F1",
    "NoAns_f1": "NoAns F1",
    "null_threshold": "null margin",
    "parameters": "parameters",
    "seconds": "seconds",
}


def comparison(runs: Sequence[tuple[Path, RunRecord]], split: str = "dev") -> Table:
    """Runs beside each other, and beside the rows that need no learning where these were recorded.

    A run that did not finish keeps its row and says why. Runs scored on different data or under
    different protocols are refused: their numbers do not compare.
    """
    split = split if any(split in record.scores for _, record in runs) else "calibration"
    measured = {_measure(record, split) for _, record in runs if split in record.scores}
    if len(measured) > 1:
        raise RunError(
            f"these runs were scored on {len(measured)} different {split} sets or protocols; compare one at a time"
        )
    rows = [*_plain_rows(runs, split), *(_row(record, folder, split) for folder, record in runs)]
    notes = [
        f"split {split}; null margin fitted on calibration; seconds of training; EM and F1 by the official arithmetic"
    ]
    if measured:
        (name, _, protocol), *_ = measured
        notes.insert(0, f"{name}, SQuAD {protocol} protocol")
    return Table(f"{runs[0][1].name}: {split}", COLUMNS, rows, notes)


def _measure(record: RunRecord, split: str) -> tuple[str, str, str]:
    about = record.data.get(split, {})
    return str(about.get("name")), str(about.get("fingerprint")), str(about.get("protocol"))


def _row(record: RunRecord, folder: Path, split: str) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": record.model,
        "seed": record.seed,
        "status": record.status,
        "split": split,
    }
    row["run"] = str(folder)
    points = record.scores.get(split, {})
    scores = next((points[name] for name in POINTS if name in points), None)
    if scores is not None:
        row |= pick(scores)
    if record.status != "ok":
        row["exact"] = record.status.upper()
    row["parameters"] = record.parameters.get("total")
    row["seconds"] = record.seconds.get("fit")
    return row


def pick(scores: Mapping[str, Any]) -> dict[str, Any]:
    """The compared figures of one operating point, EM by one name for both protocols."""
    return {
        "exact": scores.get("exact", scores.get("exact_match")),
        "f1": scores["f1"],
        "HasAns_f1": scores.get("HasAns_f1"),
        "NoAns_f1": scores.get("NoAns_f1"),
        "null_threshold": scores.get("threshold"),
        "protocol": scores.get("protocol"),
    }


def _plain_rows(runs: Sequence[tuple[Path, RunRecord]], split: str) -> list[dict[str, Any]]:
    """The heuristics' rows, once: they depend on the data alone."""
    for _, record in runs:
        if plain := record.references.get(split):
            return [{"model": name, "split": split, **pick(scores)} for name, scores in plain.items()]
    return []
