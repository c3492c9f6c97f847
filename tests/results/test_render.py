"""Cells as the field prints them; JSON and CSV in full."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from qa_arch.results.columns import COLUMNS, named
from qa_arch.results.tables import Table, latex, markdown, number, print_table, render, text

TABLE = Table(
    "Mills",
    named(["model", "exact", "parameters"]),
    [{"model": "a|b", "exact": 61.25, "parameters": 1234567, "hidden": 0.1}, {"model": "c", "status": "oom"}],
    ["one note"],
)


@pytest.mark.parametrize(
    ("key", "row", "text"),
    [
        ("exact", {"exact": 61.25}, "61.2"),
        ("exact", {"exact": 0.0, "status": "ok"}, "0.0"),
        ("exact", {"exact": None}, "–"),
        ("exact", {"exact": 61.25, "status": "running"}, "RUNNING"),
        ("f1", {"status": "failed"}, "–"),
        ("null_threshold", {"null_threshold": -1.605}, "-1.60"),
        ("parameters", {"parameters": 1234567}, "1,234,567"),
        ("seconds", {"seconds": 12345.6}, "12,345.6"),
        ("seed", {"seed": 20240101}, "20240101"),
    ],
)
def test_cells(key, row, text):
    assert COLUMNS[key].text(row) == text


def test_markdown():
    assert markdown(TABLE).splitlines() == [
        "## Mills",
        "",
        "| model | EM | parameters |",
        "|---|---:|---:|",
        r"| a\|b | 61.2 | 1,234,567 |",
        "| c | OOM | – |",
        "",
        "- one note",
    ]


def test_latex_shows_what_it_is_given():
    table = Table(
        "50% of _all_", named(["model", "f1"]), [{"model": r"a\\b", "f1": None}], ["~ & ^", "--- a b"]
    )
    assert latex(table).splitlines() == [
        r"% needs \usepackage{booktabs} and \usepackage{graphicx}",
        r"\begin{table}",
        r"\centering",
        r"\caption{50\% of \_all\_}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"model & F1 \\",
        r"\midrule",
        r"a\textbackslash{}\textbackslash{}b & -- \\",
        r"\bottomrule",
        r"\end{tabular}}",
        "",
        r"\smallskip",
        r"\begin{minipage}{\linewidth}",
        r"\footnotesize\raggedright",
        r"\textasciitilde{} \& \textasciicircum{}",
        "",
        r"-{}-{}- a b",
        r"\end{minipage}",
        r"\end{table}",
    ]
    assert "minipage" not in latex(replace(table, notes=[]))


def test_json_and_csv_keep_every_figure():
    assert json.loads(render([TABLE], "json")) == [
        {"title": "Mills", "rows": list(TABLE.rows), "notes": ["one note"]}
    ]
    rows = list(csv.DictReader(io.StringIO(render([TABLE, TABLE], "csv"))))
    assert len(rows) == 4
    assert rows[0]["table"] == "Mills"
    assert rows[0]["exact"] == "61.25"
    assert rows[1]["hidden"] == ""


def test_a_column_is_drawn_from_several_figures():
    rows = [{"model": "a", "low": 1.0, "high": 2.5}, {"model": "b"}]
    ends = number("interval", "95% interval", lambda low, high: f"{low:.2f} to {high:.2f}", ("low", "high"))
    table = Table("t", [text("model", "model"), ends], rows)
    assert markdown(table).splitlines()[4:6] == ["| a | 1.00 to 2.50 |", "| b | – |"]
    assert "1.00 to 2.50" in latex(table)
    assert "1.00 to 2.50" in render([table], "text")
    assert json.loads(render([table], "json"))[0]["rows"] == rows
    assert next(csv.DictReader(io.StringIO(render([table], "csv"))))["high"] == "2.5"


def test_text_is_neither_cut_nor_folded(capsys):
    long = Table("t", named(["model", "exact"]), [{"model": "m" * 200, "exact": 1.0}], ["n" * 200])
    print_table(long)
    for page in (capsys.readouterr().out, render([long], "text")):
        assert "m" * 200 in page
        assert "n" * 200 in page
        assert "\x1b" not in page
