"""An experiment's ``tables.py``: rows, figures, where it is executed, and errors that name it."""

import shutil
from dataclasses import replace

import pytest

from qa_arch.cli.main import main
from qa_arch.errors import ConfigError, QaArchError
from qa_arch.records import BatchSizes, write_record
from qa_arch.results.columns import COLUMNS
from qa_arch.results.experiments import TABLES, experiment_tables
from qa_arch.results.tables import Column
from tests.results.conftest import script

WANTED = """records_table(
    folder,
    "Mills",
    columns=["model", "f1"],
    published=[Published("BERT", {"f1": 76.3}, "all of dev")],
    wanted=[Wanted("bert", "qa-arch train model=bert"), Wanted("albert", "qa-arch train model=albert")],
)"""


@pytest.fixture
def folder(tmp_path):
    script(tmp_path, WANTED)
    return tmp_path


def test_row_without_a_run_names_the_command_that_fills_it(folder, make_record):
    (empty,) = experiment_tables(folder)
    assert [row["model"] for row in empty.rows] == ["BERT (published)", "bert", "albert"]
    assert [(c.key, c.heading) for c in empty.columns] == [("model", "model"), ("f1", "F1")]
    write_record(folder / "records" / "bert-s13", make_record("bert", 60.0))
    (filled,) = experiment_tables(folder)
    assert [(row["model"], row.get("f1")) for row in filled.rows] == [
        ("BERT (published)", 76.3),
        ("always-no-answer", 50.0),
        ("bert", 62.0),
        ("albert", None),
    ]
    waiting = [note for note in filled.notes if "not run yet" in note]
    assert waiting == ["albert: not run yet; `qa-arch train model=albert` fills the row"]
    assert len([note for note in empty.notes if "not run yet" in note]) == 2


def test_note_counts_commits_and_uncommitted_changes(folder, make_record):
    for seed, commit, dirty in ((1, "a" * 40, False), (2, "a" * 40, False), (3, "b" * 40, True)):
        record = make_record("bert", 60.0, seed=seed, commit=commit, dirty=dirty)
        write_record(folder / "records" / f"bert-s{seed}", record)
        notes = [note for note in experiment_tables(folder)[0].notes if note.startswith("code of the runs")]
        assert (notes == []) is (seed < 3)
    assert notes[0].endswith("by commit: aaaaaaa (2), bbbbbbb (1); 1 of 3 with uncommitted changes")


def test_row_with_a_batch_size_waits_for_a_finished_run_of_that_size(tmp_path, make_record):
    rows = 'Wanted("bert", "make eight", batch=8), Wanted("bert", "make six", batch=6), Wanted("bert", "any")'
    script(tmp_path, f'records_table(folder, "T", columns=["model", "batch", "f1"], wanted=[{rows}])')
    eight = make_record(batch={"micro": 8, "accumulate": 1, "devices": 1, "global_size": 8})
    write_record(tmp_path / "records" / "eight", eight)
    write_record(
        tmp_path / "records" / "six", replace(eight, batch=BatchSizes(global_size=6), status="oom", scores={})
    )
    (table,) = experiment_tables(tmp_path)
    assert [row.get("batch") for row in table.rows][-3:] == [8, 6, 6]
    assert table.notes[-1] == "bert, batch 6: not run yet; `make six` fills the row"
    assert not any("eight" in note or "any" in note for note in table.notes)


def test_pairwise_table_has_rows_by_kind(tmp_path, make_run, question_set):
    script(tmp_path, 'pairwise_table(folder, "T", "poor", "good")')
    for model, right in (("poor", 0.3), ("good", 0.95)):
        assert experiment_tables(tmp_path) == []
        run = make_run(f"{model}-13", question_set(copies=20), model=model, right=right)
        shutil.copytree(run, tmp_path / "records" / run.name)
    (table,) = experiment_tables(tmp_path)
    rows = {row["name"]: row for row in table.rows}
    assert table.title == "T"
    assert rows["F1"]["delta"] == pytest.approx(rows["F1"]["b_mean"] - rows["F1"]["a_mean"])
    assert rows["F1"]["delta"] > 20
    assert rows["F1"]["p_holm"] is None
    assert {"negation", "entity_swap"} <= set(rows)
    assert rows["negation"]["questions"] == 40
    assert rows["negation"]["p_holm"] >= rows["negation"]["p"]


TOUCHES_FILE = "from pathlib import Path\nPath({marker!r}).touch()\ndef tables(folder):\n    return []\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def tables(", "cannot be executed (SyntaxError: "),
        ("x = 1", "defines no tables(folder)"),
        (
            "from qa_arch.results.experiments import Published\nP = Published('x', {'exakt': 1.0}, 'n')",
            "x, published: unknown column 'exakt' (did you mean 'exact'?)",
        ),
        (
            "from qa_arch.results.experiments import records_table\n"
            "def tables(folder): return [records_table(folder, 'A', columns=['modle'])]",
            "columns: unknown column 'modle' (did you mean 'model'?)",
        ),
    ],
)
def test_errors_name_the_script(tmp_path, text, message):
    (tmp_path / TABLES).write_text(text)
    with pytest.raises(QaArchError) as caught:
        experiment_tables(tmp_path)
    assert isinstance(caught.value, ConfigError)
    assert str(caught.value).startswith(f"{tmp_path / TABLES}: ")
    assert message in str(caught.value)


def test_scripts_among_records_are_not_executed(tmp_path, monkeypatch, make_record):
    """Only the script of a named folder of ``experiments/`` is executed, none among the records."""
    monkeypatch.chdir(tmp_path)
    marker = tmp_path / "executed"
    foreign, records = tmp_path / "runs" / "foreign", tmp_path / "experiments" / "trial" / "records" / "a"
    for folder in (foreign, records):
        write_record(folder, make_record())
        (folder / TABLES).write_text(TOUCHES_FILE.format(marker=str(marker)))
    script(tmp_path / "experiments" / "trial", 'records_table(folder, "A")')
    calls = (["runs"], ["runs/foreign"], ["experiments/trial"], ["experiments/trial/records/a"], ["--all"])
    for call in calls:
        assert main(["tables", *call]) == 0
        assert main(["tables", "experiments/trial/records/a", "--format", "json"]) == 0
    assert not marker.exists()


def test_registered_column_works_in_every_output(tmp_path, monkeypatch, make_record, qa_arch):
    """One registry entry is enough to compute, show, sort by, draw and write the column."""
    monkeypatch.chdir(tmp_path)
    seeds = Column("dummy", "Dummy & sons", lambda s: 10.0 * s.record.seed, lambda s: bool(s.record),
                   format=lambda value: f"<{value:.0f}>", on_request=True, mark=("#000000", "*"))  # fmt: skip
    monkeypatch.setitem(COLUMNS, "dummy", seeds)
    for seed in (2, 1):
        record = make_record(seed=seed, config={"optim": {"lr": seed}})
        write_record(tmp_path / "experiments" / "trial" / "records" / f"s{3 - seed}", record)
    script(
        tmp_path / "experiments" / "trial",
        'records_table(folder, "A", columns=["model", "dummy"], sort=["dummy"])',
        'dot_plot(folder, "f", "F", ["dummy"])',
    )
    assert qa_arch("tables", "--all")[0] == 0
    folder = tmp_path / "experiments" / "trial"
    assert "| model | Dummy & sons |" in (folder / "table.md").read_text()
    assert "| bert | <10> |\n| bert | <20> |" in (folder / "table.md").read_text()
    assert r"model & Dummy \& sons" in (folder / "table.tex").read_text()
    assert '"dummy": 10.0' in (folder / "table.json").read_text()
    assert ",dummy" in (folder / "table.csv").read_text().splitlines()[0]
    assert "Dummy &amp; sons" in (folder / "f.svg").read_text()
    for form in ("text", "markdown", "latex", "csv", "json"):
        code, out, _ = qa_arch("tables", folder / "records", "--columns", "model,dummy", "--format", form)
        assert (code, "ummy" in out) == (0, True), out
        if form in ("csv", "json"):
            assert [word in out for word in ("model", "f1")] == [True, False], "other columns than chosen"
    code, _, err = qa_arch("tables", folder / "records", "--columns", "dumy")
    assert (code, "unknown column 'dumy' (did you mean 'dummy'?)" in err) == (2, True), err
    assert qa_arch("tables", "experiments/trial", "--columns", "dummy")[0] == 2
