"""Sweeps over sets of candidates and of classes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cli.test_cheap_checks import told

from qa_arch.records import read_record


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["model=question_types", "data=question_types"], marks=pytest.mark.slow),
        pytest.param(
            ["model=question_types", "data=trec", "data.train=types:q.label", "data.dev=types:q.label"],
            marks=pytest.mark.slow,
        ),
        ["model=qa_lstm/h", "data=insuranceqa"],
    ],
    ids=lambda settings: settings[1],
)
def test_points_are_planned(qa_arch, tmp_path, monkeypatch, settings):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INSURANCEQA", str(tmp_path))
    pools = [f"question.{split}.label.token_idx.pool" for split in ("dev", "test1")]
    words = ["vocabulary", "answers.label.token_idx", "question.train.token_idx.label", *pools]
    for name in (*words, "q.label", "vectors.txt"):
        (tmp_path / name).write_text("never read")
    given = ["glove.path=vectors.txt", f"sweep.folder={tmp_path}/sweep", "seed=1,2"]
    code, out, err = qa_arch("train", "-m", *settings, *given, "--dry-run")
    assert (code, out.count(" run ")) == (0, 2), err


def test_a_classifier_that_is_not_there_is_told_before_torch(tmp_path):
    run = tmp_path / "none"
    calls = [
        ("types", run, "--data", "hub:some/set:validation", "--out", tmp_path / "t"),
        ("train", "debug=fast", f"selection.types={run}"),
    ]
    for call, (code, message, heavy) in zip(calls, told(*calls), strict=True):
        assert (code, heavy) == (5, []), (call, message)
        assert str(run) in message


@pytest.mark.slow
def test_classes_of_questions_are_swept(tmp_path):
    """The embedded questions with classes, two seeds."""
    settings = ["model=question_types", "data=question_types", "debug=fast", "trainer.progress=false"]
    command = [sys.executable, "-m", "qa_arch.cli.main", "train", "-m", *settings, "seed=1,2"]
    done = subprocess.run([*command, f"sweep.folder={tmp_path}/sweep"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = [read_record(path.parent) for path in (tmp_path / "sweep").glob("*/run.json")]
    assert [record.status for record in records] == ["ok", "ok"]
    assert all(record.data["train"].questions == 60 for record in records)
