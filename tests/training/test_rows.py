"""Training from Python on rows in memory gives the run that files give, and resumes it with the same rows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from stops import results_of

import qa_arch as package
from qa_arch.errors import QaArchError, RunError
from qa_arch.records import write_record
from qa_arch.training.jobs import Job


@pytest.fixture
def sets(few_questions):
    """Split -> articles of a file of ``few_questions``."""
    paths = (setting.removeprefix("data.").split("=") for setting in few_questions)
    return {split: json.loads(Path(path).read_text())["data"] for split, path in paths}


@pytest.fixture
def settings(tiny_run, few_questions):
    return [word for word in tiny_run("data.train_questions=0") if word not in few_questions]


def test_rows_train_the_run_that_files_train(sets, settings, train_once, tmp_path):
    rows = package.train(settings, data=sets, folder=tmp_path / "rows").record
    files = train_once("data=files", "data.train_questions=0").record
    assert (rows.run_hash, results_of(rows)) == (files.run_hash, results_of(files))
    assert all(rows.config["data"][split].startswith("memory:") for split in sets)


def test_every_rank_reads_the_rows(sets, settings, tmp_path):
    two = package.train([*settings, "trainer.devices=2"], data=sets, folder=tmp_path / "two").record
    assert (two.status, two.batch.devices) == ("ok", 2)


def test_resuming_needs_the_same_rows(sets, settings, qa_arch, tmp_path):
    """While the run is unfinished and when it has ended."""
    folder, rows = tmp_path / "run", [*sets["train"], *sets["calibration"]]
    record = package.train(settings, data=rows, folder=folder).record
    assert record.facts("calibration").questions, "held out"
    command = ("train", "--config-from", folder, "--folder", folder, "--resume")
    for status, code in (("killed", 4), ("ok", 0)):
        write_record(folder, replace(record, status=status))
        said = qa_arch(*command)
        assert (said[0], "data=...)), or name a file of them" in said[2]) == (code, status == "killed")
        for data, message in (
            (None, r"^data\.train: memory:\w+: are rows that were given from Python and not kept"),
            ([*rows, *sets["dev"]], r"data\.train: memory:\w+ is not what the run has read"),
        ):
            with pytest.raises(QaArchError, match=message):
                package.train(settings, data=data, folder=folder, if_exists="resume")
        again = package.train(settings, data=rows, folder=folder, if_exists="resume").record
        assert (again.status, again.scores) == ("ok", record.scores)


@pytest.mark.parametrize(
    ("choice", "split", "expected"),
    [
        ([], "train", ["memory", None]),
        (["data=demo"], "dev", ["synthetic", "memory"]),
        (["data=demo"], "train", ["memory", "synthetic"]),
    ],
)
def test_rows_are_all_of_the_data_unless_a_choice_has_more(monkeypatch, sets, choice, split, expected):
    jobs: list[Job] = []
    monkeypatch.setattr("qa_arch.training.jobs.check", jobs.extend)
    monkeypatch.setattr("qa_arch.training.jobs.train", lambda job: None)
    with pytest.raises(RunError, match="no such run"):
        package.train(["model=bert", *choice], data={split: sets[split]})
    data = jobs[0].config.data
    assert [source and source.partition(":")[0] for source in (data.train, data.dev)] == expected
