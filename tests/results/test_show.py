"""``qa-arch show``: every part of a run on one screen, also of runs that went wrong."""

from __future__ import annotations

import json

import numpy as np
import pytest

from qa_arch.cli.main import main
from qa_arch.results.questions import load_questions
from qa_arch.results.record import QUESTIONS, find_records
from qa_arch.results.summary import outcomes, sparkline


def show(capsys, *arguments):
    capsys.readouterr()
    code = main(["show", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_everything_is_on_the_screen(make_run, question_set, capsys):
    folder = make_run("bert-s13", question_set(), commit="abcdef0123456", dirty=True)
    code, out, _ = show(capsys, folder)
    assert code == 0
    for part in ("bert-s13", "ok", "calibrated", "margin 0", "█▁", "2.00 → 1.00", "number 2 kept"):
        assert part in out
    for part in (
        "abcdef012345, with changes",
        "1,234,567",
        "wrong span",
        "abstained wrongly",
        "0.500, fitted on",
    ):
        assert part in out
    assert show(capsys, folder / "run.json")[1] == out


def test_json_holds_the_same(make_run, question_set, capsys):
    folder = make_run("bert-s13", question_set(again=5))
    found = json.loads(show(capsys, folder, "--json")[1])
    assert sum(found["errors"].values()) == 30
    assert [row["margin"] for row in found["scores"]] == ["margin_0", "calibrated"]
    assert found["curves"]["training loss"] == [2.0, 1.0]


@pytest.mark.parametrize("status", ["oom", "failed", "killed", "running"])
def test_runs_that_did_not_finish(make_record, tmp_path, capsys, status):
    make_record(None, None, status=status, error="Traceback\n  at x\nMemoryError: too much").write(tmp_path)
    code, out, _ = show(capsys, tmp_path)
    assert code == 0
    assert status in out
    assert "MemoryError: too much" in out
    assert "at x" not in out


def test_missing_rows_are_said_and_no_error(make_run, question_set, capsys):
    folder = make_run("a", question_set())
    (folder / QUESTIONS).unlink()
    code, out, _ = show(capsys, folder)
    assert code == 0
    assert "wrong span" not in out
    assert "score the run" in out
    assert json.loads(show(capsys, folder, "--json")[1])["errors"] is None


def test_no_run(tmp_path, capsys):
    code, _, err = show(capsys, tmp_path / "none")
    assert code == 5
    assert "no such record" in err


def test_each_question_has_one_outcome(make_run, question_set):
    columns = {
        "exact": [1, 0, 0, 0, 1, 0],
        "f1": [1, 0.5, 0, 0, 1, 0],
        "abstained": [False, False, False, True, True, False],
    }
    folder = make_run("a", question_set(), rows=columns)
    ((path, record),) = find_records([folder])
    rows = load_questions(path, record)
    assert rows.answerable.tolist() == [True, True, False, True, False, False]
    assert outcomes(rows) == {
        "right": 2,
        "partial span": 1,
        "wrong span": 0,
        "abstained wrongly": 1,
        "undue answer": 2,
    }


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([0, 7], "▁█"),
        ([1, 1, 1], "▁▁▁"),
        ([3, None, 1], "█ ▁"),
        ([], ""),
        (list(np.linspace(0, 1, 8)), "▁▂▃▄▅▆▇█"),
    ],
)
def test_sparkline(values, bars):
    assert sparkline(values) == bars
