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


def test_what_a_name_says_stays_in_its_place():
    odd = Table(
        "a | b\n# c_", [text("name", "x\n|y"), number("f1", "F1")], [{"name": "p\n|q", "f1": -1.2}], ["m\nn"]
    )
    assert markdown(odd).splitlines() == [
        "## a | b # c_",
        "",
        r"| x \|y | F1 |",
        "|---|---:|",
        r"| p \|q | -1.2 |",
        "",
        "- m n",
    ]
    assert r"\caption{a \textbar{} b \# c\_}" in latex(odd)
    assert "\nx \\textbar{}y & F1" in latex(odd)


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_of_csv_is_a_formula(begin):
    name = f"{begin}cmd|'/c calc'!A1"
    (row,) = csv.DictReader(
        io.StringIO(render([Table(name, [], [{"m": name, "f1": -1.2, "s": "-1e-5"}])], "csv"), "")
    )
    shown = "'" + name.replace("\r", " ")
    assert row == {"table": shown, "m": shown, "f1": "-1.2", "s": "-1e-5"}


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


def test_commands_in_latex_notes_can_be_copied():
    """Two hyphens are a dash in LaTeX, a backtick opens a quotation, an underscore is drawn as a rule."""
    notes = [
        "c: `qa-arch stats --data a_b --json > 'x'` fills the row",
        "texts come with --data FILE (--json)",
    ]
    page = latex(Table("t", named(["model"]), [{"model": "`--a_b"}], notes))
    command = (
        r"qa-arch stats -{}-data a\char95{}b -{}-json \textgreater{} \textquotesingle{}x\textquotesingle{}"
    )
    assert rf"c: \texttt{{{command}}} fills the row" in page
    assert r"texts come with \texttt{-{}-data} FILE (\texttt{-{}-json})" in page
    assert r"\textasciigrave{}-{}-a\_b \\" in page


def test_latex_has_a_command_for_every_sign_that_tables_use_and_a_plain_font_lacks():
    row = {"model": "a|b", "p": "< 0.001", "F1": "53.42 ± 0.51"}
    page = latex(
        Table(
            "B − A",
            [text("model", "model"), number("F1", "ΔF1", str), number("p", "p > 0", str)],
            [row],
            ["cut…"],
        )
    )
    assert page.isascii()
    assert r"model & $\Delta$F1 & p \textgreater{} 0 \\" in page
    assert r"a\textbar{}b & 53.42 $\pm$ 0.51 & \textless{} 0.001 \\" in page
    assert r"\caption{B $-$ A}" in page
    assert r"cut\dots{}" in page


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
