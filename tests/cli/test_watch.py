"""Progress of prediction where standard error is no terminal."""

import itertools

import pytest

from qa_arch.cli import watch


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Advance the clock by 20 seconds on every reading."""
    ticks = itertools.count(0, 20)
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(ticks))


def test_log_shows_units_done_rate_and_time_left(caplog):
    with caplog.at_level("INFO", logger="qa_arch"), watch.watching("predicting", "questions") as seen:
        for done in (400, 600, 800, 1000):  # the rate leaves out the first call, which follows the loading
            seen(done, 2000)
    assert caplog.messages == ["predicting: 800 of 2,000 questions, 10.0/s, 2:00 left"]


@pytest.mark.parametrize(("total", "left"), [(6000, ", 1:00 left"), (None, "")])
def test_time_left_of_a_file_is_by_bytes(caplog, total, left):
    with caplog.at_level("INFO", logger="qa_arch"), watch.watching_file("predicting", "questions") as seen:
        for number in range(3):
            seen(1000 + 1000 * number, total, 50 + 10 * number)
    assert caplog.messages == [f"predicting: 70 questions, 0.5/s{left}"]
