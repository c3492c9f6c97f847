"""Figures of tables and runs in one style, as byte-reproducible SVG and PNG.

Needs the extra ``plots`` (matplotlib), which is imported when a figure is saved: without it, every function
that writes a figure raises UnavailableError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from qa_arch.config.files import replacing
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.records import RunRecord, Runs
from qa_arch.results.columns import COLUMNS, EPOCH
from qa_arch.results.systems import group_by_system
from qa_arch.results.tables import Table

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008: distinguishable with any colour vision."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
INK, FAINT, GRID, GREY = "#222222", "#767676", "#E3E3E3", "#B9B9B9"
LINE = 0.17
"""Height of a caption line, in inches."""
LEAST_WIDTH = 6.2
"""Minimum width of learning curves, in inches: room for a title and a few systems in the legend."""
_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same shapes
    "font.size": 9,
    "svg.hashsalt": "qa-arch",  # the ids inside an SVG are random without it
}
_UNDATED = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}

Row = Mapping[str, Any]


def save_figure(draw: Callable[[], Any], path: str | Path) -> tuple[Path, Path]:
    """Save the figure that ``draw`` returns as both SVG and PNG; return their paths.

    The bytes are reproducible for a given matplotlib version. Raises UnavailableError without matplotlib,
    ConfigError for a suffix other than .svg, .png or none.
    """
    target = Path(path)
    if target.suffix not in ("", ".svg", ".png"):
        raise ConfigError(f"{path}: a figure is written as .svg and .png; name one of these")
    try:
        from matplotlib import style
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install 'qa-arch[plots]'") from error
    with style.context(["default", _STYLE]):
        figure = draw()
        for kind in ("svg", "png"):
            with replacing(target.with_suffix(f".{kind}")) as temporary:
                figure.savefig(temporary, format=kind, dpi=160, metadata=_UNDATED[kind])
    return target.with_suffix(".svg"), target.with_suffix(".png")


def panel_grid(
    title: str,
    caption: Sequence[str],
    *,
    rows: int = 1,
    columns: int,
    left: float,
    width: float,
    body: float,
    head: float,
    foot: float,
    gap: float,
    row_gap: float = 0.0,
) -> tuple[Any, Any]:
    """Create a figure with (rows, columns) panels that share the y axis of a row; title above, caption below.

    Lengths are in inches: ``left`` margin for row names, total ``width``, height ``body`` of the panels
    between ``head`` and ``foot``, to which caption lines are added. ``gap`` is a fraction of a panel's width,
    ``row_gap`` of its height.
    """
    from matplotlib.figure import Figure

    foot += LINE * len(caption)
    height = body + head + foot
    figure = Figure(figsize=(width, height))
    panels = figure.subplots(rows, columns, sharey="row", squeeze=False)
    figure.subplots_adjust(
        left=left / width,
        right=1 - 0.2 / width,
        top=1 - head / height,
        bottom=foot / height,
        wspace=gap,
        hspace=row_gap,
    )
    figure.text(0.12 / width, 1 - 0.14 / height, title, va="top", fontsize=11, fontweight="bold", color=INK)
    figure.text(0.12 / width, 0.1 / height, "\n".join(caption), va="bottom", fontsize=7.5, color=FAINT)
    return figure, panels


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


def comparison_figure(
    table: Table, path: str | Path, *, measures: Sequence[str], by: str
) -> tuple[Path, Path]:
    """Draw ``table`` as a dot plot, one panel per measure and one line per model, highest mean ``by`` on top.

    Seeds of a model share a line. Rows without a seed (heuristics) come last, with light marks. The caption
    has the table's notes. Raises ConfigError if no row has a score.
    """
    shown = drawable(table, measures)
    if not shown:
        raise ConfigError(f"{table.title}: no row has a score to draw; score a run first")
    return save_figure(lambda: _draw_dots(table, shown, by), path)


def drawable(table: Table, measures: Sequence[str]) -> list[str]:
    """The measures that are percentages and that some row has."""
    return [k for k in measures if COLUMNS[k].mark and any(r.get(k) is not None for r in table.rows)]


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


def _draw_dots(table: Table, measures: Sequence[str], by: str) -> Any:
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
    models = sum(not _is_reference(rows[0]) for _, rows in drawn)
    for panel, key in zip(panels, measures, strict=True):
        mark = COLUMNS[key].mark
        assert mark is not None, "drawable"
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


def difference_figure(
    panels: Mapping[str, Table],
    path: str | Path,
    *,
    title: str,
    caption: str,
    names: Mapping[str, str],
) -> tuple[Path, Path]:
    """Draw baseline tables side by side.

    ``panels`` maps measures ("F1") to tables of ``against_baseline``; every tested system is a line, sorted
    by the first panel's differences. ``names`` maps labels to display names. Differences with p below 0.05
    after correction are coloured, others are grey: they may be chance. Raises ConfigError if no system was
    tested.
    """
    tested = [row for row in next(iter(panels.values())).rows if row.get("delta") is not None]
    if not tested:
        raise ConfigError(f"{title}: no system was tested against a baseline")
    systems = [str(row["model"]) for row in sorted(tested, key=lambda row: -row["delta"])]
    return save_figure(lambda: _draw_differences(panels, systems, title, caption, names), path)


def _draw_differences(
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


def curves_figure(runs: Runs, measures: Sequence[str], *, title: str, path: Path) -> tuple[Path, Path]:
    """Draw ``measures`` of ``runs`` by epoch.

    Seeds of a system share a line, their mean, with each seed faint behind it; the filled mark is the epoch
    whose weights were kept. Lines differ in dash as well as colour, for print. Raises ConfigError if no run
    recorded a measure.
    """
    for measure in measures:
        if not any(epoch.value(measure) is not None for _, record in runs for epoch in record.epochs):
            raise ConfigError(f"{title}: no run recorded '{measure}'; leave it out of the figure")
    return save_figure(lambda: _draw_curves(runs, measures, title), path)


def mean_line(records: Sequence[RunRecord], measure: str) -> list[tuple[int, float]]:
    """Points (epoch from 1, mean over the runs that reached it) of a measure."""
    values: dict[int, list[float]] = {}
    for record in records:
        for epoch in record.epochs:
            value = epoch.value(measure)
            if value is not None and epoch.epoch is not None:
                values.setdefault(epoch.epoch + 1, []).append(value)
    return [(epoch, fmean(reached)) for epoch, reached in sorted(values.items())]


def _draw_curves(runs: Runs, measures: Sequence[str], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    grouped = group_by_system(sorted(runs, key=lambda run: (run[1].model, run[1].seed)))
    systems = {
        system.label: [record for _, record in system.runs]
        for system in sorted(grouped, key=lambda system: system.label)
    }
    several = any(len(records) > 1 for records in systems.values())
    handles, labels = _curves_legend(systems)
    width = max(1.0 + 3.1 * len(measures), LEAST_WIDTH)
    entry = 0.55 + 0.06 * max(map(len, labels))  # inches, as all below
    columns = max(1, min(len(labels), int((width - 0.5) / entry)))
    foot = 0.62 + 0.2 * -(-len(labels) // columns)
    height = 2.5 + foot
    figure = Figure(figsize=(width, height))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    figure.subplots_adjust(
        left=0.55 / width, right=1 - 0.2 / width, top=1 - 0.75 / height, bottom=foot / height, wspace=0.22
    )
    figure.text(0.12 / width, 1 - 0.1 / height, title, va="top", fontsize=11, fontweight="bold", color=INK)
    for panel, measure in zip(panels, measures, strict=True):
        panel.set_title(EPOCH[measure], loc="left", fontsize=9.5, color=INK)
        panel.set_xlabel("epoch", color=FAINT, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
        for number, records in enumerate(systems.values()):
            _curves(panel, number, records, measure)
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, frameon=False, fontsize=8.5,
        bbox_to_anchor=(0.3 / width, 0.005), handlelength=2.8, columnspacing=1.6,
    )  # fmt: skip
    note = "filled mark: the epoch whose weights were kept" + ("; faint: single seeds" if several else "")
    figure.text(0.12 / width, 1 - 0.31 / height, note, va="top", fontsize=7.5, color=FAINT)
    return figure


def _line_style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def _curves(panel: Any, number: int, records: Sequence[RunRecord], measure: str) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    for record in records:
        line = mean_line([record], measure)
        if len(records) > 1:
            panel.plot(*zip(*line, strict=True), color=colour, linewidth=0.7, alpha=0.3)
        for epoch, value in line:
            if record.best_epoch is not None and epoch == record.best_epoch + 1:
                panel.plot(epoch, value, marker=marker, color=colour, markersize=6, zorder=3)
    if line := mean_line(records, measure):
        panel.plot(
            *zip(*line, strict=True), linewidth=1.6, marker=marker, markersize=3.5, markerfacecolor="white",
            **_line_style(number),
        )  # fmt: skip


def _curves_legend(systems: Mapping[str, Sequence[RunRecord]]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    handles, labels = [], []
    for number, (model, records) in enumerate(systems.items()):
        marker = MARKERS[number % len(MARKERS)]
        handles.append(Line2D([], [], linewidth=1.6, marker=marker, markersize=4, **_line_style(number)))
        labels.append(model if len(records) == 1 else f"{model} ({len(records)} seeds)")
    return handles, labels
