"""Learning curves: one panel a measure, one line a system, the chosen epoch marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.config.files import write_with
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.results.groups import group_runs
from qa_arch.results.record import Runs
from qa_arch.types.records import RunRecord

MEASURES: Mapping[str, str] = {
    "train_loss": "training loss",
    "calibration_loss": "calibration loss",
    "calibration_exact": "calibration EM",
    "calibration_f1": "calibration F1",
    "calibration_f1_at_0": "calibration F1 at margin 0",
    "calibration_spans_f1": "calibration HasAns F1, never null",
    "train_seconds": "seconds of training",
    "windows_per_second": "windows a second",
}
"""What is recorded once an epoch and can be drawn, and its heading."""

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008: told apart by every kind of colour vision."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
LEAST_WIDTH = 6.2
"""Inches: room for a title and a few systems in the legend."""

_INK, _FAINT, _GRID = "#222222", "#767676", "#E3E3E3"
_UNDATED = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def curves_figure(runs: Runs, measures: Sequence[str], *, title: str, path: Path) -> tuple[Path, Path]:
    """Draw ``measures`` of ``runs`` by epoch, as ``path``.svg and .png, and return both.

    Several seeds of a system share a line, their mean, with each seed faint behind it; the filled mark
    is the epoch whose weights were kept. Lines differ in dash as well as in colour, so that they can
    be told apart in print. Raises UnavailableError without matplotlib, ConfigError where none of the
    runs recorded a measure.
    """
    for measure in measures:
        if not any(epoch.value(measure) is not None for _, record in runs for epoch in record.epochs):
            raise ConfigError(f"{title}: no run recorded '{measure}'; leave it out of the figure")
    return save_figure(lambda: _draw(runs, measures, title), path)


def save_figure(draw: Callable[[], Any], path: Path) -> tuple[Path, Path]:
    """Write what ``draw`` makes as ``path``.svg and .png, the same bytes from the same figures."""
    try:
        from matplotlib import style
    except ImportError as error:
        raise UnavailableError("figures need matplotlib: pip install 'qa-arch[plots]'") from error
    with style.context(
        ["default", {"font.family": "DejaVu Sans", "font.size": 9, "svg.hashsalt": "qa-arch"}]
    ):
        figure = draw()
        svg, png = (
            write_with(
                path.with_suffix(f".{kind}"),
                partial(figure.savefig, format=kind, dpi=160, metadata=_UNDATED[kind]),
            )
            for kind in ("svg", "png")
        )
    return svg, png


def by_system(runs: Runs) -> dict[str, list[RunRecord]]:
    """The seeds of each system, systems by name; runs of other settings are another system."""
    ordered = sorted(runs, key=lambda run: (run[1].model, run[1].seed))
    groups = sorted(group_runs(ordered), key=lambda group: group.label)
    return {group.label: [record for _, record in group.runs] for group in groups}


def mean_line(records: Sequence[Any], measure: str) -> list[tuple[int, float]]:
    """(epoch from 1, mean over the runs that reached it) of a measure."""
    values: dict[int, list[float]] = {}
    for record in records:
        for epoch in record.epochs:
            value = epoch.value(measure)
            if value is not None and epoch.epoch is not None:
                values.setdefault(epoch.epoch + 1, []).append(value)
    return [(epoch, fmean(found)) for epoch, found in sorted(values.items())]


def _draw(runs: Runs, measures: Sequence[str], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    groups = by_system(runs)
    handles, labels = _legend(groups)
    width = max(1.0 + 3.1 * len(measures), LEAST_WIDTH)
    columns = _columns(labels, width)
    foot = 0.62 + 0.2 * -(-len(labels) // columns)  # inches, as all below
    height = 2.5 + foot
    figure = Figure(figsize=(width, height))
    panels = figure.subplots(1, len(measures), squeeze=False)[0]
    figure.subplots_adjust(
        left=0.55 / width, right=1 - 0.2 / width, top=1 - 0.75 / height, bottom=foot / height, wspace=0.22
    )
    figure.text(0.12 / width, 1 - 0.1 / height, title, va="top", fontsize=11, fontweight="bold", color=_INK)
    for panel, measure in zip(panels, measures, strict=True):
        panel.set_title(MEASURES[measure], loc="left", fontsize=9.5, color=_INK)
        panel.set_xlabel("epoch", color=_FAINT, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        panel.grid(axis="y", color=_GRID, linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(length=0, labelsize=8, labelcolor=_FAINT)
        for number, records in enumerate(groups.values()):
            _lines(panel, number, records, measure)
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, frameon=False, fontsize=8.5,
        bbox_to_anchor=(0.3 / width, 0.005), handlelength=2.8, columnspacing=1.6,
    )  # fmt: skip
    note = "filled mark: the epoch whose weights were kept"
    if any(len(records) > 1 for records in groups.values()):
        note += "; faint: single seeds"
    figure.text(0.12 / width, 1 - 0.31 / height, note, va="top", fontsize=7.5, color=_FAINT)
    return figure


def _columns(labels: Sequence[str], width: float) -> int:
    """Of the legend: as many as fit beside each other, each as wide as the longest label."""
    entry = 0.55 + 0.06 * max(map(len, labels))
    return max(1, min(len(labels), int((width - 0.5) / entry)))


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def _lines(panel: Any, number: int, records: Sequence[Any], measure: str) -> None:
    colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
    for record in records:
        line = mean_line([record], measure)
        if len(records) > 1:
            panel.plot(*zip(*line, strict=True), color=colour, linewidth=0.7, alpha=0.3)
        kept = [
            point for point in line if record.best_epoch is not None and point[0] == record.best_epoch + 1
        ]
        for epoch, value in kept:
            panel.plot(epoch, value, marker=marker, color=colour, markersize=6, zorder=3)
    line = mean_line(records, measure)
    if line:
        panel.plot(
            *zip(*line, strict=True), linewidth=1.6, marker=marker, markersize=3.5, markerfacecolor="white",
            **_style(number),
        )  # fmt: skip


def _legend(groups: Mapping[str, Sequence[Any]]) -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    handles, labels = [], []
    for number, (model, records) in enumerate(groups.items()):
        marker = MARKERS[number % len(MARKERS)]
        handles.append(Line2D([], [], linewidth=1.6, marker=marker, markersize=4, **_style(number)))
        seeds = "" if len(records) == 1 else f" ({len(records)} seeds)"
        labels.append(f"{model}{seeds}")
    return handles, labels
