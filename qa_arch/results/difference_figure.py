"""Differences from a baseline with their intervals, as a picture: a line a system, a panel a measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.results.columns import Table
from qa_arch.results.figure_style import COLOURS, FAINT, INK, panel_grid, row_panel, save_figure

GREY = "#B9B9B9"
LOW, HIGH = "delta_95_low", "delta_95_high"


def difference_figure(
    panels: Mapping[str, Table],
    path: str | Path,
    *,
    title: str,
    caption: str,
    names: Mapping[str, str] | None = None,
) -> tuple[Path, Path]:
    """Draw baseline tables beside each other and return the SVG and the PNG that were written.

    ``panels`` maps what is compared ("F1") to a table of ``baseline_table``; every system that was tested is
    a line, in the order of the first panel's differences. ``names`` are what readers call the systems. An
    interval that excludes zero is coloured, another one is grey: it may be chance.
    Raises UnavailableError without matplotlib, ConfigError where no system was tested.
    """
    systems = ranked_systems(next(iter(panels.values())))
    if not systems:
        raise ConfigError(f"{title}: no system was tested against a baseline")
    return save_figure(lambda: _draw(panels, systems, title, caption, names or {}), path)


def ranked_systems(table: Table) -> list[str]:
    """The systems that have a difference, the largest first."""
    rows = [row for row in table.rows if row.get("delta") is not None]
    return [str(row["model"]) for row in sorted(rows, key=lambda row: -row["delta"])]


def _draw(
    panels: Mapping[str, Table], systems: Sequence[str], title: str, caption: str, names: Mapping[str, str]
) -> Any:
    labels = [names.get(system, system) for system in systems]
    left = max(1.4, 0.2 + 0.075 * max(map(len, labels)))
    width = left + 2.6 * len(panels) + 0.2
    figure, (axes,) = panel_grid(
        title,
        wrap(caption, int(17 * width)),
        columns=len(panels),
        left=left,
        width=width,
        body=0.42 * len(systems) + 0.15,
        head=0.72,
        foot=0.62,
        gap=0.1,
    )
    for panel, (measure, table) in zip(axes, panels.items(), strict=True):
        _panel(panel, measure, table, systems)
    axes[0].set_yticks(range(len(systems)), labels)
    return figure


def _panel(panel: Any, measure: str, table: Table, systems: Sequence[str]) -> None:
    """The intervals of one measure around a line at zero, where a system equals the baseline."""
    rows = {str(row["model"]): row for row in table.rows}
    widest = max(abs(rows[system][end]) for system in systems for end in (LOW, HIGH))
    row_panel(panel, f"Δ{measure}", len(systems))
    panel.set_xlim(-1.12 * widest, 1.12 * widest)
    panel.axvline(0, color=INK, linewidth=0.9)
    panel.set_xlabel("← baseline better      system better →", fontsize=7.5, color=FAINT)
    for line, system in enumerate(systems):
        row = rows[system]
        low, high, sure = row[LOW], row[HIGH], row[LOW] > 0 or row[HIGH] < 0
        panel.hlines(line, low, high, color=COLOURS[0] if sure else GREY, linewidth=5, zorder=2)
        panel.plot(row["delta"], line, "o", color=INK, markersize=5, zorder=3)
        panel.text(
            row["delta"], line - 0.2, f"{row['delta']:+.2f}", ha="center", va="bottom", fontsize=8, color=INK
        )
