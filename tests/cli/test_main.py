"""The command line: help, exit codes, one-line errors, and tracebacks with ``--debug``."""

from __future__ import annotations

import pytest

from qa_arch.cli import data
from qa_arch.cli.main import COMMANDS, GROUPS, main
from qa_arch.errors import (
    ConfigError,
    DataError,
    QaArchError,
    RunError,
    UnavailableError,
    first_line,
    one_line,
)


def raising(error):
    def run(args):
        raise error

    return run


def test_help_names_every_command_in_its_group(qa_arch):
    code, out, _ = qa_arch()
    assert code == 0
    assert all(f"\n    {name} " in out for name in COMMANDS)
    assert all(f"\n{title}:\n" in out for title in GROUPS)
    assert "exit codes" in out
    assert qa_arch("train", "--help")[1].startswith("usage: qa-arch train [-h]")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (QaArchError("x"), 1, "x"),
        (PermissionError(13, "x", "closed.json"), 1, "closed.json: permission denied"),
        (ConfigError("x"), 2, "x"),
        (DataError("x"), 4, "x"),
        (RunError("x"), 5, "x"),
        (UnavailableError("x"), 6, "x"),
        (ValueError("x"), 70, "unexpected ValueError: x"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(qa_arch, monkeypatch, error, code, message):
    monkeypatch.setattr(data, "run_stats", raising(error))
    actual, out, err = qa_arch("stats", "--data", "x")
    assert (actual, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"qa-arch: {message}")


@pytest.mark.parametrize("arguments", [("--debug", "stats"), ("stats", "--debug")])
@pytest.mark.parametrize("error", [DataError("x"), ValueError("x")])
def test_debug_shows_the_traceback(monkeypatch, arguments, error):
    monkeypatch.setattr(data, "run_stats", raising(error))
    with pytest.raises(type(error)):
        main([*arguments, "--data", "x"])


def test_closed_pipe_is_not_an_error(monkeypatch):
    monkeypatch.setattr(data, "run_stats", raising(BrokenPipeError()))
    silenced = []
    monkeypatch.setattr("os.dup2", lambda *handles: silenced.append(handles))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert main(["stats", "--data", "x"]) == 0
    assert silenced


def test_missing_run_gets_suggestions(qa_arch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert qa_arch("show", "nope")[2] == "qa-arch: nope: no such run folder\n"
    for name in ("bert-s1", "bert-s2"):
        (tmp_path / "runs/own" / name).mkdir(parents=True)
        (tmp_path / "runs/own" / name / "run.json").write_text("{}")
    for path, hint in {
        "runs/own/brt-s2": "no such run folder (did you mean 'runs/own/bert-s2'?)",
        "nope": "no such run folder (known: runs/own/bert-s1, runs/own/bert-s2)",
        "runs/own": "holds no run.json (known: runs/own/bert-s1, runs/own/bert-s2)",
    }.items():
        for command in (["show", path], ["ask", path, "--question", "q", "--context", "c"]):
            code, _, err = qa_arch(*command)
            assert (code, err) == (5, f"qa-arch: {path}: {hint}\n")


def test_settings_may_follow_an_option(qa_arch):
    before = qa_arch("params", "model=match_lstm/boundary", "model.hidden=10", "--json")
    assert before == qa_arch("params", "model=match_lstm/boundary", "--json", "model.hidden=10")
    assert before[0] == 0
    assert before != qa_arch("params", "model=match_lstm/boundary", "--json")


def test_errors_of_other_libraries_are_shortened_and_never_empty():
    error = ValueError("\n  no such key\n  in the file\n")
    assert (first_line(error), one_line(error)) == ("no such key", "no such key in the file")
    assert (first_line(error, 7), one_line(error, 7)) == ("no such...", "no such")
    assert first_line(OSError()) == one_line(OSError(" \n")) == "OSError"
