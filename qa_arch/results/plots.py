"""Figures of comparisons: made from tables, never from runs. Needs the extra ``plots`` (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from qa_arch.config.files import write_with
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.results.comparison import HEADINGS, Table

DRAWN = ("model", "exact", "f1", "HasAns_f1", "NoAns_f1")
"""The columns of a table that is made to be drawn: no seconds, so its notes speak of scores alone."""

MEASURES: Mapping[str, tuple[str, str]] = {
    "exact": ("#0072B2", "o"),
    "f1": ("#D55E00", "s"),
    "HasAns_f1": ("#009E73", "^"),
    "NoAns_f1": ("#CC79A7", "D"),
    "spans_f1": ("#56B4E9", "v"),
    "answerable_ap": ("#E69F00", "P"),
}
"""Colour (Okabe & Ito 2008: told apart by every kind of colour vision) and marker of each panel."""

_INK, _FAINT, _GRID = "#222222", "#767676", "#E3E3E3"
_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same shapes
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "svg.hashsalt": "qa-arch",  # the ids inside an SVG are random without it
    "svg.fonttype": "path",
}
_UNDATED = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def comparison_figure(
    table: Table, path: str | Path, *, measures: Sequence[str] = DRAWN, by: str = "f1"
) -> tuple[Path, Path]:
    """Draw ``table`` as a dot plot, a panel a measure and a line a model, the highest mean of ``by`` on top.

    Writes ``path`` as SVG and as PNG whatever its ending (.svg, .png or none) and returns both; the
    same table gives the same bytes with the same matplotlib. Several seeds of a model share a line.
    Rows without a seed (heuristics) stand below as light marks. The caption holds the table's notes.
    Raises UnavailableError without matplotlib, ConfigError where no row has a score.
    """
    target = Path(path)
    if target.suffix not in ("", ".svg", ".png"):
        raise ConfigError(f"{path}: a figure is written as .svg and .png; name one of these")
    shown = drawable(table, measures)
    if not shown:
        raise ConfigError(f"{table.title}: no row has a score to draw; score a run first")
    try:
        from matplotlib import style
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install 'qa-arch[plots]'") from error
    with style.context(["default", _STYLE]):
        figure = _draw(table, shown, by)
        svg, png = (
            write_with(
                target.with_suffix(f".{kind}"),
                partial(figure.savefig, format=kind, dpi=160, metadata=_UNDATED[kind]),
            )
            for kind in ("svg", "png")
        )
    return svg, png


def drawable(table: Table, measures: Sequence[str] = DRAWN) -> list[str]:
    """Those of the measures that can be drawn and that any row has."""
    return [key for key in measures if key in MEASURES and any(r.get(key) is not None for r in table.rows)]


def caption(table: Table) -> str:
    """What the figures were measured on and by, with which seeds, and how to read the marks."""
    seeds = sorted({row["seed"] for row in table.rows if not _is_reference(row)})
    told = [*table.notes]
    if seeds:
        told.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}")
    if any(len(rows) > 1 for _, rows in lines(table)):
        told.append("a mark is a run, the number beside them their mean")
    if any(map(_is_reference, table.rows)):
        told.append("open marks: heuristics, which learn nothing")
    return "; ".join(told)


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
    from matplotlib.figure import Figure

    drawn = lines(table, by)
    told = wrap(caption(table), 26 + 33 * len(measures))
    body, head, foot = 0.32 * len(drawn) + 0.1, 0.66, 0.42 + 0.17 * len(told)  # inches
    left = max(1.4, 0.2 + 0.085 * max(len(name) for name, _ in drawn))
    width, height = left + 0.1 + 2.1 * len(measures), body + head + foot
    figure = Figure(figsize=(width, height))
    panels = figure.subplots(1, len(measures), sharey=True, squeeze=False)[0]
    figure.subplots_adjust(
        left=left / width, right=1 - 0.2 / width, top=1 - head / height, bottom=foot / height, wspace=0.12
    )
    figure.text(
        0.12 / width, 1 - 0.14 / height, f"{table.title}, percent", va="top", fontsize=11, fontweight="bold"
    )
    figure.text(0.12 / width, 0.1 / height, "\n".join(told), va="bottom", fontsize=7.5, color=_FAINT)
    for panel, key in zip(panels, measures, strict=True):
        _frame(panel, key, drawn)
        for height_, (_, rows) in enumerate(drawn):
            _marks(panel, key, height_, rows)
    return figure


def _frame(panel: Any, key: str, drawn: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> None:
    """Axis, grid and names of one panel; a thin line parts the models from the references."""
    panel.set_title(HEADINGS[key], loc="left", fontsize=9.5, color=MEASURES[key][0], fontweight="bold")
    panel.set_xlim(-3, 116)  # room for the mark at 0 and the number beside the mark at 100
    panel.set_xticks([0, 25, 50, 75, 100])
    panel.set_ylim(len(drawn) - 0.4, -0.6)
    panel.set_yticks(range(len(drawn)), [name for name, _ in drawn])
    panel.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
    panel.tick_params(axis="y", labelsize=9, labelcolor=_INK)
    panel.grid(axis="x", color=_GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[:].set_visible(False)
    models = sum(not _is_reference(rows[0]) for _, rows in drawn)
    if 0 < models < len(drawn):
        panel.axhline(models - 0.5, color=_FAINT, linewidth=0.6)


def _marks(panel: Any, key: str, line: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """One mark a row, and the number beside it; a run that did not end well says how it ended."""
    colour, marker = MEASURES[key]
    light = _is_reference(rows[0])
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values:
        ended = next((str(row["status"]).upper() for row in rows if row.get("status", "ok") != "ok"), "–")
        panel.text(0, line, ended, va="center", fontsize=7.5, color=_FAINT)
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
        markeredgecolor=_FAINT if light else "white",
        markeredgewidth=0.9 if light else 0.6,
        clip_on=False,
    )
    mean = sum(values) / len(values)
    panel.text(max(values) + 5, line, f"{mean:.1f}", va="center", fontsize=8, color=_FAINT if light else _INK)
