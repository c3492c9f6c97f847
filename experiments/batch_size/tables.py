"""Batch sizes at two epochs: the proposed model at demo size, and beside the plain span head on SQuAD 2.0.

Filled by: qa-arch train -m experiment=batch_size model=proposed trainer.batch_size=4,8,16,32,64; the commands
in README.md fill the table of SQuAD.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.ticker import ScalarFormatter

from qa_arch.records import CALIBRATION
from qa_arch.results.experiments import (
    COLOURS,
    INK,
    MARKERS,
    Wanted,
    legend_below,
    panel_grid,
    plain_panel,
    records_table,
    save_figure,
)
from qa_arch.results.tables import Table

SQUAD = "squad2"
SWEEP = (
    "qa-arch train -m experiment=real_part name=batch_size data=balanced data.train_questions=5000"
    " trainer.epochs=2 seed=13"
)
MEASURES = {
    "f1": "F1",
    "forced_f1": "answerable F1 (forced answer)",
    "auroc": "AUROC, answerable",
    "peak_memory_mb": "peak MiB",
}


def tables(folder: Path) -> list[Table]:
    return [
        records_table(
            folder,
            "Batch sizes at two epochs, the proposed model at demo size on the embedded data, dev",
            records="batch_size*",
            columns=(
                *("model", "batch", "steps", "exact", "f1", "HasAns_f1", "NoAns_f1", "seconds"),
                *("examples_per_second", "peak_memory_mb"),
            ),
            sort=("batch", "seed"),
        ),
        records_table(
            folder,
            "Batch sizes at two epochs of 5,000 questions of SQuAD 2.0, MiniLM, calibration",
            records=SQUAD,
            split=CALIBRATION,
            columns=(
                *("model", "batch", "seed", "steps", "exact", "f1", "forced_f1", "auroc", "peak_memory_mb"),
            ),
            sort=("batch", "model", "seed"),
            wanted=[
                Wanted(model, f"{SWEEP} model={model} trainer.batch_size={batch}", batch=batch)
                for batch in (4, 6, 8, 16, 32, 64)
                for model in ("bert", "proposed")
            ],
        ),
    ]


def figures(folder: Path) -> list[Sequence[Path]]:
    table = tables(folder)[1]
    runs = [row for row in table.rows if "run" in row]
    return [save_figure(lambda: _by_batch(runs, table.title), folder / "by_batch")] if runs else []


def _by_batch(rows: Sequence[Mapping[str, Any]], title: str) -> Any:
    """A panel for each measure over the global batch, a line for each model, its mean over seeds, and a small
    point for each seed; ``rows`` ascend in the batch."""
    figure, (panels,) = panel_grid(title, (), (9.5, 3.2), columns=len(MEASURES), sharey=False)
    for panel, (measure, name) in zip(panels, MEASURES.items(), strict=True):
        panel.set_title(name, loc="left", fontsize=9.5, color=INK)
        for nth, model in enumerate(sorted({row["model"] for row in rows})):
            values: dict[int, list[float]] = {}
            for row in rows:
                if row["model"] == model:
                    values.setdefault(row["batch"], []).append(row[measure])
            panel.plot(
                list(values),
                list(map(fmean, values.values())),
                color=COLOURS[nth],
                marker=MARKERS[nth],
                label=model,
            )
            points = [(batch, value) for batch, own in values.items() for value in own]
            panel.plot(*zip(*points, strict=True), ".", color=COLOURS[nth], alpha=0.6)
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
    legend_below(figure, panels[0], "global batch, windows per optimizer step")
    return figure
