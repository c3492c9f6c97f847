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

Rows = Sequence[Mapping[str, Any]]
SWEEP = "qa-arch train -m experiment=real_part name=batch_size data=balanced"
TRAINED = f"{SWEEP} data.train_questions=5000 trainer.epochs=2 seed=13"
TIMED = (
    f"{SWEEP} data.calibration=null data.dev=null data.hold_out_share=0 data.train_questions=400"
    " trainer.epochs=1"
)
FIXED = dict.fromkeys((4, 6, 8, 16, 32, 64), "")
SCALED = {32: " optim.lr=1.4142e-4 optim.head_lr=7.0711e-4", 64: " optim.lr=2e-4 optim.head_lr=1e-3"}
"""Overrides that scale the recipe's rates, those of batches of 16, by the square root of the batch / 16."""
SCORES = {"f1": "F1", "forced_f1": "answerable F1 (forced answer)", "auroc": "AUROC, answerable"}
COSTS = {"examples_per_second": "windows a second", "peak_memory_mb": "peak MiB"}


def tables(folder: Path) -> list[Table]:
    title = "Batch sizes at two epochs of 5,000 questions of SQuAD 2.0, MiniLM, calibration"
    scaled = "The same with rates scaled by √(batch / 16)"
    cost = "The cost of a batch size: an epoch of 400 questions, MiniLM, each run on one core"
    scores = ("steps", "exact", "f1", "forced_f1", "auroc")
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
        _squad(folder, title, "squad2", scores, TRAINED, FIXED),
        _squad(folder, scaled, "scaled", scores, TRAINED, SCALED),
        _squad(folder, cost, "cost", ("steps", "seconds", *COSTS), TIMED, FIXED),
    ]


def _squad(
    folder: Path, title: str, records: str, columns: Sequence[str], command: str, batches: Mapping[int, str]
) -> Table:
    """Both models on calibration at each of the batch sizes, which come with overrides of their rates."""
    return records_table(
        folder,
        title,
        records=records,
        split=CALIBRATION,
        columns=("model", "batch", "seed", *columns),
        sort=("batch", "model", "seed"),
        wanted=[
            Wanted(model, f"{command} model={model} trainer.batch_size={batch}{rates}", batch=batch)
            for batch, rates in batches.items()
            for model in ("bert", "proposed")
        ],
    )


def figures(folder: Path) -> list[Sequence[Path]]:
    runs = [[row for row in table.rows if "run" in row] for table in tables(folder)[1:]]
    return [save_figure(lambda: _by_batch(*runs), folder / "by_batch")] if all(runs) else []


def _by_batch(fixed: Rows, scaled: Rows, timed: Rows) -> Any:
    """A panel for each measure over the global batch, a line for each model, its mean over seeds, and a small
    point for each seed; dotted for scaled rates. Rows ascend in the batch."""
    title = "Batch sizes on SQuAD 2.0, MiniLM: scores on calibration, cost on one core"
    measures = SCORES | COSTS
    figure, (panels,) = panel_grid(title, (), (11.5, 3.4), columns=len(measures), sharey=False)
    for panel, (measure, name) in zip(panels, measures.items(), strict=True):
        panel.set_title(name, loc="left", fontsize=9.5, color=INK)
        if measure in COSTS:
            _lines(panel, timed, measure)
        else:
            _lines(panel, fixed, measure)
            _lines(panel, scaled, measure, ", rates scaled by √(batch / 16)", ":")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
    legend_below(figure, panels[0], "global batch, windows per optimizer step")
    return figure


def _lines(panel: Any, rows: Rows, measure: str, note: str = "", line: str = "-") -> None:
    for nth, model in enumerate(sorted({row["model"] for row in rows})):
        values: dict[int, list[float]] = {}
        for row in rows:
            if row["model"] == model:
                values.setdefault(row["batch"], []).append(row[measure])
        style = {"color": COLOURS[nth], "linestyle": line, "marker": MARKERS[nth]}
        panel.plot(list(values), list(map(fmean, values.values())), label=f"{model}{note}", **style)
        points = [(batch, value) for batch, own in values.items() for value in own]
        panel.plot(*zip(*points, strict=True), ".", color=COLOURS[nth], alpha=0.6)
