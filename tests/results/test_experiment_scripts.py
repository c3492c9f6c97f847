"""An experiment's tables.py: where it is executed, where it never is, and how a mistake in it is named."""

from __future__ import annotations

import pytest

from qa_arch.cli.main import main
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.records import write_record
from qa_arch.results.columns import COLUMNS
from qa_arch.results.experiments import (
    TABLES,
    experiment_tables,
)
from qa_arch.results.tables import Column
from tests.results.conftest import script

LEAVES_A_TRACE = "from pathlib import Path\nPath({trace!r}).touch()\ndef tables(folder):\n    return []\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def tables(", "cannot be executed (SyntaxError: "),
        ("x = 1", "defines no tables(folder)"),
        (
            "from qa_arch.results.experiments import Published\nP = Published('x', {'exakt': 1.0}, 'n')",
            "x, published: unknown column 'exakt' (did you mean 'exact'?)",
        ),
        (
            "from qa_arch.results.experiments import runs_table\n"
            "def tables(folder): return [runs_table(folder, 'A', columns=['modle'])]",
            "columns: unknown column 'modle' (did you mean 'model'?)",
        ),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path, text, says):
    (tmp_path / TABLES).write_text(text)
    with pytest.raises(QaArchError) as caught:
        experiment_tables(tmp_path)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith(f"{tmp_path / TABLES}: ")
    assert says in str(caught.value)


def test_records_bring_no_code(tmp_path, monkeypatch, make_record):
    """Only a folder of ``experiments/`` that was named is executed, not what lies among its records."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "executed"
    foreign, records = tmp_path / "runs" / "foreign", tmp_path / "experiments" / "trial" / "records" / "a"
    for folder in (foreign, records):
        write_record(folder, make_record())
        (folder / TABLES).write_text(LEAVES_A_TRACE.format(trace=str(trace)))
    script(tmp_path / "experiments" / "trial", 'runs_table(folder, "A")')
    calls = (["runs"], ["runs/foreign"], ["experiments/trial"], ["experiments/trial/records/a"], ["--all"])
    for call in calls:
        assert main(["tables", *call]) == 0
        assert main(["tables", "experiments/trial/records/a", "--format", "json"]) == 0
    assert not trace.exists()


def test_a_new_column_is_one_entry(tmp_path, monkeypatch, make_record, capsys):
    """Registered once it is computed, shown, sorted by, drawn and written in every form."""
    monkeypatch.chdir(tmp_path)
    seeds = Column("dummy", "Dummy & sons", lambda s: 10.0 * s.record.seed, lambda s: bool(s.record),
                   format=lambda value: f"<{value:.0f}>", on_request=True, mark=("#000000", "*"))  # fmt: skip
    monkeypatch.setitem(COLUMNS, "dummy", seeds)
    for seed in (2, 1):
        record = make_record(seed=seed, config={"optim": {"lr": seed}})
        write_record(tmp_path / "experiments" / "trial" / "records" / f"s{3 - seed}", record)
    script(
        tmp_path / "experiments" / "trial",
        'runs_table(folder, "A", columns=["model", "dummy"], sort=["dummy"])',
        'dot_plot(folder, "f", "F", ["dummy"])',
    )
    assert main(["tables", "--all"]) == 0
    made = tmp_path / "experiments" / "trial"
    assert "| model | Dummy & sons |" in (made / "table.md").read_text()
    assert "| bert | <10> |\n| bert | <20> |" in (made / "table.md").read_text()
    assert r"model & Dummy \& sons" in (made / "table.tex").read_text()
    assert '"dummy": 10.0' in (made / "table.json").read_text()
    assert ",dummy" in (made / "table.csv").read_text().splitlines()[0]
    assert "Dummy &amp; sons" in (made / "f.svg").read_text()
    capsys.readouterr()
    for form in ("text", "markdown", "latex", "csv", "json"):
        assert main(["tables", str(made / "records"), "--columns", "model,dummy", "--format", form]) == 0
        assert "ummy" in capsys.readouterr().out
    assert main(["tables", str(made / "records"), "--columns", "dumy"]) == 2
    assert "unknown column 'dumy' (did you mean 'dummy'?)" in capsys.readouterr().err
    assert main(["tables", "experiments/trial", "--columns", "dummy"]) == 2
