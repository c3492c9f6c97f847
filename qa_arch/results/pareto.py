"""Scores by what a model takes on disk, in time and in memory: a point a run, the best of them joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.results.columns import COLUMNS, Table
from qa_arch.results.figure_style import (
    COLOURS,
    FAINT,
    INK,
    LINE,
    MARKERS,
    panel_grid,
    plain_panel,
    save_figure,
)

COSTS = ("weights_mb", "latency_ratio", "memory_ratio")
MEASURES = ("exact", "f1")
Row = Mapping[str, Any]


def pareto_figure(
    table: Table, path: str | Path, *, costs: Sequence[str] = COSTS, measures: Sequence[str] = MEASURES
) -> tuple[Path, Path]:
    """Draw a panel a measure and cost: a point a row, and a line through the ``front``.

    Rows of a model share colour and marker. Rows without a measure or a cost are left out of its panel.
    Writes ``path`` as SVG and PNG and returns both. Raises UnavailableError without matplotlib, ConfigError
    where no row has both.
    """
    if not any(points(table, cost, measure) for cost in costs for measure in measures):
        raise ConfigError(
            f"{table.title}: no run was scored and measured; score it with qa-arch evaluate, measure it with"
            " python -m benchmarks.compression"
        )
    return save_figure(lambda: _draw(table, costs, measures), path)


def points(table: Table, cost: str, measure: str) -> list[Row]:
    """The rows that have both figures."""
    return [row for row in table.rows if row.get(cost) is not None and row.get(measure) is not None]


def front(rows: Sequence[Row], cost: str, measure: str) -> list[Row]:
    """The rows that no other beats, by cost: each scores more than everything that costs as little."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row[cost], -row[measure])):
        if not best or row[measure] > best[-1][measure]:
            best.append(row)
    return best


def _draw(table: Table, costs: Sequence[str], measures: Sequence[str]) -> Any:
    shown = [row for row in table.rows if any(row in points(table, c, m) for c in costs for m in measures)]
    styles = dict(
        zip(dict.fromkeys(str(row["model"]) for row in shown), product(MARKERS, COLOURS), strict=False)
    )
    below = wrap("; ".join(table.notes), 120)
    figure, panels = panel_grid(
        table.title,
        below,
        rows=len(measures),
        columns=len(costs),
        left=0.75,
        width=1.0 + 2.9 * len(costs),
        body=2.5 * len(measures),
        head=0.55,
        foot=0.65 + 0.2 * -(-len(styles) // 3),
        gap=0.12,
        row_gap=0.3,
    )
    for row_of_panels, measure in zip(panels, measures, strict=True):
        row_of_panels[0].set_ylabel(f"{COLUMNS[measure].heading}, percent", fontsize=9, color=INK)
        for panel, cost in zip(row_of_panels, costs, strict=True):
            _panel(panel, points(table, cost, measure), cost, measure, styles)
    _legend(figure, styles, (0.12 + LINE * len(below)) / figure.get_figheight())
    return figure


def _panel(panel: Any, rows: Sequence[Row], cost: str, measure: str, styles: Mapping[str, Any]) -> None:
    plain_panel(panel, "both")
    panel.spines[:].set_visible(False)
    panel.set_xlabel(COLUMNS[cost].heading, fontsize=8.5, color=INK)
    best = front(rows, cost, measure)
    panel.plot([r[cost] for r in best], [r[measure] for r in best], color=FAINT, linewidth=1, zorder=1)
    for row in rows:
        marker, colour = styles[str(row["model"])]
        panel.plot(
            row[cost], row[measure], marker=marker, color=colour, markersize=6.5, markeredgecolor="white"
        )
    if rows:
        panel.set_xlim(left=0, right=1.08 * max(row[cost] for row in rows))


def _legend(figure: Any, styles: Mapping[str, tuple[str, str]], bottom: float) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], linestyle="none", marker=marker, color=colour, markeredgecolor="white", label=name)
        for name, (marker, colour) in styles.items()
    ]
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.0, bottom), ncols=3, frameon=False, fontsize=8
    )
