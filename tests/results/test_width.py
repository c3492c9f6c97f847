"""What of a table fits a width."""

from __future__ import annotations

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from qa_arch.results.tables import BORDER, RULE, Table, fit, number, render, text

COLUMNS = [
    text("name", "model"),
    number("f1", "F1"),
    number("seeds", "seeds", weight=-1),
    number("delta", "ΔF1", weight=1),
    number("seconds", "training seconds"),
]
CELLS = [[column.heading for column in COLUMNS], ["bert", "61.2", "3", "+1.20", "12,345.6"]]


def total(widths) -> int:
    return BORDER + sum(width + RULE for width in widths)


def test_the_lightest_goes_first_and_of_equal_ones_the_last():
    narrow = total([5, 4, 5, 5, 8]) - 1
    orders = [list(fit(COLUMNS, CELLS, width).left_out) for width in range(narrow, 0, -1)]
    assert [left_out for left_out, _ in groupby(orders)] == [
        ["seeds"],
        ["seeds", "training seconds"],
        ["F1", "seeds", "training seconds"],
        ["F1", "seeds", "ΔF1", "training seconds"],
    ]


def test_words_wrap_and_figures_do_not():
    columns = [text("name", "question"), number("f1", "F1")]
    table = Table("t", columns, [{"name": "Who built the old bridge at Lowmere?", "f1": 61.2}])
    lines = render([table], "text", 30).splitlines()
    assert max(map(cell_len, lines)) <= 30
    assert sum("61.2" in line for line in lines) == 1
    words = " ".join(line.split("│")[1].strip() for line in lines if line.startswith("│"))
    assert words == "Who built the old bridge at Lowmere?"


def test_the_note_names_what_has_no_place():
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
def test_nothing_is_wider_than_the_terminal(columns, width):
    made = [
        (text if left else number)(str(place), f"c{place}", weight=weight)
        for place, (left, weight, _) in enumerate(columns)
    ]
    cells = [[column.heading for column in made], [cell for _, _, cell in columns]]
    layout = fit(made, cells, width)
    assert layout.places[0] == 0
    assert total(layout.widths) <= width or len(layout.places) == 1
    for place, own in zip(layout.places, layout.widths, strict=True):
        assert made[place].left or own >= cell_len(cells[1][place])
