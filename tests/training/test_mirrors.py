"""Mirrors of whole runs: what lies in wandb's offline folders and in TensorBoard's event files."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from qa_arch.data.squad import open_set
from qa_arch.errors import UnavailableError
from qa_arch.results.record import read_record
from qa_arch.training import mirrors, spans
from qa_arch.training.mirrors import EVENTS, Mirror, Results, mirrored

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("offline_wandb"),
]


@pytest.fixture(scope="module")
def offline_runs():
    """``offline_runs(folder)`` of the reader beside this file."""
    spec = importlib.util.spec_from_file_location("wandb_files", Path(__file__).with_name("wandb_files.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module.offline_runs


def curve(run, name):
    return [row[name] for row in run.history if name in row]


def test_wandb_has_curves_predictions_and_tables(run_training, offline_runs, few_questions, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "sweep-1")
    done = run_training("logger=wandb", "logger.tags=[mine]", "trainer.epochs=2", "name=trial")
    questions = spans_of(few_questions)
    (run,) = offline_runs(done.folder)
    assert run.exit_code == 0
    assert (run.name, run.group, run.project, run.tags) == ("bert-s13", "sweep-1", "qa_arch", ["mine"])
    assert run.config["trainer"]["epochs"] == 2
    for name in ("train_loss", "calibration_loss", "calibration_f1"):
        assert curve(run, name) == pytest.approx([epoch.value(name) for epoch in done.record.epochs])
    scores = done.record.scores["dev"]["calibrated"]
    assert run.summary["dev/calibrated/f1"] == pytest.approx(scores.f1)
    (shown,) = [row for row in run.history if "predictions/nrows" in row]
    assert (shown["predictions/nrows"], shown["predictions/ncols"]) == (len(questions), len(mirrors.COLUMNS))
    assert run.artifacts["record"] == ["questions.parquet", "run.json", "sets/calibration/questions.parquet"]
    assert run.artifacts["tables"] == ["table.csv", "table.md", "table.tex"]


def test_a_failed_run_is_finished_as_failed_with_its_epochs(
    run_training, offline_runs, monkeypatch, tmp_path
):
    def breaks(*_, **__):
        raise RuntimeError("broke while scoring")

    monkeypatch.setattr(spans, "score_splits", breaks)
    with pytest.raises(RuntimeError, match="broke while scoring"):
        run_training("logger=wandb", "trainer.epochs=1", name="bad")
    (run,) = offline_runs(tmp_path / "bad")
    assert run.exit_code == 1
    assert len(curve(run, "train_loss")) == 1
    assert "record" not in run.artifacts
    assert read_record(tmp_path / "bad").status == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_several_ranks_are_one_run(run_training, offline_runs, strategy):
    done = run_training("logger=wandb", "trainer.epochs=2", "trainer.devices=2", f"trainer={strategy}")
    (run,) = offline_runs(done.folder)
    assert run.exit_code == 0
    assert curve(run, "train_loss") == pytest.approx([epoch.train_loss for epoch in done.record.epochs])


def test_event_files_hold_the_curves_of_every_epoch(run_training):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = run_training("logger=tensorboard", "trainer.epochs=3")
    events = reading.EventAccumulator(str(done.folder / EVENTS))
    events.Reload()
    for name in ("train_loss", "calibration_loss", "calibration_f1"):
        found = events.Scalars(name)
        assert [event.value for event in found] == pytest.approx([e.value(name) for e in done.record.epochs])
        assert [event.step for event in found] == [epoch.step for epoch in done.record.epochs]
    (score,) = events.Scalars("dev/calibrated/f1")
    assert score.value == pytest.approx(done.record.scores["dev"]["calibrated"].f1)


def test_without_tensorboard_the_error_says_what_to_install(configure, tmp_path, monkeypatch):
    def missing(**_):
        raise ModuleNotFoundError("no tensorboard")

    monkeypatch.setattr("pytorch_lightning.loggers.TensorBoardLogger", missing)
    with (
        pytest.raises(UnavailableError, match=r"qa-arch\[tensorboard\]"),
        mirrored(configure("logger=tensorboard"), tmp_path),
    ):
        pass


def test_predictions_stand_beside_their_questions(run_training, few_questions):
    done = run_training("trainer.epochs=1", "logger=none")
    questions = spans_of(few_questions)
    rows = [dict(zip(mirrors.COLUMNS, row, strict=True)) for row in results(done, questions).predictions()]
    assert [row["id"] for row in rows] == [example.id for example in questions.examples]
    calibrated = done.record.scores["dev"]["calibrated"]
    assert 100 * sum(row["f1"] for row in rows) / len(rows) == pytest.approx(calibrated.f1)
    answered = [row for row in rows if row["prediction"]]
    assert all(row["exact"] for row in answered if row["prediction"] == row["gold"])
    assert results(done, None).predictions() == []


def results(done, questions):
    return Results(done.record, done.folder, questions)


def spans_of(overrides):
    (file,) = (word.partition("=")[2] for word in overrides if word.startswith("data.dev="))
    return open_set(file, name="")


def test_a_mirror_that_breaks_does_not_break_the_run(run_training, caplog):
    def breaks(_):
        raise OSError("no room")

    Mirror(take=breaks).results(None)
    assert "could not be mirrored (no room); the record has them" in caplog.text
