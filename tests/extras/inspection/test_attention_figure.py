"""The heat map of attention: the right numbers at the right units, in lines, as text is."""

from __future__ import annotations

import numpy as np
import pytest
from extras.inspection.inspections import make_inspection

from qa_arch.extras.inspection import figure as module
from qa_arch.extras.inspection.figure import attention_figure
from qa_arch.extras.inspection.layers import ALL, MEAN, select_heads

pytest.importorskip("matplotlib")
INSPECTION = make_inspection()


def images(panel) -> list[np.ndarray]:
    """All else, then the question's units."""
    return [np.asarray(image.get_array()) for image in panel.get_images()]


@pytest.mark.parametrize("layer", ["2", "match"])
def test_a_head_is_drawn_in_lines_with_its_units(monkeypatch, layer):
    monkeypatch.setattr(module, "LINE", 5)
    chosen = select_heads(INSPECTION.layers, layer, MEAN)
    figure = module._draw_lines(INSPECTION, chosen)
    *panels, _bar = figure.axes
    assert len(panels) == 2
    wanted = chosen[0][0].over_question(MEAN).T
    drawn = [np.concatenate([*reversed(images(panel))]) for panel in panels]
    assert np.concatenate(drawn, axis=1) == pytest.approx(wanted)
    ticks = [tick.get_text() for panel in panels for tick in panel.get_xticklabels()]
    assert ticks == ["Ada", "built", r"\$", "5", "and", r"\$", "6", "mills", "."]
    rest = "(nothing)" if layer == "match" else "(all else)"
    assert [tick.get_text() for tick in panels[0].get_yticklabels()] == ["Who", "built", "it", "?", rest]
    texts = [text.get_text() for text in figure.texts]
    assert any("window 2 of 3, characters 8 to 34 of 43" in text for text in texts)
    assert len({image.get_clim() for panel in panels for image in panel.get_images()[1:]}) == 1


def test_several_are_small_maps_a_row_a_layer():
    figure = module._draw_grid(INSPECTION, select_heads(INSPECTION.layers, ALL, ALL))
    titles = [panel.get_title(loc="left") for panel in figure.axes if panel.get_visible()]
    assert titles[:3] == ["layer 1, head 1", "layer 1, head 2", "layer 2, head 1"]
    assert titles[-1] == "match-LSTM, backward"
    second = images(figure.axes[1])[1]
    assert second == pytest.approx(INSPECTION.layers[0].over_question("2").T[:-1])


def test_the_same_bytes_every_time(tmp_path):
    chosen = select_heads(INSPECTION.layers, "1", "1")
    first, second = (attention_figure(INSPECTION, chosen, tmp_path / name) for name in ("a.png", "b.png"))
    for left, right in zip(first, second, strict=True):
        assert left.read_bytes() == right.read_bytes()
    assert {path.name for path in first} == {"a.svg", "a.png"}
