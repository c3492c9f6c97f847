"""Progress of counted work: a bar if standard error is a terminal, else lines in the log."""

import io
import itertools

import pytest
from rich.console import Console

from qa_arch import terminal


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Advance the clock by 20 seconds on every reading."""
    ticks = itertools.count(0, 20)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(ticks))


def test_log_shows_units_done_rate_and_time_left(caplog):
    with caplog.at_level("INFO", logger="qa_arch"), terminal.watching("predicting", "questions") as watch:
        for done in (400, 600, 800, 1000):  # the rate leaves out the first call, which follows the loading
            watch(done, 2000)
    assert caplog.messages == ["predicting: 800 of 2,000 questions, 10.0/s, 2:00 left"]


@pytest.mark.parametrize(("total", "left"), [(6000, ", 1:00 left"), (None, "")])
def test_time_left_of_a_file_is_by_bytes(caplog, total, left):
    with caplog.at_level("INFO", logger="qa_arch"), terminal.watching("predicting", "questions") as watch:
        for number in range(3):
            watch(1000 + 1000 * number, total, 50 + 10 * number)
    assert caplog.messages == [f"predicting: 70 questions, 0.5/s{left}"]


def test_bar_shows_the_same_and_leaves_standard_output_free(monkeypatch, capsys):
    file = io.StringIO()
    screen = Console(file=file, force_terminal=True, width=90)
    monkeypatch.setattr(terminal, "console", lambda **_: screen)
    with terminal.watching("predicting", "questions") as watch:
        for done in (400, 600, 800):
            watch(done, 2000)
        print("an answer")
    assert "800 of 2,000 questions, 10.0/s, 2:00 left" in Console(width=90).render_str(file.getvalue()).plain
    assert capsys.readouterr().out == "an answer\n"
