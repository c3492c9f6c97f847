"""Cells as the field prints them; JSON and CSV in full."""

from __future__ import annotations

import csv
import io
import json

from qa_arch.results.columns import named
from qa_arch.results.tables import Table, latex, markdown, number, print_table, render, text


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
