"""Figures of tables and runs in one style, as byte-reproducible SVG and PNG.

Needs the extra ``plots`` (matplotlib), which is imported when a figure is saved: without it, ``save_figure``
raises UnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any, Literal

from qa_arch.config.files import replacing
from qa_arch.errors import UnavailableError
from qa_arch.records import RunRecord, Runs
from qa_arch.results.columns import COLUMNS, EPOCH
from qa_arch.results.systems import System, group_by_system
from qa_arch.results.tables import Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008: distinguishable with any colour vision."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
INK, FAINT, GRID, GREY = "#222222", "#767676", "#E3E3E3", "#B9B9B9"
_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same shapes
    "font.size": 9,
    "figure.constrained_layout.w_pad": 0.1,  # inches
    "figure.constrained_layout.h_pad": 0.08,
    "svg.hashsalt": "qa-arch",  # the ids inside an SVG are random without it
}

Row = Mapping[str, Any]


def save_figure(draw: Callable[[], Any], path: Path) -> tuple[Path, Path]:
    """Save the figure that ``draw`` returns as ``path`` with the suffixes .svg and .png; return both paths.

    The bytes are reproducible for a given matplotlib version. Raises UnavailableError without matplotlib.
    """
    try:
        from matplotlib import style
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install 'qa-arch[plots]'") from error
    svg, png = (path.with_name(f"{path.name}.{kind}") for kind in ("svg", "png"))
    with style.context(["default", _STYLE]):
        figure = draw()
        for target, metadata in ((svg, {"Date": None, "Creator": None}), (png, {"Software": None})):
            with replacing(target) as temporary:
                figure.savefig(temporary, format=target.suffix[1:], dpi=160, metadata=metadata)
    return svg, png


def panel_grid(
    title: str,
    below: Sequence[str],
    size: tuple[float, float],
    *,
    columns: int,
    rows: int = 1,
    sharey: Literal["row"] | bool = "row",
) -> tuple[Any, Any]:
    """Create a figure of ``size`` inches with (rows, columns) panels, a title and caption lines ``below``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharey=sharey, squeeze=False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK)
    figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=7.5, color=FAINT)
    return figure, panels


def legend_below(figure: Any, panel: Any, note: str) -> None:
    """Add the legend of ``panel`` below all panels, and ``note`` above the legend."""
    legend = figure.legend(
        *panel.get_legend_handles_labels(), loc="outside lower left", ncols=3, frameon=False, fontsize=8.5,
        title=note, title_fontsize=7.5, alignment="left",
    )  # fmt: skip
    legend.get_title().set_color(FAINT)


def row_panel(panel: Any, title: str, rows: int, colour: str = INK) -> None:
    """Set up a panel of named rows, the first on top."""
    two_lines = title.replace(" (", "\n(")
    panel.set_title(two_lines, loc="left", fontsize=9.5, color=colour, fontweight="bold")
    panel.set_ylim(rows - 0.4, -0.6)
    plain_panel(panel, "x")
    panel.tick_params(axis="y", labelsize=9, labelcolor=INK)
    panel.spines[:].set_visible(False)


def plain_panel(panel: Any, axis: str) -> None:
    """Remove the ticks of a panel and draw a faint grid across ``axis``."""
    panel.grid(axis=axis, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(length=0, labelsize=8, labelcolor=FAINT)


def caption(table: Table) -> str:
    """Caption: the table's notes, the seeds, and how to read the marks."""
    seeds = sorted({row["seed"] for row in table.rows if not _is_reference(row)})
    parts = [*table.notes]
    if seeds:
        parts.append(f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {', '.join(map(str, seeds))}")
    if any(len(rows) > 1 for _, rows in lines(table)):
        parts.append("a mark is a run, the number beside them their mean")
    if any(map(_is_reference, table.rows)):
        parts.append("open marks: untrained heuristics")
    return "; ".join(parts)


def lines(table: Table, by: str = "f1") -> list[tuple[str, list[Row]]]:
    """Lines from top to bottom: models by their mean ``by``, then references likewise."""
    groups: dict[tuple[bool, str], list[Row]] = {}
    for row in table.rows:
        groups.setdefault((_is_reference(row), str(row["model"])), []).append(row)

    def order(item: tuple[tuple[bool, str], list[Row]]) -> tuple[bool, float]:
        (reference, _), rows = item
        known = [row[by] for row in rows if row.get(by) is not None]
        return reference, -fmean(known) if known else 1.0

    return [(name, rows) for (_, name), rows in sorted(groups.items(), key=order)]


def _is_reference(row: Row) -> bool:
    return row.get("seed") is None


def draw_dots(table: Table, measures: Sequence[str]) -> Any:
    """Draw ``table`` as a dot plot, one panel per measure and one line per model, highest mean of the first
    measure on top.

    Seeds of a model share a line. Rows without a seed (heuristics) come last, with light marks. The caption
    has the table's notes.
    """
    drawn = lines(table, measures[0])
    below = wrap(caption(table), 26 + 33 * len(measures))
    size = (2 + 2.1 * len(measures), 1.1 + 0.32 * len(drawn) + 0.17 * len(below))
    figure, (panels,) = panel_grid(f"{table.title}, percent", below, size, columns=len(measures))
    models = sum(not _is_reference(rows[0]) for _, rows in drawn)
    for panel, key in zip(panels, measures, strict=True):
        mark = COLUMNS[key].mark
        assert mark is not None, "dot_plot refuses other columns"
        row_panel(panel, COLUMNS[key].heading, len(drawn), mark[0])
        panel.set_xlim(-3, 116)  # room for the mark at 0 and the number beside the mark at 100
        panel.set_xticks([0, 25, 50, 75, 100])
        panel.set_yticks(range(len(drawn)), [name for name, _ in drawn])
        if 0 < models < len(drawn):
            panel.axhline(models - 0.5, color=FAINT, linewidth=0.6)  # between models and references
        for line, (_, rows) in enumerate(drawn):
            _dots(panel, key, line, rows, *mark)
    return figure


def _dots(panel: Any, key: str, line: int, rows: Sequence[Row], colour: str, marker: str) -> None:
    """One mark per row and their mean; without values, the status of an unsuccessful run."""
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


def draw_differences(panels: Mapping[str, Table], title: str, caption: str, names: Mapping[str, str]) -> Any:
    """Draw baseline tables side by side.

    ``panels`` maps measures ("F1") to tables of ``against_baseline``; every tested system is a line, sorted
    by the first panel's differences. ``names`` maps labels to display names. Differences with p below 0.05
    after correction are coloured, others are grey: they may be chance.
    """
    tested = [row for row in next(iter(panels.values())).rows if row.get("delta") is not None]
    systems = [str(row["model"]) for row in sorted(tested, key=lambda row: -row["delta"])]
    labels = [names.get(system, system) for system in systems]
    width = 3.4 + 2.6 * len(panels)
    below = wrap(caption, int(17 * width))
    size = (width, 1.2 + 0.42 * len(systems) + 0.17 * len(below))
    figure, (axes,) = panel_grid(title, below, size, columns=len(panels))
    for panel, (measure, table) in zip(axes, panels.items(), strict=True):
        rows = {str(row["model"]): row for row in table.rows}
        _differences(panel, measure, [rows[system] for system in systems])
    axes[0].set_yticks(range(len(systems)), labels)
    return figure


def _differences(panel: Any, measure: str, rows: Sequence[Row]) -> None:
    """Intervals of one measure around a line at zero, which is the baseline."""
    ends = [(row["delta_95_low"], row["delta_95_high"]) for row in rows]
    widest = max(abs(end) for interval in ends for end in interval)
    row_panel(panel, "ΔF1" if measure == "F1" else f"Δ {measure}", len(rows))
    panel.set_xlim(-1.12 * widest, 1.12 * widest)
    panel.axvline(0, color=INK, linewidth=0.9)
    panel.set_xlabel("← baseline better      system better →", fontsize=7.5, color=FAINT)
    for line, (row, (low, high)) in enumerate(zip(rows, ends, strict=True)):
        delta, significant = row["delta"], row["p_holm"] < 0.05
        panel.hlines(line, low, high, color=COLOURS[0] if significant else GREY, linewidth=5, zorder=2)
        panel.plot(delta, line, "o", color=INK, markersize=5, zorder=3)
        panel.text(delta, line - 0.2, f"{delta:+.2f}", ha="center", va="bottom", fontsize=8, color=INK)


def mean_line(records: Sequence[RunRecord], measure: str) -> dict[int, float]:
    """Mean of a measure over the runs that reached an epoch, by epoch from 1."""
    values: dict[int, list[float]] = {}
    for record in records:
        for epoch in record.epochs:
            value = epoch.value(measure)
            if value is not None and epoch.epoch is not None:
                values.setdefault(epoch.epoch + 1, []).append(value)
    return {epoch: fmean(reached) for epoch, reached in sorted(values.items())}


def draw_curves(runs: Runs, measures: Sequence[str], title: str) -> Any:
    """Draw ``measures`` of ``runs`` by epoch.

    Seeds of a system share a line, their mean, with each seed faint behind it; the filled mark is the epoch
    whose weights were kept. Lines differ in dash as well as colour, for print.
    """
    from matplotlib.ticker import MaxNLocator

    systems = sorted(
        group_by_system(sorted(runs, key=lambda run: (run[1].model, run[1].seed))),
        key=lambda system: system.label,
    )
    size = (max(1 + 3.1 * len(measures), 6.2), 3.1 + 0.2 * -(-len(systems) // 3))
    figure, (panels,) = panel_grid(title, (), size, columns=len(measures), sharey=False)
    for panel, measure in zip(panels, measures, strict=True):
        panel.set_title(EPOCH[measure], loc="left", fontsize=9.5, color=INK)
        panel.set_xlabel("epoch", color=FAINT, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
        for number, system in enumerate(systems):
            _curves(panel, number, system, measure)
    several = any(len(system.runs) > 1 for system in systems)
    note = "filled mark: the epoch whose weights were kept" + ("; faint: single seeds" if several else "")
    legend_below(figure, panels[0], note)
    return figure


def _curves(panel: Any, number: int, system: System, measure: str) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    records = [record for _, record in system.runs]
    for record in records:
        line = mean_line([record], measure)
        if len(records) > 1:
            panel.plot(list(line), list(line.values()), color=colour, linewidth=0.7, alpha=0.3)
        if record.best_epoch is not None and (best := record.best_epoch + 1) in line:
            panel.plot(best, line[best], marker=marker, color=colour, markersize=6, zorder=3)
    mean = mean_line(records, measure)
    panel.plot(
        list(mean), list(mean.values()), color=colour, linestyle=DASHES[number % len(DASHES)], linewidth=1.6,
        marker=marker, markersize=3.5, markerfacecolor="white",
        label=system.label if len(records) == 1 else f"{system.label} ({len(records)} seeds)",
    )  # fmt: skip
