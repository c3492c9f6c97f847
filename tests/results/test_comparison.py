"""What stands in a comparison, what is refused, and how runs fall into tables."""

from __future__ import annotations

from pathlib import Path

from qa_arch.models.checkpoint_files import CHECKPOINT
from qa_arch.records import CHECKPOINTS
from qa_arch.results.columns import (
    SPAN_COLUMNS,
    by_measure,
    comparison,
)


def named(records):
    return [(Path(f"run{index}"), record) for index, record in enumerate(records)]


def test_rows(make_record):
    proposed = make_record("proposed", 65.0)
    proposed.scores["dev"]["calibrated"].metrics["pr_oracle_ap"] = 71.5
    table = comparison(named([make_record("bert", 60.0), proposed]))
    plain, bert, proposed = table.rows
    assert (plain["model"], plain["exact"], plain["NoAns_f1"]) == ("always-no-answer", 50.0, 100.0)
    assert (bert["exact"], bert["f1"], bert["HasAns_f1"], bert["NoAns_f1"]) == (60.0, 62.0, 74.0, 50.0)
    assert (bert["f1_at_0"], bert["f1_oracle"], bert["spans_f1"]) == (61.0, 63.0, 54.0)
    assert (bert["answerable_ap"], proposed["answerable_ap"]) == (None, 71.5)
    assert (proposed["exact"], proposed["run"], proposed["seconds"]) == (65.0, "run1", 61.25)
    assert [column.key for column in table.columns] == list(SPAN_COLUMNS)
    assert "1,200 questions, of them 600 unanswerable" in table.notes[0]
    assert "fitted on calibration" in table.notes[1]


def test_an_unfinished_run_keeps_its_row(make_record):
    oom = make_record(exact=None, status="oom", references={})
    table = comparison(named([make_record(), oom]))
    assert table.rows[-1]["status"] == "oom"
    assert "exact" not in table.rows[-1]


def test_tables_by_what_was_measured(make_record):
    records = [
        make_record(exact=None, status="oom"),
        make_record(data="d1"),
        make_record(data="d2"),
        make_record(data="d1", model="proposed"),
        make_record(data="d1", name="other"),
        make_record(data="d1", split="calibration"),
    ]
    groups = by_measure(named(records))
    together = {frozenset(folder.name for folder, _ in group) for group in groups}
    assert together == {frozenset(g.split()) for g in ("run0 run1 run3", "run2", "run4", "run5")}
    for group in groups:
        comparison(group)


def test_a_downloaded_checkpoint_stands_in_every_table_of_its_set(make_record):
    config = {"model": {"_target_": CHECKPOINT}}
    nothing = {"value": 0.0, "fitted_on": "nothing"}
    records = [
        make_record(data="d1"),
        make_record(data="d1", name="other"),
        make_record("hub", data="d1", name=CHECKPOINTS, config=config, margin=nothing),
        make_record("alone", data="d2", name=CHECKPOINTS, config=config, margin=nothing),
    ]
    groups = by_measure(named(records))
    together = {frozenset(folder.name for folder, _ in group) for group in groups}
    assert together == {frozenset(g.split()) for g in ("run0 run2", "run1 run2", "run3")}
    notes = {group[0][0].name: comparison(group).notes for group in groups}
    assert "null threshold fitted on calibration; of hub on nothing" in notes["run0"]
    assert "null threshold fitted on nothing" in notes["run3"]
    assert any(note.startswith("hub: downloaded; ") for note in notes["run1"])
