"""The terminal: no control sequence of a file or record reaches it unescaped; progress of counted work."""

import io
import itertools
import sys

import pytest
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from qa_arch import terminal
from qa_arch.cli.main import main

TITLE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eb\r"
ESCAPED = r"\u001b]0;owned\u0007\u001b[2J\u009b31m\u202eb\u000d"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        (f"{TITLE}\n", f"{ESCAPED}\n"),
        ("a\tb\nc é 山", "a\tb\nc é 山"),
        ("\x1b[34mwandb\x1b[0m: x", "wandb: x"),
        ("\x1b\x1b[0m[2J", r"\u001b[2J"),
        ("\ud800", r"\ud800"),
        ("\r 50%|bar", "\r 50%|bar"),
        ("\x1b[A\x1b[A", "\x1b[A\x1b[A"),
        ("\x1b[Ahidden", r"\u001b[Ahidden"),
    ],
)
def test_printed_text_is_escaped(capsys, text, escaped):
    with terminal.guarded():
        for stream in (sys.stdout, sys.stderr):
            print(text, end="", file=stream)
    assert capsys.readouterr() == (escaped, escaped)


def test_tables_are_escaped():
    output = io.StringIO()
    console = terminal.console(file=output, force_terminal=True, width=200)
    table = Table(title=Text(TITLE))
    table.add_column(Text(TITLE))
    table.add_row(Text(TITLE, "bold"))
    console.print(table)
    drawn = output.getvalue()
    assert drawn.count(r"\u001b]0;owned") == 3
    assert "\x1b]" not in drawn
    assert "\x1b[1m" in drawn


def test_closed_streams_take_and_give_nothing(monkeypatch):
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    with terminal.guarded():
        print("x", flush=True)
        assert not sys.stdout.isatty()
        assert sys.stdin.read() == ""


def test_table_into_a_closed_pipe_raises_an_error_for_main():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        terminal.console(file=Closed()).print("x")


def test_brackets_and_colons_are_not_markup():
    output = io.StringIO()
    texts = ["[/x]", "[bold]", ":smile:", r"\[b]"]
    table = Table(*texts, title="[/x] :smile:")
    table.add_row(*texts)
    terminal.console(file=output, width=100).print(table)
    assert [output.getvalue().count(text) for text in texts] == [3, 2, 3, 2]


def test_progress_bar_may_move_the_cursor(capsys):
    with terminal.guarded(), Progress(console=terminal.console(stderr=True, force_terminal=True)) as bar:
        bar.add_task("reading")
    written = capsys.readouterr().err
    assert "\r\x1b[2Kreading" in written
    assert "u001b" not in written


def test_error_messages_are_escaped(capsys, tmp_path):
    assert main(["show", f"{tmp_path}/{TITLE}"]) == 5
    assert ESCAPED in capsys.readouterr().err
    assert main([TITLE]) == 2
    assert ESCAPED in capsys.readouterr().err


@pytest.fixture
def clock(monkeypatch):
    """Advance the clock by 20 seconds on every reading."""
    ticks = itertools.count(0, 20)
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(ticks))


@pytest.mark.usefixtures("clock")
def test_log_shows_units_done_rate_and_time_left(caplog):
    with caplog.at_level("INFO", logger="qa_arch"), terminal.watching("predicting", "questions") as watch:
        for done in (400, 600, 800, 1000):  # the rate leaves out the first call, which follows the loading
            watch(done, 2000)
    assert caplog.messages == ["predicting: 800 of 2,000 questions, 10.0/s, 2:00 left"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("total", "left"), [(6000, ", 1:00 left"), (None, "")])
def test_time_left_of_a_file_is_by_bytes(caplog, total, left):
    with caplog.at_level("INFO", logger="qa_arch"), terminal.watching("predicting", "questions") as watch:
        for number in range(3):
            watch(1000 + 1000 * number, total, 50 + 10 * number)
    assert caplog.messages == [f"predicting: 70 questions, 0.5/s{left}"]


@pytest.mark.usefixtures("clock")
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
