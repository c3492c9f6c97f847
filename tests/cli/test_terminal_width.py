"""Output in terminals of 80 and 120 columns: no truncated cells, no line too wide."""

import io
import re

import pytest
from rich.cells import cell_len
from terminals import CONTROL, ROOT

from qa_arch.cli.main import main

RECORDS = ROOT / "experiments/real_part/records/v2"
A, B = (next(RECORDS.glob(f"{model}-*")) for model in ("bert", "proposed"))
PAIR = ("compare", A, B, "--top", 3)


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


@pytest.mark.parametrize(
    ("width", "left_out"), [(80, "F1 oracle, null threshold, parameters, seconds"), (120, None)]
)
def test_a_table_keeps_its_first_columns(drawn, width, left_out):
    lines = drawn(["tables", "experiments/real_part"], width)
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("└"))]
    assert {"model", "EM", "F1", "always-no-answer", "bert", "proposed", "52.1", "53.6"} <= cells(table)
    assert ("22,566,146" in cells(table)) == (left_out is None)
    notes = " ".join(" ".join(lines).split())
    assert (f"not shown in {width} characters: {left_out}" in notes) == (left_out is not None)


def test_a_comparison_keeps_difference_and_interval(drawn):
    lines = drawn(PAIR, 80)
    assert {"B − A", "95% interval", "p", "-4.20", "HasAns F1"} <= cells(lines)
    assert any(re.search(r"│ +-\d\.\d\d to -\d\.\d\d │", line) for line in lines)
    assert "p, these runs" not in cells(lines)
    assert {"model.dropout", "TransformerSpan", "BertMatch", "glove.use"} <= cells(lines)


def test_a_baseline_comparison_keeps_the_difference(drawn):
    lines = drawn(["compare", RECORDS, "--baseline", "bert"], 80)
    assert {"model", "F1", "ΔF1", "95% interval", "-3.80", "53.58"} <= cells(lines)
    assert any("Holm" in cell for cell in cells(lines))


def test_show_keeps_the_columns_of_errors(drawn):
    (run,) = (ROOT / "experiments/synthetic/records").glob("bert-*")
    lines = drawn(["show", run], 80)
    assert {"kind", "asked", "abstained", "missed", "false"} <= cells(lines)
    assert "not shown in 80 characters: boundary, near miss" in " ".join(" ".join(lines).split())


def test_show_truncates_no_word(drawn):
    lines = drawn(["show", A], 80)
    text = "\n".join(lines)
    for word in ("calibrated", "forced answer", "encoder", "missed answer", "provenance", "22,566,146"):
        assert word in text
