"""The record of a run, whatever becomes of it."""

from __future__ import annotations

import logging
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch

from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError
from qa_arch.records import BatchSizes, read_record
from qa_arch.results.questions import load_questions
from qa_arch.spans.task import TASK, SpanTask
from qa_arch.training.checkpoint import LAST
from qa_arch.training.devices import out_of_memory
from qa_arch.training.module import TrainingModule
from qa_arch.types.text import Candidate, Prediction


@pytest.fixture
def breaking():
    """Raise at the second batch."""

    def arrange(patch: pytest.MonkeyPatch, error: BaseException) -> None:
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:
                raise error
            return take(self, batch, batch_idx)

        take = TrainingModule.training_step
        patch.setattr(TrainingModule, "training_step", training_step)

    return arrange


def test_a_finished_run_tells_everything(run_training):
    done = run_training("trainer.epochs=2", "model.dropout=0.1")
    record = read_record(done.folder)
    assert record == done.record
    assert record.status == "ok"
    assert record.error is None
    assert set(record.data) == {"train", "calibration", "dev"}
    assert record.data["train"].questions == 21
    assert record.data["train"].titles
    assert record.data["dev"].titles == ()
    assert record.batch == BatchSizes(micro=4, accumulate=1, devices=1, global_size=4)
    assert record.threshold.fitted_on == "calibration"
    assert record.threshold.value == record.scores["calibration"]["oracle"].threshold
    assert set(record.scores["dev"]) == {"margin_0", "calibrated", "oracle", "never_null"}
    assert record.scores["dev"]["calibrated"].threshold == record.threshold.value
    assert set(record.references["dev"]) == {"always-no-answer", "random-span", "word-overlap"}
    assert len(record.epochs) == 2
    assert all(seconds is not None for seconds in asdict(record.seconds).values())
    validation = sum(epoch.validation_seconds for epoch in record.epochs)
    assert record.seconds.fit_with_validation == pytest.approx(record.seconds.fit + validation, abs=0.01)
    assert validation > 0
    for split in ("dev", "calibration"):
        rows = load_questions(done.folder, record, split)
        assert len(rows) == record.data[split].questions
        assert 100 * rows.f1.mean() == pytest.approx(record.scores[split]["calibrated"].f1)
    assert not (done.folder / "traceback.txt").exists()


def test_a_failure_is_recorded_and_raised_and_forgotten_when_the_run_goes_on(
    run_training, breaking, monkeypatch, tmp_path, caplog
):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LAST).touch()
    with monkeypatch.context() as patch, caplog.at_level("INFO", logger="qa_arch"):
        breaking(patch, ValueError("no such luck\nat all"))
        with pytest.raises(ValueError, match="no such luck"):
            run_training()
    assert f"--folder {tmp_path / 'run'} --if-exists resume" in caplog.messages[-1]
    record = read_record(tmp_path / "run")
    assert (record.status, record.error) == ("failed", "ValueError: no such luck")
    assert "training_step" in (tmp_path / "run" / "traceback.txt").read_text()
    (tmp_path / "run" / LAST).unlink()
    done = run_training(resume=True)
    assert (done.record.status, done.record.error) == ("ok", None)
    assert not (tmp_path / "run" / "traceback.txt").exists()


def test_running_out_of_memory_is_a_result(run_training, breaking, monkeypatch):
    breaking(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    done = run_training()
    assert read_record(done.folder) == done.record
    assert done.record.status == "oom"
    assert (done.folder / "traceback.txt").is_file()
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not out_of_memory(ValueError("out of memory"))


def test_sets_that_share_an_article_are_refused(configure):
    data = configure().data
    closed = replace(data, open_dev=False)
    for shared in (
        replace(data, calibration=data.train),
        replace(data, dev=data.calibration),
        replace(closed, dev=data.train),
    ):
        with pytest.raises(DataError, match=r"share \d article"):
            TASK.load_splits(shared)
    assert "dev" not in TASK.load_splits(closed)
    assert TASK.load_splits(replace(closed, dev="not_made_yet.json"))


def _answers(questions, nulls: int) -> list[Prediction]:
    best = Candidate("x", 0, 1, 0.0, 1.0)
    return [
        Prediction(example.id, best, 1.0 if n < nulls else -1.0, 1)
        for n, example in enumerate(questions.examples)
    ]


@pytest.mark.parametrize(
    ("nulls", "margin", "warned"),
    [(75, 0.0, True), (74, 0.0, True), (73, 0.0, False), (75, 2.0, False), (0, -2.0, True)],
)
def test_a_model_that_only_says_no_answer_is_warned_of(nulls, margin, warned):
    """75 questions, 98% of them are 73.5."""
    questions = generate(5, 1)
    assert len(questions) == 75
    outputs = SimpleNamespace(best_predictions=_answers(questions, nulls))
    warning = TASK.warning(questions, outputs, margin)
    assert (warning is not None) == warned
    assert not warned or "learned nothing else" in warning


def test_a_run_that_never_learned_warns(run_training, caplog, monkeypatch):
    """An untrained model under a margin at which nothing is answered."""
    monkeypatch.setattr(SpanTask, "fit_threshold", lambda *_: -1e9)
    with caplog.at_level(logging.WARNING, "qa_arch"):
        run_training()
    output = [r.getMessage() for r in caplog.records if "learned nothing else" in r.getMessage()]
    assert [line.split(":")[0] for line in output] == ["calibration", "dev"]
    caplog.clear()
    run_training("trainer.max_steps=3", name="a trial of a few steps")
    assert not any("learned nothing else" in message for message in caplog.messages)
