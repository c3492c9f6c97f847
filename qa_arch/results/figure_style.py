"""What all figures share: colours, marks, fonts, and files that are the same bytes every time.

Needs the extra ``plots`` (matplotlib), which is imported when a figure is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from qa_arch.config.files import write_with
from qa_arch.errors import ConfigError, UnavailableError

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe & Ito 2008: told apart by every kind of colour vision."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"
INK, FAINT, GRID = "#222222", "#767676", "#E3E3E3"
LINE = 0.17
"""Inches that a line of a caption takes."""
_STYLE = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so every machine draws the same shapes
    "font.size": 9,
    "svg.hashsalt": "qa-arch",  # the ids inside an SVG are random without it
}
_UNDATED = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}


def save_figure(draw: Callable[[], Any], path: str | Path) -> tuple[Path, Path]:
    """Write what ``draw`` makes as SVG and as PNG, whatever the ending of ``path``, and return both.

    The same figures give the same bytes with the same matplotlib. Raises UnavailableError without it,
    ConfigError for another ending than .svg, .png or none.
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
        svg, png = (
            write_with(
                target.with_suffix(f".{kind}"),
                partial(figure.savefig, format=kind, dpi=160, metadata=_UNDATED[kind]),
            )
            for kind in ("svg", "png")
        )
    return svg, png


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
    """A figure and its (rows, columns) panels, which share the y of a row: title above, caption below.

    Lengths are inches: ``left`` for the names of rows, ``width`` of all, ``body`` of the panels between
    ``head`` and ``foot``, to which the lines of the caption add their own height. ``gap`` is a share of a
    panel's width, ``row_gap`` of its height.
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
    """A panel with so many rows, the first on top, that are named at its left."""
    panel.set_title(title, loc="left", fontsize=9.5, color=colour, fontweight="bold")
    panel.set_ylim(rows - 0.4, -0.6)
    plain_panel(panel, "x")
    panel.tick_params(axis="y", labelsize=9, labelcolor=INK)
    panel.spines[:].set_visible(False)


def plain_panel(panel: Any, axis: str) -> None:
    """A panel without a frame or ticks, with a faint grid across ``axis``."""
    panel.grid(axis=axis, color=GRID, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.tick_params(length=0, labelsize=8, labelcolor=FAINT)
