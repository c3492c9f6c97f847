"""Figures of lines: learning curves by epoch, and scores by the number of training questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.errors import ConfigError
from qa_arch.results.columns import COLUMNS
from qa_arch.results.comparison import comparison
from qa_arch.results.figure_style import COLOURS, DASHES, FAINT, GRID, INK, MARKERS, plain_panel, save_figure
from qa_arch.results.published_vs_ours import mean_metric
from qa_arch.results.record import Runs
from qa_arch.results.systems import group_by_system
from qa_arch.types.records import TRAIN, RunRecord

MEASURES: Mapping[str, str] = {
    "train_loss": "training loss",
    "calibration_loss": "calibration loss",
    "calibration_exact": "calibration EM",
    "calibration_f1": "calibration F1",
    "calibration_f1_at_0": "calibration F1 at threshold 0",
    "calibration_spans_f1": "calibration HasAns F1, never null",
    "calibration_perplexity": "calibration perplexity",
    "calibration_token_accuracy": "calibration token accuracy",
    "calibration_bits_per_byte": "calibration bits per byte",
    "train_seconds": "seconds of training",
    "windows_per_second": "windows a second",
}
"""What is recorded once an epoch and can be drawn, and its heading."""

LEAST_WIDTH = 6.2
"""Inches: room for a title and a few systems in the legend."""


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


def by_system(runs: Runs) -> dict[str, list[RunRecord]]:
    """The seeds of each system, systems by name; runs of other settings are another system."""
    ordered = sorted(runs, key=lambda run: (run[1].model, run[1].seed))
    groups = sorted(group_by_system(ordered), key=lambda group: group.label)
    return {group.label: [record for _, record in group.runs] for group in groups}


def mean_line(records: Sequence[Any], measure: str) -> list[tuple[int, float]]:
    """(epoch from 1, mean over the runs that reached it) of a measure."""
    values: dict[int, list[float]] = {}
    for record in records:
        for epoch in record.epochs:
            value = epoch.value(measure)
            if value is not None and epoch.epoch is not None:
                values.setdefault(epoch.epoch + 1, []).append(value)
    return [(epoch, fmean(reached)) for epoch, reached in sorted(values.items())]


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
    figure.text(0.12 / width, 1 - 0.1 / height, title, va="top", fontsize=11, fontweight="bold", color=INK)
    for panel, measure in zip(panels, measures, strict=True):
        panel.set_title(MEASURES[measure], loc="left", fontsize=9.5, color=INK)
        panel.set_xlabel("epoch", color=FAINT, fontsize=8)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
        panel.spines[["top", "right", "left"]].set_visible(False)
        plain_panel(panel, "y")
        for number, records in enumerate(groups.values()):
            _lines(panel, number, records, measure)
    figure.legend(
        handles, labels, loc="lower left", ncols=columns, frameon=False, fontsize=8.5,
        bbox_to_anchor=(0.3 / width, 0.005), handlelength=2.8, columnspacing=1.6,
    )  # fmt: skip
    note = "filled mark: the epoch whose weights were kept"
    if any(len(records) > 1 for records in groups.values()):
        note += "; faint: single seeds"
    figure.text(0.12 / width, 1 - 0.31 / height, note, va="top", fontsize=7.5, color=FAINT)
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
        chosen = [
            point for point in line if record.best_epoch is not None and point[0] == record.best_epoch + 1
        ]
        for epoch, value in chosen:
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


@dataclass(frozen=True)
class SizePoint:
    """Somebody else's figures, at the number of questions that they trained on."""

    label: str
    questions: int
    exact: float
    f1: float


@dataclass(frozen=True)
class SizeScores:
    """Percent of our runs of one size, means over them; ``train_exact`` on their own training questions."""

    questions: int
    exact: float | None
    f1: float | None
    train_exact: float | None = None


def by_size(runs: Runs, split: str) -> list[SizeScores]:
    """The scores by number of training questions, in rising order; RunError for runs that do not compare."""
    comparison(runs, split=split, columns=["model"])
    by_questions: dict[int, list[RunRecord]] = {}
    for _, record in runs:
        questions = record.facts(TRAIN).questions
        if questions and record.compared_point(split):
            by_questions.setdefault(questions, []).append(record)
    return [
        SizeScores(
            questions,
            exact=mean_metric(records, split, "exact"),
            f1=mean_metric(records, split, "f1"),
            train_exact=mean_metric(records, TRAIN, "exact"),
        )
        for questions, records in sorted(by_questions.items())
    ]


def sizes_figure(
    ours: Sequence[SizeScores], published: Sequence[SizePoint], *, title: str, path: Path
) -> tuple[Path, Path]:
    """Draw ``ours``, of ``by_size``, as ``path``.svg and .png and return both; the axis of questions is
    logarithmic."""
    return save_figure(lambda: _draw_sizes(ours, published, title), path)


def _draw_sizes(ours: Sequence[SizeScores], published: Sequence[SizePoint], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(5.2, 3.4), layout="tight")
    panel = figure.subplots()
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.set_xscale("log")
    panel.set_xlabel("training questions", color=FAINT, fontsize=8)
    panel.grid(axis="y", color=GRID, linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    sizes = [point.questions for point in ours]
    for number, key in enumerate(("exact", "f1")):
        heading = COLUMNS[key].heading
        look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number]}
        panel.plot(
            sizes, [getattr(point, key) for point in ours], linestyle=DASHES[number], label=heading, **look
        )
        look |= {"linestyle": "", "fillstyle": "none"}
        for point in published:
            panel.plot(point.questions, getattr(point, key), label=f"{heading}, {point.label}", **look)
    learned = [(point.questions, point.train_exact) for point in ours if point.train_exact is not None]
    if learned:
        own: dict[str, Any] = {"color": FAINT, "marker": MARKERS[2], "linestyle": DASHES[2]}
        panel.plot(*zip(*learned, strict=True), label="EM, its training questions", **own)
    ticks = sorted({*sizes, *(point.questions for point in published)})
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8)
    return figure
