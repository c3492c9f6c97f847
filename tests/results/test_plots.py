"""Figures of comparisons: positions of marks, reproducible bytes, and the error without matplotlib."""

import re
import sys
from pathlib import Path

import pytest

from qa_arch.errors import UnavailableError
from qa_arch.results.columns import runs_table
from qa_arch.results.experiments import draw_dots, lines, save_figure

pytest.importorskip("matplotlib")
DRAWN = ("exact", "f1", "HasAns_f1", "NoAns_f1")


@pytest.fixture
def table(make_record):
    runs = [
        (Path("runs/a"), make_record("bert", 40.0)),
        (Path("runs/b"), make_record("proposed", 60.0, seed=13)),
        (Path("runs/c"), make_record("proposed", 66.0, seed=14)),
        (Path("runs/d"), make_record("roberta", None, status="oom")),
    ]
    return runs_table(runs, columns=("model", *DRAWN))


def marks(panel) -> dict[int, list[float]]:
    """Scores at which the panel has marks, by line from the top."""
    drawn = (line for line in panel.get_lines() if line.get_marker() not in ("None", None, ""))
    return {int(line.get_ydata()[0]): list(line.get_xdata()) for line in drawn}


def test_marks_are_drawn_at_their_scores(table):
    panels = draw_dots(table, DRAWN).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["EM", "F1", "HasAns F1", "NoAns F1"]
    assert marks(panels[0]) == {0: [60.0, 66.0], 1: [40.0], 3: [50.0]}
    assert marks(panels[1]) == {0: [62.0, 68.0], 1: [42.0], 3: [50.0]}
    assert marks(panels[2]) == {0: [74.0, 80.0], 1: [54.0], 3: [0.0]}
    assert marks(panels[3]) == {0: [50.0, 56.0], 1: [30.0], 3: [100.0]}
    labels = [text.get_text() for text in panels[0].texts]
    assert labels == ["63.0", "40.0", "OOM", "50.0"]
    names = [label.get_text() for label in panels[0].get_yticklabels()]
    assert names == [name for name, _ in lines(table, "exact")]
    top, bottom = panels[0].transData.transform([(0, 0), (0, 3)])[:, 1]
    assert top > bottom, "the first line is the upper one"


def test_figures_are_reproducible_and_undated(table, tmp_path):
    first = save_figure(lambda: draw_dots(table, DRAWN), tmp_path / "new" / "one")
    assert [path.name for path in first] == ["one.svg", "one.png"]
    second = save_figure(lambda: draw_dots(table, DRAWN), tmp_path / "two")
    assert [path.name for path in second] == ["two.svg", "two.png"]
    for before, after in zip(first, second, strict=True):
        assert before.read_bytes() == after.read_bytes()
    svg = first[0].read_text()
    assert svg.startswith("<?xml")
    assert not re.search(r"\b20\d\d-\d\d-\d\dT", svg)
    assert first[1].read_bytes().startswith(b"\x89PNG")


def test_missing_matplotlib_names_the_install_command(table, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UnavailableError, match=r"pip install -e '\.\[plots\]'"):
        save_figure(lambda: draw_dots(table, DRAWN), tmp_path / "figure")
