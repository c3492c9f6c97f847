"""An experiment's tables: published rows, rows that wait for a run, counts of sets; and its figures."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from qa_arch.records import BatchSizes, write_record
from qa_arch.results.experiments import experiment_tables
from tests.results.conftest import script

WANTED = """runs_table(
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


def test_a_row_waits_for_its_run_and_names_the_command(folder, make_record):
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


def test_runs_of_several_commits_or_of_changed_code_are_named_as_such(folder, make_record):
    for seed, commit, dirty in ((1, "a" * 40, False), (2, "a" * 40, False), (3, "b" * 40, True)):
        record = make_record("bert", 60.0, seed=seed, commit=commit, dirty=dirty)
        write_record(folder / "records" / f"bert-s{seed}", record)
        notes = [note for note in experiment_tables(folder)[0].notes if note.startswith("code of the runs")]
        assert (notes == []) is (seed < 3)
    assert notes[0].endswith("by commit: aaaaaaa (2), bbbbbbb (1); 1 of 3 with uncommitted changes beside it")


def test_a_row_of_one_batch_size_waits_for_a_finished_run_of_it(tmp_path, make_record):
    rows = 'Wanted("bert", "make eight", batch=8), Wanted("bert", "make six", batch=6), Wanted("bert", "any")'
    script(tmp_path, f'runs_table(folder, "T", columns=["model", "batch", "f1"], wanted=[{rows}])')
    eight = make_record(batch={"micro": 8, "accumulate": 1, "devices": 1, "global": 8})
    write_record(tmp_path / "records" / "eight", eight)
    write_record(
        tmp_path / "records" / "six", replace(eight, batch=BatchSizes(global_size=6), status="oom", scores={})
    )
    (table,) = experiment_tables(tmp_path)
    assert [row.get("batch") for row in table.rows][-3:] == [8, 6, 6]
    assert table.notes[-1] == "bert, batch 6: not run yet; `make six` fills the row"
    assert not any("eight" in note or "any" in note for note in table.notes)


def test_two_systems_are_compared_by_kind(tmp_path, make_run, question_set):
    script(tmp_path, 'pairwise_table(folder, "T", "poor", "good")')
    for model, right in (("poor", 0.3), ("good", 0.95)):
        assert experiment_tables(tmp_path) == []
        run = make_run(f"{model}-13", question_set(again=20), model=model, right=right)
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
