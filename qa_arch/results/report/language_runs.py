"""Pre-training runs as the page reads them: a table for each measure, and the epochs of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qa_arch.results.columns import Table
from qa_arch.results.comparison import by_measure, comparison
from qa_arch.results.record import Runs
from qa_arch.results.summary import finite
from qa_arch.results.systems import group_by_system, labelled
from qa_arch.types.records import Epoch

EPOCH = ("train_loss", "calibration_loss", "calibration_perplexity")


def language_runs(runs: Runs) -> dict[str, Any]:
    """``tables``, as text, of runs that predict the same tokens, and ``curves``: a run's name and epochs."""
    return {
        "tables": [_table(labelled(comparison(group), group)) for group in by_measure(runs)],
        "curves": [
            {
                "label": f"{system.label}, seed {record.seed}",
                "epochs": [_epoch(epoch) for epoch in record.epochs],
            }
            for system in group_by_system(runs)
            for _, record in system.runs
            if record.epochs
        ],
    }


def _table(table: Table) -> dict[str, Any]:
    rows: Sequence[Any] = table.rows
    return {
        "title": table.title,
        "heads": [{"text": column.heading, "left": column.left} for column in table.columns],
        "rows": [[column.text(row) for column in table.columns] for row in rows],
        "notes": list(table.notes),
    }


def _epoch(epoch: Epoch) -> dict[str, float | None]:
    return {key: finite(epoch.value(key)) for key in EPOCH}
