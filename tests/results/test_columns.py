"""The registry of columns: figures of question rows, wherever a table is shown."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from reports import page_parts

from qa_arch.cli.main import main
from qa_arch.metrics.confidence import auroc, reliability
from qa_arch.records import find_runs
from qa_arch.results.columns import COLUMNS, comparison
from qa_arch.results.questions import load_questions
from qa_arch.results.tables import render

ASKED = ("model", "f1", "auroc", "ece", "ece_fitted")


def test_auroc_is_the_share_of_pairs_in_the_right_order():
    draw = np.random.default_rng(0)
    score, positive = draw.integers(0, 6, 40) / 2, draw.random(40) < 0.4
    pairs = itertools.product(score[positive], score[~positive])
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert auroc(score, positive) == pytest.approx(expected)
    assert auroc(np.array([2.0, 1.0, -np.inf]), np.array([True, True, False])) == 1.0
    assert auroc(score, np.ones(40, bool)) is auroc(score, np.zeros(40, bool)) is None


def test_figures_of_rows_are_those_of_the_metrics(runs):
    folder, _ = runs
    records = find_runs([folder])
    table = comparison(records, columns=ASKED)
    rows = [row for row in table.rows if "run" in row]
    for (path, record), row in zip(records, rows, strict=True):
        questions = load_questions(path, record)
        assert row["auroc"] == pytest.approx(100 * auroc(-questions.null_odds, questions.answerable))
        ece = reliability(questions.probability, questions.span_exact > 0).ece
        assert row["ece"] == pytest.approx(100 * ece)
        fitted = reliability(questions.confidence, questions.exact > 0).ece
        assert row["ece_fitted"] == pytest.approx(100 * fitted)
    assert "auroc" not in table.rows[0], "a heuristic has no rows of questions"
    assert "auroc" not in comparison(records).rows[-1], "rows are read only where a table asks"


def test_the_status_stands_where_a_run_has_no_score():
    row = {"exact": None, "f1": None, "status": "oom"}
    assert [COLUMNS[key].text(row) for key in ("exact", "f1")] == ["OOM", "–"]
    assert COLUMNS["exact"].text({"exact": 61.04, "status": "ok"}) == "61.0"


def test_they_stand_in_tables_latex_and_the_report(runs, tmp_path, capsys):
    folder, _ = runs
    for form in ("markdown", "latex", "text", "csv"):
        page = render([comparison(find_runs([folder]), columns=ASKED)], form)
        heads = ("auroc", "ece") if form == "csv" else ("AUROC, answerable", "ECE, spans")
        assert all(head in page for head in heads), form
    assert main(["tables", str(folder), "--columns", "model,auroc,ece", "--format", "latex"]) == 0
    assert "model & AUROC, answerable & ECE, spans" in capsys.readouterr().out
    out = tmp_path / "r.html"
    assert main(["report", str(folder), "--columns", "auroc,ece", "-o", str(out)]) == 0
    value, _ = page_parts(out)
    heads = [(column["key"], column["head"]) for column in value["askedColumns"]]
    assert heads == [("auroc", "AUROC, answerable"), ("ece", "ECE, spans")]
    row = comparison(find_runs([folder]), columns=ASKED).rows[-1]
    assert value["sets"][0]["columns"]["3"] == {key: row[key] for key in ("auroc", "ece")}
    assert main(["report", str(folder), "--columns", "aurok", "-o", str(out)]) == 2
    assert "unknown column 'aurok' (did you mean 'auroc'?)" in capsys.readouterr().err
