"""Compressed models: loss in EM and F1 from pruning and int8, and savings in size, latency and memory.

Filled by: qa-arch train -m experiment=real_part name=compression model=bert,proposed seed=13,14,15; then
qa-arch train init_from=RUN compression=..., qa-arch evaluate --final and python -m benchmarks.compression for
each (see README.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

from qa_arch.results.columns import COLUMNS
from qa_arch.results.effects import MeasureName
from qa_arch.results.experiments import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    Published,
    Row,
    baseline_table,
    drawn_table,
    legend_below,
    pairwise_table,
    panel_grid,
    plain_panel,
    records_table,
    save_figure,
)
from qa_arch.results.tables import Table

ON_1_1 = "SQuAD 1.1, all of train, all of dev"
ON_2_0 = "SQuAD 2.0, all of train, all of dev; model card"
PUBLISHED = (
    Published("BERT-large, block-pruned, 2.15 × as fast", {"f1": 83.2}, f"{ON_2_0}; 85.85 unpruned"),
    Published("BERT-large, block-pruned, 2.63 × as fast", {"f1": 82.6}, f"{ON_2_0}; 85.85 unpruned"),
    Published("TinyBERT-6L-768, distilled", {"exact": 73.8, "f1": 77.2}, ON_2_0),
    Published(
        "BERT-base, block-pruned, 1.84 × as fast", {"f1": 88.7}, f"{ON_1_1}; model card; 88.5 unpruned"
    ),
    Published(
        "BERT-base, block-pruned, 2.44 × as fast", {"f1": 87.7}, f"{ON_1_1}; model card; 88.5 unpruned"
    ),
    Published("DistilBERT, 1.6 × as fast", {"f1": 85.8}, f"{ON_1_1}; the paper"),
)
SMALLER = ("torch/**", "onnx/**")
STUDENTS = "bert labels=1", "bert labels=0.5"
AT_ONCE = "bert-sparse50 of seeds 14 and 15 and proposed-sparse50 are pruned at once, without recovery"
COSTS = ("weights_mb", "latency_ratio", "memory_ratio")
MEASURES = ("f1", "forced_f1")
ALONE = "ratios are to the uncompressed model of the same kind and seed, measured in turn in the same process"


def tables(folder: Path) -> list[Table]:
    scores = ("exact", "f1", "HasAns_f1", "NoAns_f1", "forced_f1")
    costs = ("weights_mb", "latency_ms", "latency_ratio", "memory_mb", "memory_ratio")
    return [
        records_table(
            folder,
            "Smaller models: MiniLM-L6 on an eighth of SQuAD 2.0, dev fold A",
            columns=("model", "seed", "engine", "read_in", *scores, "parameters", "nonzero", *costs),
            published=PUBLISHED,
            records=SMALLER,
            sort=("model", "engine", "seed"),
            notes=[ALONE, AT_ONCE],
        ),
        *(_tested(folder, model, name) for model in ("bert", "proposed") for name in ("forced_f1", "f1")),
        pairwise_table(
            folder,
            "Students of three layers: with a teacher (B) and without (A), dev fold A",
            *STUDENTS,
            records="distillation/**",
        ),
    ]


def _tested(folder: Path, model: str, measure: MeasureName) -> Table:
    """Every compressed version of ``model`` against the uncompressed one."""
    what = ", answerable F1 (forced answer)" if measure == "forced_f1" else ""
    title = f"Tested against the whole {model}, dev fold A{what}"
    records = f"torch/{model}*"
    return baseline_table(folder, title, model, measure=measure, records=records, paired=True)


def figures(folder: Path) -> list[Sequence[Path]]:
    title = "F1 and answerable F1 (forced answer) against size, latency and memory on a CPU, dev fold A"
    return [pareto_plot(folder, "pareto", title)]


def pareto_plot(folder: Path, file: str, title: str) -> Sequence[Path]:
    """Plot ``MEASURES`` against ``COSTS``: one panel per pair, one point per run, the ``front`` as a line.

    Runs of a model share colour and marker. Returns no paths if no run was measured.
    """
    table = drawn_table(folder, title, ["model", *MEASURES, *COSTS, "engine", "read_in"], SMALLER)
    if table is None or not any(row.get("engine") for row in table.rows):
        return ()
    rows = [
        {**row, "model": f"{row['model'].partition(' ')[0]}, ONNX {row['read_in']}"}
        if row.get("engine") == "onnx"
        else row
        for row in sorted(table.rows, key=lambda row: row.get("engine") != "onnx")
    ]
    table = replace(table, rows=rows, notes=[*table.notes, ALONE])
    return save_figure(lambda: _draw_pareto(table), folder / file)


def points(table: Table, cost: str, measure: str) -> list[Row]:
    """Rows that have both figures."""
    return [row for row in table.rows if row.get(cost) is not None and row.get(measure) is not None]


def front(rows: Sequence[Row], cost: str, measure: str) -> list[Row]:
    """Pareto front sorted by cost: rows that outscore every row that costs no more."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[cost], -row[measure])):
        if not best or row[measure] > best[-1][measure]:
            best.append(row)
    return best


def _draw_pareto(table: Table) -> Any:
    shown = [row for row in table.rows if any(row in points(table, c, m) for c in COSTS for m in MEASURES)]
    models = dict.fromkeys(str(row["model"]) for row in shown)
    styles = dict(zip(models, product(MARKERS, COLOURS), strict=False))
    size = (1 + 2.9 * len(COSTS), 3 + 2.5 * len(MEASURES))
    figure, panels = panel_grid(table.title, (), size, rows=len(MEASURES), columns=len(COSTS))
    for row_of_panels, measure in zip(panels, MEASURES, strict=True):
        row_of_panels[0].set_ylabel(f"{COLUMNS[measure].heading}, percent", fontsize=9, color=INK)
        for panel, cost in zip(row_of_panels, COSTS, strict=True):
            _draw_panel(panel, points(table, cost, measure), cost, measure, styles)
    legend_below(figure, panels[0, 0], "\n".join(wrap("; ".join(table.notes), 120)))
    return figure


def _draw_panel(panel: Any, rows: Sequence[Row], cost: str, measure: str, styles: Mapping[str, Any]) -> None:
    plain_panel(panel, "both")
    panel.spines[:].set_visible(False)
    panel.set_xlabel(COLUMNS[cost].heading, fontsize=8.5, color=INK)
    best = front(rows, cost, measure)
    panel.plot([r[cost] for r in best], [r[measure] for r in best], color=FAINT, linewidth=1, zorder=1)
    for name, (marker, colour) in styles.items():
        own = [row for row in rows if row["model"] == name]
        panel.plot(
            [r[cost] for r in own], [r[measure] for r in own], linestyle="none", marker=marker, color=colour,
            markersize=6.5, markeredgecolor="white", label=name,
        )  # fmt: skip
    if rows:
        panel.set_xlim(left=0, right=1.08 * max(row[cost] for row in rows))
