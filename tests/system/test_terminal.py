"""Control sequences from files and records never reach a terminal unescaped."""

import io
import sys

import pytest
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
