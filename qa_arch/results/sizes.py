"""EM and F1 against the number of training questions, with published figures as points of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qa_arch.results.comparison import Runs, comparison
from qa_arch.results.curves import COLOURS, DASHES, MARKERS, save_figure

SCORES = {"exact": "EM", "f1": "F1"}
_FAINT, _GRID = "#767676", "#E3E3E3"


@dataclass(frozen=True)
class SizePoint:
    """Somebody else's figures, at the number of questions that they trained on."""

    label: str
    questions: int
    exact: float
    f1: float


def by_size(runs: Runs, split: str) -> list[tuple[int, float, float]]:
    """(training questions, EM, F1) in rising order; of several runs of one size, the mean."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in comparison(runs, split=split).rows:
        if row.get("train_questions") and row.get("exact") is not None:
            found.setdefault(row["train_questions"], []).append((row["exact"], row["f1"]))
    return [(size, *map(fmean, zip(*scores, strict=True))) for size, scores in sorted(found.items())]  # type: ignore[misc]


def sizes_figure(
    runs: Runs, published: Sequence[SizePoint], *, split: str, title: str, path: Path
) -> tuple[Path, Path]:
    """Draw ``path``.svg and .png and return both; the axis of questions is logarithmic."""
    return save_figure(lambda: _draw(by_size(runs, split), published, title), path)


def _draw(ours: Sequence[tuple[int, float, float]], published: Sequence[SizePoint], title: str) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(5.2, 3.4), layout="tight")
    panel = figure.subplots()
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.set_xscale("log")
    panel.set_xlabel("training questions", color=_FAINT, fontsize=8)
    panel.grid(axis="y", color=_GRID, linewidth=0.8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    sizes = [point[0] for point in ours]
    for number, (key, heading) in enumerate(SCORES.items()):
        look: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number]}
        values = [point[1 + number] for point in ours]
        panel.plot(sizes, values, linestyle=DASHES[number], label=heading, **look)
        look |= {"linestyle": "", "fillstyle": "none"}
        for point in published:
            panel.plot(point.questions, getattr(point, key), label=f"{heading}, {point.label}", **look)
    ticks = sorted({*sizes, *(point.questions for point in published)})
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_ylim(bottom=0)
    panel.legend(frameon=False, fontsize=8)
    return figure
