"""The picture of differences: every interval where the table has it, grey where zero lies inside."""

from __future__ import annotations

import pytest

from qa_arch.results.figures import COLOURS, GREY, _draw_differences, difference_figure, ranked_systems
from qa_arch.results.tables import Table


def row(model: str, delta: float, low: float, high: float) -> dict:
    return {"model": model, "delta": delta, "delta_95_low": low, "delta_95_high": high}


F1 = Table("F1", [], [row("worse", -2.0, -3.0, -1.0), {"model": "bert"}, row("perhaps", 0.5, -1.0, 2.0)])
SPANS = Table("spans", [], [row("perhaps", 1.5, 0.5, 2.5), row("worse", -1.0, -4.0, 2.0)])


@pytest.fixture
def figure():
    return _draw_differences(
        {"F1": F1, "spans": SPANS}, ranked_systems(F1), "Title", "Caption.", {"perhaps": "long name"}
    )


def test_intervals_stand_where_the_table_has_them(figure):
    for panel, table in zip(figure.axes, (F1, SPANS), strict=True):
        bars = [bar.get_segments()[0] for bar in panel.collections]
        shown = [(bar[0][0], bar[1][0]) for bar in bars]
        rows = {row["model"]: row for row in table.rows}
        assert shown == [
            (rows[name]["delta_95_low"], rows[name]["delta_95_high"]) for name in ("perhaps", "worse")
        ]
        marks = [line.get_xdata()[0] for line in panel.get_lines() if line.get_marker() == "o"]
        assert marks == [rows["perhaps"]["delta"], rows["worse"]["delta"]]


def test_only_an_interval_without_zero_is_coloured(figure):
    from matplotlib.colors import to_hex

    colours = [[to_hex(bar.get_colors()[0]).upper() for bar in panel.collections] for panel in figure.axes]
    assert colours == [[GREY, COLOURS[0]], [COLOURS[0], GREY]]


def test_zero_stands_in_the_middle_and_readers_names_at_the_side(figure):
    for panel in figure.axes:
        low, high = panel.get_xlim()
        assert low == -high
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["long name", "worse"]
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["ΔF1", "Δspans"]


def test_the_same_bytes_every_time(tmp_path):
    pairs = [
        difference_figure({"F1": F1}, tmp_path / name, title="T", caption="C") for name in ("first", "second")
    ]
    for left, right in zip(*pairs, strict=True):
        assert left.read_bytes() == right.read_bytes()
