"""Records of runs that finish, fail or run out of memory, and warnings about models that always abstain."""

import logging
import re
from dataclasses import asdict, replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from qa_arch.data.splits import load_splits
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError, RunError, out_of_memory
from qa_arch.qa import task
from qa_arch.qa.files import mass_abstention
from qa_arch.records import RECORD, BatchSizes, read_record, write_record
from qa_arch.results.systems import load_questions
from qa_arch.training import run
from qa_arch.training.checkpoint import LAST, discard
from qa_arch.types import Candidate, Prediction


@pytest.fixture
def raise_in_training(before_step):
    """``raise_in_training(error)``: raise ``error`` at the second batch, once."""

    def fail_once(error: BaseException) -> None:
        errors = [error]

        def fail(module, batch, batch_idx):
            if batch_idx == 1 and errors:
                raise errors.pop()

        before_step(fail)

    return fail_once


def test_record_of_a_finished_run_is_complete(run_training, monkeypatch):
    monkeypatch.setattr("qa_arch.training.run.discard", discard)
    done = run_training("trainer.epochs=2", "model.dropout=0.1")
    assert not list(done.folder.glob("*.ckpt"))
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
    assert set(record.scores["dev"]) == {"threshold_0", "calibrated", "oracle", "forced"}
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


def test_failure_is_recorded_raised_and_cleared_on_resume(run_training, raise_in_training, tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LAST).touch()
    raise_in_training(ValueError("bad batch\nin detail"))
    with caplog.at_level("INFO", logger="qa_arch"), pytest.raises(ValueError, match="bad batch"):
        run_training()
    assert f"--folder {tmp_path / 'run'} --if-exists resume" in caplog.messages[-1]
    record = read_record(tmp_path / "run")
    assert (record.status, record.error) == ("failed", "ValueError: bad batch")
    assert "training_step" in (tmp_path / "run" / "traceback.txt").read_text()
    (tmp_path / "run" / LAST).unlink()
    done = run_training(resume=True)
    assert (done.record.status, done.record.error) == ("ok", None)
    assert not (tmp_path / "run" / "traceback.txt").exists()


def test_finished_run_stays_one_if_logging_its_outcome_is_interrupted(run_training, monkeypatch, tmp_path):
    monkeypatch.setattr(run.RunLogger, "log_outcome", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_training("logger=csv")
    record = read_record(tmp_path / "run")
    assert (record.status, record.error, "dev" in record.scores) == ("ok", None, True)


@pytest.mark.parametrize("replaced", [False, True], ids=["renamed", "replaced by another run"])
@pytest.mark.parametrize("moment", ["training", "scoring"])
def test_run_whose_folder_was_renamed_ends_and_resumes_there(
    run_training, before_step, monkeypatch, tmp_path, moment, replaced
):
    """It ended as ``ok`` in a new folder, without config and tokenizer."""
    folder, moved = tmp_path / "run", tmp_path / "moved"
    score = run.score

    def rename(*_):
        if not moved.exists():
            folder.rename(moved)
            if replaced:
                write_record(folder, replace(read_record(moved), seed=99))

    def renaming_score(*arguments, **options):
        rename()
        return score(*arguments, **options)

    if moment == "training":
        before_step(rename)
    else:
        monkeypatch.setattr(run, "score", renaming_score)
    with pytest.raises(RunError, match="run: was renamed, replaced or removed while the run trained in it"):
        run_training("trainer.checkpoint_minutes=1e-6")
    assert read_record(folder).seed == 99 if replaced else not (folder / RECORD).exists()
    assert replaced or moment == "scoring" or not folder.exists()
    assert read_record(moved).status == "running"
    assert not (moved / run.TRACEBACK).exists()
    done = run_training("trainer.checkpoint_minutes=1e-6", name="moved", resume=True)
    assert (done.record.status, (moved / "model" / "tokenizer").is_dir()) == ("ok", True)


def test_out_of_memory_is_recorded_as_a_result(run_training, raise_in_training):
    raise_in_training(torch.OutOfMemoryError("CUDA out of memory"))
    done = run_training()
    assert read_record(done.folder) == done.record
    assert done.record.status == "oom"
    assert (done.folder / "traceback.txt").is_file()
    assert out_of_memory(MemoryError())
    assert out_of_memory(RuntimeError("CUDA error: out of memory"))
    assert not out_of_memory(ValueError("out of memory"))


def test_splits_that_share_an_article_are_refused(configure):
    data = configure().data
    closed_dev = replace(data, open_dev=False)
    for overlapping in (
        replace(data, calibration=data.train),
        replace(data, dev=data.calibration),
        replace(closed_dev, dev=data.train),
    ):
        with pytest.raises(DataError, match=r"share \d article"):
            load_splits(overlapping)
    assert "dev" not in load_splits(closed_dev)
    assert load_splits(replace(closed_dev, dev="missing.json"))


def predictions(questions, nulls: int) -> list[Prediction]:
    """Predictions with null odds 1 for the first ``nulls`` questions and -1 for the others."""
    best = Candidate("x", 0, 1, 0.0, 1.0)
    return [
        Prediction(example.id, best, 1.0 if n < nulls else -1.0, 1)
        for n, example in enumerate(questions.examples)
    ]


@pytest.mark.parametrize(
    ("nulls", "margin", "warned"),
    [(75, 0.0, True), (74, 0.0, True), (73, 0.0, False), (75, 2.0, False), (0, -2.0, True)],
)
def test_warning_for_a_model_that_nearly_always_abstains(nulls, margin, warned):
    """Warns from 98% abstentions on: 73.5 of 75 questions."""
    questions = generate(5, 1)
    assert len(questions) == 75
    outputs = SimpleNamespace(best_predictions=predictions(questions, nulls))
    assert (mass_abstention(questions, outputs.best_predictions, margin) is not None) == warned


def test_answers_that_decoding_excludes_are_counted_in_the_log(run_training, caplog):
    with caplog.at_level(logging.INFO, "qa_arch"):
        run_training("decode.max_answer_tokens=1", "trainer.max_steps=1")
    found = r"train: 21 questions, \d+ windows, \d+ answers longer than decode.max_answer_tokens=1, which no"
    assert any(re.match(found, message) for message in caplog.messages), caplog.messages


def test_run_that_always_abstains_warns_unless_it_is_a_smoke_test(run_training, caplog, monkeypatch):
    """The threshold is patched so that nothing is answered."""
    monkeypatch.setattr(task, "calibrated_threshold", lambda *_: -1e9)
    with caplog.at_level(logging.WARNING, "qa_arch"):
        run_training()
    output = [r.getMessage() for r in caplog.records if "learned nothing else" in r.getMessage()]
    assert [line.split(":")[0] for line in output] == ["calibration", "dev"]
    assert all("train longer than " in line and "optim.lr" not in line for line in output)
    caplog.clear()
    run_training("trainer.max_steps=3", name="smoke_test")
    assert not any("learned nothing else" in message for message in caplog.messages)
