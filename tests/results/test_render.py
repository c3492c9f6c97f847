"""Cells in the field's formats, fitting tables to a width, and complete JSON and CSV."""

import csv
import io
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from qa_arch.results.columns import select_columns
from qa_arch.results.tables import (
    BORDER,
    RULE,
    Table,
    fit,
    latex,
    markdown,
    number,
    print_table,
    render,
    text,
)


def test_special_characters_are_escaped():
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
    assert "q & $-$1.2 " in latex(odd)  # LaTeX would set a hyphen
    assert "1e-4 on 2026-11-28, $-$0.5" in latex(Table("1e-4 on 2026-11-28, -0.5", [], []))
    stars = [{"name": "[2] ''x"}, {"name": "*"}]  # bare, they would be an option of the end of the row before
    lines = latex(Table("t", [text("name", "[1]")], stars)).splitlines()
    assert [line for line in lines if "{[}" in line or "*" in line] == [
        r"{[}1] \\",
        r"{[}2] '{}'x \\",
        r"{*} \\",
    ]


@pytest.mark.parametrize("prefix", ["=", "+", "-", "@", "\t", "\r"])
def test_csv_cells_are_never_formulas(prefix):
    name = f"{prefix}cmd|'/c calc'!A1"
    (row,) = csv.DictReader(
        io.StringIO(render([Table(name, [], [{"m": name, "f1": -1.2, "s": "-1e-5"}])], "csv"), "")
    )
    shown = "'" + name.replace("\r", " ")
    assert row == {"table": shown, "m": shown, "f1": "-1.2", "s": "-1e-5"}


def test_text_is_neither_truncated_nor_wrapped(capsys):
    columns = [*select_columns(["model", "exact"]), text("markup", "[/x]")]
    row = {"model": "m" * 200, "exact": 1.0, "markup": "[/x]"}
    long = Table("[/x]", columns, [row], ["n" * 200])
    print_table(long)
    for page in (capsys.readouterr().out, render([long], "text")):
        assert "m" * 200 in page
        assert "n" * 200 in page
        assert page.count("[/x]") == 3
        assert "\x1b" not in page


COLUMNS = [
    text("name", "model"),
    number("f1", "F1"),
    number("seeds", "seeds", weight=-1),
    number("delta", "ΔF1", weight=1),
    number("seconds", "training seconds"),
]
CELLS = [[column.heading for column in COLUMNS], ["bert", "61.2", "3", "+1.20", "12,345.6"]]


def table_width(widths) -> int:
    return BORDER + sum(width + RULE for width in widths)


def test_columns_are_dropped_by_weight_and_from_the_right():
    narrow = table_width([5, 4, 5, 5, 8]) - 1
    orders = [list(fit(COLUMNS, CELLS, width).left_out) for width in range(narrow, 0, -1)]
    assert [left_out for left_out, _ in groupby(orders)] == [
        ["seeds"],
        ["seeds", "training seconds"],
        ["F1", "seeds", "training seconds"],
        ["F1", "seeds", "ΔF1", "training seconds"],
    ]


def test_words_wrap_and_numbers_do_not():
    columns = [text("name", "question"), number("f1", "F1")]
    table = Table("t", columns, [{"name": "Who built the old bridge at Lowmere?", "f1": 61.2}])
    lines = render([table], "text", 30).splitlines()
    assert max(map(cell_len, lines)) <= 30
    assert sum("61.2" in line for line in lines) == 1
    words = " ".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert words == "Who built the old bridge at Lowmere?"


def test_note_names_the_dropped_columns():
    table = Table("t", COLUMNS, [{"name": "bert", "f1": 61.2, "seconds": 12345.6}], ["a note"])
    page = render([table], "text", 30)
    assert "not shown in 30 characters: seeds" in " ".join(page.split())
    assert max(map(cell_len, page.splitlines())) <= 30
    assert "not shown" not in render([table], "text") + render([table], "text", 100)


WORDS = st.text("ab c水", max_size=30)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(-2, 2), WORDS), min_size=1, max_size=8),
    st.integers(20, 150),
)
def test_table_fits_the_width(columns, width):
    specs = [
        (text if left else number)(str(index), f"c{index}", weight=weight)
        for index, (left, weight, _) in enumerate(columns)
    ]
    cells = [[column.heading for column in specs], [cell for _, _, cell in columns]]
    layout = fit(specs, cells, width)
    assert layout.places[0] == 0
    assert table_width(layout.widths) <= width or len(layout.places) == 1
    for index, column_width in zip(layout.places, layout.widths, strict=True):
        assert specs[index].left or column_width >= cell_len(cells[1][index])
