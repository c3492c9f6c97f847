"""Figures of comparisons: made from tables, never from runs. Needs the extra ``plots`` (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.results.columns import COLUMNS, Table
from qa_arch.results.figure_style import FAINT, INK, panel_grid, row_panel, save_figure

DRAWN = ("model", "exact", "f1", "HasAns_f1", "NoAns_f1")
"""The columns of a table that is made to be drawn: no seconds, so its notes speak of scores alone."""


def comparison_figure(
    table: Table, path: str | Path, *, measures: Sequence[str] = DRAWN, by: str = "f1"
) -> tuple[Path, Path]:
    """Draw ``table`` as a dot plot, a panel a measure and a line a model, the highest mean of ``by`` on top.

    Writes ``path`` as SVG and as PNG whatever its ending (.svg, .png or none) and returns both; the
    same table gives the same bytes with the same matplotlib. Several seeds of a model share a line.
    Rows without a seed (heuristics) stand below as light marks. The caption holds the table's notes.
    Raises UnavailableError without matplotlib, ConfigError where no row has a score.
    """
    shown = drawable(table, measures)
    if not shown:
        raise ConfigError(f"{table.title}: no row has a score to draw; score a run first")
    return save_figure(lambda: _draw(table, shown, by), path)


def drawable(table: Table, measures: Sequence[str] = DRAWN) -> list[str]:
    """Those of the measures that are percentages and that any row has."""
    return [k for k in measures if COLUMNS[k].mark and any(r.get(k) is not None for r in table.rows)]


def caption(table: Table) -> str:
    """What the figures were measured on and by, with which seeds, and how to read the marks."""
    seeds = sorted({row["seed"] for row in table.rows if not _is_reference(row)})
    parts = [*table.notes]
    if seeds:
        parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}")
    if any(len(rows) > 1 for _, rows in lines(table)):
        parts.append("a mark is a run, the number beside them their mean")
    if any(map(_is_reference, table.rows)):
        parts.append("open marks: heuristics, which learn nothing")
    return "; ".join(parts)


def lines(table: Table, by: str = "f1") -> list[tuple[str, list[Mapping[str, Any]]]]:
    """The figure's lines from top to bottom: models by their mean ``by``, then the references by theirs."""
    groups: dict[tuple[bool, str], list[Mapping[str, Any]]] = {}
    for row in table.rows:
        groups.setdefault((_is_reference(row), str(row["model"])), []).append(row)

    def order(item: tuple[tuple[bool, str], list[Mapping[str, Any]]]) -> tuple[bool, float]:
        (reference, _), rows = item
        known = [row[by] for row in rows if row.get(by) is not None]
        return reference, -fmean(known) if known else 1.0

    return [(name, rows) for (_, name), rows in sorted(groups.items(), key=order)]


def _is_reference(row: Mapping[str, Any]) -> bool:
    return row.get("seed") is None


def _draw(table: Table, measures: Sequence[str], by: str = "f1") -> Any:
    drawn = lines(table, by)
    left = max(1.4, 0.2 + 0.085 * max(len(name) for name, _ in drawn))
    figure, (panels,) = panel_grid(
        f"{table.title}, percent",
        wrap(caption(table), 26 + 33 * len(measures)),
        columns=len(measures),
        left=left,
        width=left + 0.1 + 2.1 * len(measures),
        body=0.32 * len(drawn) + 0.1,
        head=0.66,
        foot=0.42,
        gap=0.12,
    )
    for panel, key in zip(panels, measures, strict=True):
        _frame(panel, key, drawn)
        for line, (_, rows) in enumerate(drawn):
            _marks(panel, key, line, rows)
    return figure


def _frame(panel: Any, key: str, drawn: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Axis, grid and names of one panel; a thin line parts the models from the references."""
    row_panel(panel, COLUMNS[key].heading, len(drawn), _mark(key)[0])
    panel.set_xlim(-3, 116)  # room for the mark at 0 and the number beside the mark at 100
    panel.set_xticks([0, 25, 50, 75, 100])
    panel.set_yticks(range(len(drawn)), [name for name, _ in drawn])
    models = sum(not _is_reference(rows[0]) for _, rows in drawn)
    if 0 < models < len(drawn):
        panel.axhline(models - 0.5, color=FAINT, linewidth=0.6)


def _mark(key: str) -> tuple[str, str]:
    """Colour and marker of a column's panel."""
    mark = COLUMNS[key].mark
    assert mark is not None, "drawable"
    return mark


def _marks(panel: Any, key: str, line: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """One mark a row, and the number beside it; a run that did not end well says how it ended."""
    colour, marker = _mark(key)
    light = _is_reference(rows[0])
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        ended = next((str(row["status"]).upper() for row in rows if row.get("status", "ok") != "ok"), "–")
        panel.text(0, line, ended, va="center", fontsize=7.5, color=FAINT)
        return
    if not light:
        panel.hlines(line, 0, max(values), color=colour, linewidth=1.2, alpha=0.45)
    panel.plot(
        values,
        [line] * len(values),
        linestyle="none",
        marker=marker,
        markersize=5 if light else 6.5,
        markerfacecolor="white" if light else colour,
        markeredgecolor=FAINT if light else "white",
        markeredgewidth=0.9 if light else 0.6,
        clip_on=False,
    )
    mean = sum(values) / len(values)
    panel.text(max(values) + 5, line, f"{mean:.1f}", va="center", fontsize=8, color=FAINT if light else INK)
