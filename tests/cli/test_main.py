"""The command line: help, listings, completion, exit codes, one-line errors, terminals of any width."""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len
from terminals import CONTROL, ROOT

from qa_arch.cli import data
from qa_arch.cli.main import _settings, main
from qa_arch.config.find import config_folders, groups
from qa_arch.errors import DataError, UnavailableError

RECORDS = ROOT / "experiments/real_part/records/v2"


def raising(error):
    def run(args):
        raise error

    return run


def test_command_alone_prints_its_help(qa_arch):
    assert qa_arch()[:2] == qa_arch("--help")[:2]


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PermissionError(13, "x", "closed.json"), 1, "closed.json: permission denied"),
        (OSError(36, "x", "long"), 1, "long: file name too long"),
        (FileNotFoundError(2, "x"), 1, "the working folder was removed"),
        (
            UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
            2,
            r"'a\udcff': a name is not",
        ),
        (UnavailableError("x"), 6, "x"),
        (ValueError("x"), 70, "unexpected ValueError: x"),
        (MemoryError(), 1, "out of memory; free some"),
        (ImportError("libx.so: failed to map segment from shared object"), 1, "out of memory; free some"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_exit_codes(qa_arch, monkeypatch, error, code, message):
    monkeypatch.setattr(data, "run_stats", raising(error))
    actual, out, err = qa_arch("stats", "--data", "x")
    assert (actual, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"qa-arch: {message}")


def test_error_in_the_package_of_an_extra_is_not_called_a_bug(qa_arch, monkeypatch):
    monkeypatch.setattr(data, "run_stats", raising(ZeroDivisionError("x")))
    monkeypatch.setattr("qa_arch.cli.main.packages", lambda: [__name__.partition(".")[0]])
    code, _, err = qa_arch("stats", "--data", "x")
    assert code == 1
    assert f"{Path(__file__).name}:" in err
    assert "ZeroDivisionError: x; --debug shows the traceback" in err


@pytest.mark.parametrize("arguments", [("--debug", "stats"), ("stats", "--debug")])
def test_debug_shows_the_traceback(monkeypatch, arguments):
    monkeypatch.setattr(data, "run_stats", raising(DataError("x")))
    with pytest.raises(DataError):
        main([*arguments, "--data", "x"])


def test_closed_pipe_is_no_error(monkeypatch, capsys):
    monkeypatch.setattr(data, "run_stats", raising(BrokenPipeError()))
    silenced = []
    monkeypatch.setattr("os.dup2", lambda *handles: silenced.append(handles))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    assert (main(["stats", "--data", "x"]), bool(silenced), capsys.readouterr().err) == (0, True, "")


def test_output_to_a_full_disk_is_one_line(tmp_path):
    script = 'ulimit -f 0; exec "$0" -m qa_arch list models > out'
    command = ["bash", "-c", script, sys.executable]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    line = "qa-arch: output: cannot be written (File too large); free space\n"
    assert (done.returncode, done.stderr) == (1, line)


def test_characters_that_the_output_cannot_encode_are_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "run_stats", lambda args: print("Δ = 1") or 0)
    with (tmp_path / "out").open("w", encoding="latin-1") as file:
        monkeypatch.setattr("sys.stdout", file)
        assert main(["stats", "--data", "x"]) == 0
    assert (tmp_path / "out").read_text() == "? = 1\n"


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


def test_suggested_commands_quote_the_folder(qa_arch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (published,) = RECORDS.glob("bert-*/run.json")
    (tmp_path / "a run").mkdir()
    text = published.read_text().replace('"status": "ok"', '"status": "failed"')
    (tmp_path / "a run" / "run.json").write_text(text)
    err = qa_arch("ask", "a run", "--question", "q", "--context", "c")[2]
    assert "qa-arch train --config-from 'a run' --folder 'a run' --resume" in err


def test_settings_may_follow_an_option(qa_arch):
    before = qa_arch("params", "debug=fast", "encoder.width=8", "--json")
    assert (before[0], qa_arch("params", "debug=fast", "--json", "encoder.width=8")) == (0, before)
    assert "~experiment: names no choice" in qa_arch("params", "seed=1", "--json", "~experiment")[2]


def test_home_folder_is_expanded_after_an_option_too(qa_arch, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert qa_arch("data", "synthetic", "--articles", "1", "--out=~/set.json")[0] == 0
    assert (tmp_path / "set.json").is_file()


BASH = """
eval "$(register-python-argcomplete qa-arch)" || exit 3
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMPREPLY=()
    _python_argcomplete qa-arch
    echo "${COMPREPLY[@]}"
done
"""
COMPLETED = {
    "--debug pred": "predict",
    "train --if-exists ": "fail replace resume",
    "train -m model=prop": "proposed",  # = breaks words in bash, so that only the part after it is replaced
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path):
    file = tmp_path / "qa-arch"
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qa_arch.cli.main "$@"\n')
    file.chmod(0o755)
    folders = (str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"])
    environment = {**os.environ, "PATH": os.pathsep.join(folders)}
    command = ["bash", "-c", BASH, "bash", *(f"qa-arch {line}" for line in COMPLETED)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert dict(zip(COMPLETED, map(str.strip, done.stdout.splitlines()), strict=True)) == COMPLETED


def test_every_choice_is_offered():
    for group, names in groups(config_folders()).items():
        assert f"{group}=" in _settings(group)
        assert _settings(f"{group}=") == [f"{group}={name}" for name in names]


@pytest.fixture
def drawn(monkeypatch):
    """``drawn(arguments, width)`` -> lines printed to a terminal of ``width`` columns, none of them wider."""

    def run(arguments, width):
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("COLUMNS", str(width))
        with monkeypatch.context() as patch:
            patch.setattr("sys.stdout", terminal)
            assert main(list(map(str, arguments))) == 0
        lines = CONTROL.sub("", terminal.getvalue()).splitlines()
        assert max(map(cell_len, lines)) <= width
        return [line.rstrip() for line in lines]

    return run


def cells(lines: list[str]) -> set[str]:
    """Contents of table cells."""
    return {cell.strip() for line in lines for cell in re.split("[│┃]", line)[1:-1]}


def test_a_table_keeps_its_first_columns(drawn):
    lines = drawn(["tables", "experiments/real_part"], 80)
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("└"))]
    assert {"model", "EM", "F1", "always-no-answer", "bert", "proposed", "52.1", "53.6"} <= cells(table)
    left_out = "not shown in 80 characters: F1 oracle, null threshold, parameters, seconds"
    assert left_out in " ".join(" ".join(lines).split())


def test_a_comparison_keeps_difference_and_interval(drawn):
    lines = drawn(("compare", *(next(RECORDS.glob(f"{model}-*")) for model in ("bert", "proposed"))), 80)
    assert {"B − A", "95% interval", "p", "-4.20", "HasAns F1"} <= cells(lines)
    assert any(re.search(r"│ +-\d\.\d\d to -\d\.\d\d │", line) for line in lines)
    assert {"model.dropout", "TransformerSpan", "BertMatch", "glove.use"} <= cells(lines)
    lines = drawn(["compare", RECORDS, "--baseline", "bert"], 80)
    assert {"model", "F1", "ΔF1", "95% interval", "-3.80", "53.58"} <= cells(lines)
    assert any("Holm" in cell for cell in cells(lines))


def test_show_truncates_no_word(drawn):
    text = "\n".join(drawn(["show", next(RECORDS.glob("bert-*"))], 80))
    for word in ("calibrated", "forced answer", "encoder", "missed answer", "provenance", "22,566,146"):
        assert word in text
