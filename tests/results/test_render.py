"""Cells as the field prints them; JSON and CSV in full."""

from __future__ import annotations

import csv
import io

import pytest

from qa_arch.results.columns import named
from qa_arch.results.tables import Table, latex, markdown, number, print_table, render, text


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


def test_text_is_neither_cut_nor_folded(capsys):
    long = Table("t", named(["model", "exact"]), [{"model": "m" * 200, "exact": 1.0}], ["n" * 200])
    print_table(long)
    for page in (capsys.readouterr().out, render([long], "text")):
        assert "m" * 200 in page
        assert "n" * 200 in page
        assert "\x1b" not in page
