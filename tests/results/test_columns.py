"""Columns of comparisons, runs that are refused, and how runs are grouped into tables."""

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qa_arch import manifest
from qa_arch.metrics.abstention import auroc, reliability
from qa_arch.models.checkpoint_files import CHECKPOINT
from qa_arch.provenance import own_versions
from qa_arch.records import CHECKPOINTS, find_runs
from qa_arch.results import columns
from qa_arch.results.columns import COLUMNS, SPAN_COLUMNS, Column, by_measure, runs_table
from qa_arch.results.systems import load_questions

REQUESTED = ("model", "f1", "auroc", "ece", "ece_fitted")


def test_auroc_is_the_share_of_correctly_ordered_pairs():
    draw = np.random.default_rng(0)
    score, positive = draw.integers(0, 6, 40) / 2, draw.random(40) < 0.4
    pairs = itertools.product(score[positive], score[~positive])
    expected = np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs])
    assert auroc(score, positive) == pytest.approx(expected)
    assert auroc(np.array([2.0, 1.0, -np.inf]), np.array([True, True, False])) == 1.0
    assert auroc(score, np.ones(40, bool)) is auroc(score, np.zeros(40, bool)) is None


def test_columns_from_question_rows_match_the_metrics(runs):
    folder, _ = runs
    records = find_runs([folder])
    table = runs_table(records, columns=REQUESTED)
    rows = [row for row in table.rows if "run" in row]
    for (path, record), row in zip(records, rows, strict=True):
        questions = load_questions(path, record)
        assert row["auroc"] == pytest.approx(100 * auroc(-questions.null_odds, questions.answerable))
        ece = reliability(questions.probability, questions.span_exact > 0).ece
        assert row["ece"] == pytest.approx(ece)
        fitted = reliability(questions.confidence, questions.exact > 0).ece
        assert row["ece_fitted"] == pytest.approx(fitted)
    assert "auroc" not in table.rows[0], "a heuristic has no question rows"
    assert "auroc" not in runs_table(records).rows[-1], "rows are read only if a column needs them"


def test_ece_is_unknown_without_probabilities(make_run, question_set):
    folder = make_run("a", question_set(), keep_spans=False)
    row = runs_table(find_runs([folder]), columns=("model", "ece", "ece_fitted")).rows[-1]
    assert row["ece"] is row["ece_fitted"] is None


def test_column_of_an_extra_that_is_taken_or_cannot_be_loaded_is_named_and_left_out(monkeypatch, caplog):
    taken = SimpleNamespace(COLUMNS=[Column("f1", "F1"), Column("f9", "F9")])
    monkeypatch.setitem(sys.modules, "mine.columns", taken)
    monkeypatch.setattr(manifest, "BROKEN", [])
    extras = [SimpleNamespace(columns=name) for name in ("nothing_here.columns", "mine.columns", None)]
    monkeypatch.setattr(columns, "extras", lambda: extras)
    known, *_ = columns._all_columns()
    assert (known["f1"], known["f9"]) == (COLUMNS["f1"], taken.COLUMNS[1])
    missing, other = caplog.messages
    assert "nothing_here.columns: cannot be loaded (ModuleNotFoundError: No module named" in missing
    assert "mine.columns: column 'f1' already exists; it is left out" in other


def test_other_code_of_a_package_of_the_user_is_recorded_and_noted(make_record, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "near_by" / "model.py"
    source.parent.mkdir()
    runs = []
    for seed, text in enumerate(("a = 1", "a = 1", "a = 2")):
        source.write_text(text)
        settings = {
            "model": {"_target_": "near_by.model.Near"},
            "logger": {"_target_": "pytorch_lightning.loggers.CSVLogger"},
        }
        versions = own_versions(settings)
        assert [*versions] == ["near_by"]
        runs.append((Path(f"run-{seed}"), make_record("near", seed=seed, versions=versions)))
    assert not any("near_by" in note for note in runs_table(runs[:2]).notes)
    (note,) = (note for note in runs_table(runs).notes if "near_by" in note)
    assert re.fullmatch(r"code of the runs differs, by version of near_by: \w{10} \(2\), \w{10} \(1\)", note)


def test_status_replaces_a_missing_score():
    row = {"exact": None, "f1": None, "status": "oom"}
    assert [COLUMNS[key].text(row) for key in ("exact", "f1")] == ["OOM", "–"]
    assert COLUMNS["exact"].text({"exact": 61.04, "status": "ok"}) == "61.0"


def with_folders(records):
    return [(Path(f"run{index}"), record) for index, record in enumerate(records)]


def test_comparison_rows_and_notes(make_record):
    proposed = make_record("proposed", 65.0)
    proposed.scores["dev"]["calibrated"].metrics["pr_oracle_ap"] = 71.5
    table = runs_table(with_folders([make_record("bert", 60.0), proposed]))
    plain, bert, proposed = table.rows
    assert (plain["model"], plain["exact"], plain["NoAns_f1"]) == ("always-no-answer", 50.0, 100.0)
    assert (bert["exact"], bert["f1"], bert["HasAns_f1"], bert["NoAns_f1"]) == (60.0, 62.0, 74.0, 50.0)
    assert (bert["threshold_0_f1"], bert["oracle_f1"], bert["forced_f1"]) == (61.0, 63.0, 54.0)
    assert (bert["answerable_ap"], proposed["answerable_ap"]) == (None, 71.5)
    assert (proposed["exact"], proposed["run"], proposed["seconds"]) == (65.0, "run1", 61.25)
    assert [column.key for column in table.columns] == list(SPAN_COLUMNS)
    assert "1,200 questions, 600 of them unanswerable" in table.notes[0]
    assert "fitted on calibration" in table.notes[1]


def test_runs_are_grouped_by_what_was_measured(make_record):
    records = [
        make_record(exact=None, status="oom"),
        make_record(data="d1"),
        make_record(data="d2"),
        make_record(data="d1", model="proposed"),
        make_record(data="d1", name="other"),
        make_record(data="d1", split="calibration"),
        replace(make_record(exact=None, status="oom"), data={}),  # died before it read its data
    ]
    groups = by_measure(with_folders(records))
    members = {frozenset(folder.name for folder, _ in group) for group in groups}
    assert members == {frozenset(g.split()) for g in ("run0 run1 run3 run6", "run2", "run4", "run5")}
    for group in groups:
        runs_table(group)


def test_downloaded_checkpoint_is_in_every_table_of_its_set(make_record):
    config = {"model": {"_target_": CHECKPOINT}}
    unfitted = {"value": 0.0, "fitted_on": "nothing"}
    records = [
        make_record(data="d1"),
        make_record(data="d1", name="other"),
        make_record("hub", data="d1", name=CHECKPOINTS, config=config, threshold=unfitted),
        make_record("other", data="d2", name=CHECKPOINTS, config=config, threshold=unfitted),
    ]
    groups = by_measure(with_folders(records))
    members = {frozenset(folder.name for folder, _ in group) for group in groups}
    assert members == {frozenset(g.split()) for g in ("run0 run2", "run1 run2", "run3")}
    notes = {group[0][0].name: runs_table(group).notes for group in groups}
    assert "null threshold fitted on calibration; of hub on nothing" in notes["run0"]
    assert "null threshold fitted on nothing" in notes["run3"]
    assert any(note.startswith("hub: downloaded; ") for note in notes["run1"])
