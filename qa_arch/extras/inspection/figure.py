"""How the passage looks at the question, as a heat map: ``qa-arch inspect --png``. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qa_arch.extras.inspection.layers import MATCH, AttentionLayer, Inspection, label
from qa_arch.results.figures import COLOURS, FAINT, INK, save_figure

LINE = 44
"""Most units of the passage side by side; a longer window is broken into lines, as text is."""
UNIT, HEAD = 0.17, 0.6
"""Inches: the side of a unit's square, and what stands above the first line."""
Chosen = Sequence[tuple[AttentionLayer, str]]


def attention_figure(inspection: Inspection, chosen: Chosen, path: str | Path) -> tuple[Path, Path]:
    """Draw the layers and heads in ``chosen`` as ``path``.svg and .png and return both.

    A single one is labelled with its units, several are small maps side by side, a row a layer. Colour is
    the share of its attention that a unit of the passage gives to one of the question; the last row, in
    grey, is all else. Raises UnavailableError without matplotlib.
    """
    draw = _draw_lines if len(chosen) == 1 else _draw_grid
    return save_figure(lambda: draw(inspection, chosen), path)


def _draw_lines(inspection: Inspection, chosen: Chosen) -> Any:
    from matplotlib.figure import Figure

    ((layer, head),) = chosen
    shares = layer.over_question(head).T  # (Q + 1, C)
    down = [_plain(unit.text) for unit in layer.columns if unit.part == "question"]
    down += ["(nothing)" if layer.name == MATCH else "(all else)"]
    across = [_plain(unit.text) for unit in layer.rows if unit.part == "passage"]
    long = -(-len(across) // -(-len(across) // LINE))  # lines of like length
    lines = [slice(first, first + long) for first in range(0, len(across), long)]
    left, tall = 0.3 + 0.07 * max(map(len, down)), UNIT * len(down)  # inches, as all below
    step = tall + 0.2 + 0.062 * max(map(len, across))
    width, height = left + UNIT * max(long, 24) + 0.9, HEAD + step * len(lines) + 0.1
    figure = Figure(figsize=(width, height))
    _title(figure, inspection, label(layer, head))
    most = float(shares[:-1].max())
    for number, part in enumerate(lines):
        names = across[part]
        panel = _panel(figure, left, HEAD + number * step, UNIT * len(names), tall)
        image = _image(panel, shares[:, part], most)
        panel.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        panel.set_yticks(range(len(down)), down, fontsize=7.5)
        panel.tick_params(length=0, labelcolor=INK)
    bar = _panel(figure, width - 0.62, HEAD, 0.09, tall)
    figure.colorbar(image, cax=bar).outline.set_visible(False)
    bar.tick_params(labelsize=7, labelcolor=FAINT, length=0)
    return figure


def _panel(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Axes by their place in inches from the upper left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def _draw_grid(inspection: Inspection, chosen: Chosen) -> Any:
    from matplotlib.figure import Figure

    layers = list(dict.fromkeys(layer for layer, _ in chosen))
    heads = {layer: [head for item, head in chosen if item is layer] for layer in layers}
    most = max(float(layer.over_question(head)[:, :-1].max()) for layer, head in chosen)
    columns = max(map(len, heads.values()))
    width, height = 0.5 + 1.25 * max(columns, 3), 0.65 + 0.95 * len(layers)
    figure = Figure(figsize=(width, height))
    _title(figure, inspection, f"{len(layers)} layers, {len(chosen)} maps, colour up to {most:.2f}")
    panels = figure.subplots(len(layers), columns, squeeze=False)
    figure.subplots_adjust(
        left=0.08 / width,
        right=1 - 0.08 / width,
        top=1 - 0.75 / height,
        bottom=0.08 / height,
        hspace=0.3,
        wspace=0.06,
    )
    for row, layer in zip(panels, layers, strict=True):
        for panel, head in zip(row, [*heads[layer], *[None] * (columns - len(heads[layer]))], strict=True):
            if head is None:
                panel.set_visible(False)
                continue
            _image(panel, layer.over_question(head).T, most)
            panel.set_title(label(layer, head), fontsize=6.5, color=INK, loc="left", pad=2)
            panel.set_xticks([])
            panel.set_yticks([])
    return figure


def _image(panel: Any, shares: npt.NDArray[np.float32], most: float) -> Any:
    """The question's units in colour up to ``most``, the last row, all else, in grey up to 1."""
    from matplotlib.colors import LinearSegmentedColormap

    panel.spines[:].set_color(FAINT)
    panel.spines[:].set_linewidth(0.4)
    across, (middle, last) = (-0.5, shares.shape[1] - 0.5), (len(shares) - 1.5, len(shares) - 0.5)
    look: dict[str, Any] = {"vmin": 0, "aspect": "auto", "interpolation": "nearest"}
    greys = LinearSegmentedColormap.from_list("rest", ["#FFFFFF", FAINT])
    panel.imshow(shares[-1:], cmap=greys, vmax=1, extent=(*across, last, middle), **look)
    colours = LinearSegmentedColormap.from_list("attention", ["#FFFFFF", COLOURS[0]])
    image = panel.imshow(shares[:-1], cmap=colours, vmax=most, extent=(*across, middle, -0.5), **look)
    panel.set_ylim(last, -0.5)
    return image


def _title(figure: Any, inspection: Inspection, shown: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(
        0.1 / width,
        1 - 0.08 / height,
        f"{inspection.model}: {shown}",
        va="top",
        fontsize=10,
        fontweight="bold",
        color=INK,
    )
    note = f"how the passage looks at the question; {inspection.window_text}"
    figure.text(0.1 / width, 1 - 0.28 / height, note, va="top", fontsize=7, color=FAINT)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # else two of them are a formula
