"""Tables, comparisons and runs in terminals of 80 and of 120 columns: whole cells, no line too wide."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from terminals import ROOT, drawn

from qa_arch.config.files import write_json

RECORDS = ROOT / "experiments/real_part/records/v2"
A, B = (next(RECORDS.glob(f"{model}-*")) for model in ("bert", "proposed"))
PAIR = ("compare", A, B, "--resamples", 50, "--top", 3)


def cells(lines: list[str]) -> set[str]:
    """What stands between the lines of tables."""
    return {cell.strip() for line in lines for cell in re.split("[│┃]", line)[1:-1]}


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(80, "F1 oracle, null threshold, parameters, seconds"), (120, None), (60, "F1 at threshold 0")],
)
def test_a_table_keeps_its_first_columns(width, left_out):
    lines = drawn(["tables", "experiments/real_part"], width)
    table = lines[: next(number for number, line in enumerate(lines) if line.startswith("└"))]
    assert {"model", "EM", "F1", "always-no-answer", "bert", "proposed", "52.1", "53.6"} <= cells(table)
    assert ("22,566,146" in cells(table)) == (left_out is None)
    notes = " ".join(" ".join(lines).split())
    assert (f"not shown in {width} characters: {left_out}" in notes) == (left_out is not None)


def test_a_pipe_has_every_column(capfd):
    from qa_arch.cli.main import main

    assert main(["tables", "experiments/real_part"]) == 0
    page = capfd.readouterr().out
    assert "22,566,146" in page
    assert "not shown" not in page


@pytest.mark.parametrize("width", [80, 120])
def test_a_comparison_keeps_difference_and_interval(width):
    lines = drawn(PAIR, width)
    assert {"B − A", "95% interval", "p", "-4.20", "HasAns F1"} <= cells(lines)
    assert any(re.search(r"│ +-\d\.\d\d \.\. -\d\.\d\d │", line) for line in lines)
    assert ("p, these runs" in cells(lines)) == (width == 120)
    assert {"model.dropout", "TransformerSpan", "BertMatch", "glove.use"} <= cells(lines)


@pytest.mark.parametrize("width", [80, 120])
def test_a_baseline_comparison_keeps_the_difference(width):
    lines = drawn(["compare", RECORDS, "--baseline", "bert", "--resamples", 50], width)
    assert {"model", "F1", "ΔF1", "95% interval", "-3.80", "53.58"} <= cells(lines)
    assert any("Holm" in cell for cell in cells(lines))


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_is_shown_in_whole_words(width):
    lines = drawn(["show", A], width)
    text = "\n".join(lines)
    for word in ("calibrated", "never null", "encoder.name", "missed answer", "provenance", "22,566,146"):
        assert word in text
    heads = [line for line in lines if re.match(r"run\b", line)]
    assert [bool(re.search(r"\bsettings\b", head)) for head in heads] == [width == 120]


def test_systems_are_called_by_what_differs(tmp_path):
    other = Path(shutil.copytree(A, tmp_path / "other"))
    record = json.loads((other / "run.json").read_text())
    record["config"]["optim"]["lr"] = 0.001
    write_json(other / "run.json", record)
    text = "\n".join(drawn(["compare", A, other, "--resamples", 50, "--top", 0], 120))
    assert "A: bert ┃" in text
    assert "B: bert lr=0.001 ┃" in text
    assert re.search(r"│ optim\.lr +│ 0\.0001 +│ 0\.001 +│", text)
