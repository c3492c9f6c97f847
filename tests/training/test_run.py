"""Runs that finish, fail, run out of memory, shrink their micro batch or are interrupted; their records."""

import logging
import os
import re
import shlex
import signal
from dataclasses import asdict, replace
from unittest.mock import Mock

import pytest
import torch

from qa_arch.config import schema
from qa_arch.data.question_sets import passage_title
from qa_arch.data.splits import load_splits
from qa_arch.data.synthetic import generate
from qa_arch.errors import ConfigError, DataError, RunError, out_of_memory
from qa_arch.files import write_atomic
from qa_arch.provenance import new_record
from qa_arch.qa import task
from qa_arch.qa.files import mass_abstention
from qa_arch.records import BatchSizes, read_record, write_record
from qa_arch.results.systems import load_questions
from qa_arch.training import ranks, run
from qa_arch.training.checkpoint import LAST, KeepLast, discard
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
    assert (record.status, record.error, len(record.epochs)) == ("ok", None, 2)
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
    assert all(seconds is not None for seconds in asdict(record.seconds).values())
    validation = sum(epoch.validation_seconds for epoch in record.epochs)
    assert record.seconds.fit_with_validation == pytest.approx(record.seconds.fit + validation, abs=0.01)
    for split in ("dev", "calibration"):
        rows = load_questions(done.folder, record, split)
        assert len(rows) == record.data[split].questions
        assert 100 * rows.f1.mean() == pytest.approx(record.scores[split]["calibrated"].f1)


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


@pytest.mark.parametrize(("moment", "replaced"), [("training", False), ("scoring", True)])
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
    assert read_record(folder).seed == 99 if replaced else not folder.exists()
    assert read_record(moved).status == "running"
    assert not (moved / run.TRACEBACK).exists()
    done = run_training("trainer.checkpoint_minutes=1e-6", name="moved", resume=True)
    assert (done.record.status, (moved / "model" / "tokenizer").is_dir()) == ("ok", True)


def test_run_whose_folder_was_renamed_before_it_replaced_the_old_one_ends(configure, monkeypatch, tmp_path):
    folder, moved, take_over = tmp_path / "run", tmp_path / "moved", Mock()
    write_record(folder, new_record(asdict(configure()), status="ok"))

    def rename_and_assemble(*arguments):
        folder.rename(moved)
        return assemble(*arguments)

    assemble = run.assemble
    monkeypatch.setattr(run, "assemble", rename_and_assemble)
    with pytest.raises(RunError, match="was renamed, replaced or removed"):
        run.train(configure(), folder=folder, take_over=take_over)
    assert (folder.exists(), read_record(moved).status, take_over.called) == (False, "ok", False)


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
    data = replace(configure().data, open_dev=False)
    for overlapping in (replace(data, calibration=data.train), replace(data, dev=data.train)):
        with pytest.raises(DataError, match=r"share \d article"):
            load_splits(overlapping)
    assert "dev" not in load_splits(replace(data, dev="missing.json"))


def test_closed_dev_set_is_recorded_and_stays_the_same_after_a_resume(run_training, configure):
    closed = "data.open_dev=false", "data.language=de"
    done = run_training(*closed)
    dev = load_splits(replace(configure(*closed).data, open_dev=True))["dev"]
    assert done.record.held_out.fingerprint == dev.fingerprint
    passages = {passage_title(example.context) for example in dev.examples}
    assert set(done.record.held_out.titles) == dev.titles | passages
    assert done.record.trained_titles.isdisjoint(dev.titles)
    earlier = replace(done.record.held_out, fingerprint="earlier")
    write_record(done.folder, replace(done.record, held_out=earlier, status="failed"))
    assert run_training(*closed, resume=True).record.held_out == earlier


@pytest.mark.parametrize(
    ("nulls", "margin", "warned"), [(74, 0.0, True), (73, 0.0, False), (75, 2.0, False), (0, -2.0, True)]
)
def test_warning_for_a_model_that_nearly_always_abstains(nulls, margin, warned):
    """Warns from 98% abstentions on: 73.5 of 75 questions."""
    questions = generate(5, 1)
    assert len(questions) == 75
    best = Candidate("x", 0, 1, 0.0, 1.0)
    odds = [1.0] * nulls + [-1.0] * (75 - nulls)
    predictions = [Prediction(e.id, best, odd, 1) for e, odd in zip(questions.examples, odds, strict=True)]
    assert (mass_abstention(questions, predictions, margin) is not None) == warned


def test_answers_that_decoding_excludes_are_counted_in_the_log(configure, caplog):
    with caplog.at_level(logging.INFO, "qa_arch"):
        task.new_parts(configure("decode.max_answer_tokens=1"))
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
    monkeypatch.setattr(schema, "TRIAL_STEPS", 1)
    with caplog.at_level(logging.WARNING, "qa_arch"):
        run_training("trainer.max_steps=3", name="cut")
    assert "train longer than 3 steps, with a larger trainer.max_steps" in caplog.text
    monkeypatch.undo()
    caplog.clear()
    run_training("trainer.max_steps=3", name="smoke_test")
    assert not any("learned nothing else" in message for message in caplog.messages)


SIZES = ("trainer.batch_size=8", "trainer.epochs=2", "model.dropout=0.1")
AUTO = (*SIZES, "trainer.micro_batch=auto")


@pytest.fixture
def memory(before_step):
    """``memory(rows)``: steps with more rows run out of memory, from batch ``after`` of ``epoch`` on."""

    def limit(rows: int, *, after: int = 1, epoch: int = 0) -> None:
        def run_out(module, batch, batch_idx):
            if len(batch.index) > rows and (module.current_epoch, batch_idx) >= (epoch, after):
                raise torch.OutOfMemoryError("CUDA out of memory")

        before_step(run_out)

    return limit


def test_auto_matches_a_run_at_the_size_it_settles_on(run_training, memory, caplog):
    fixed = run_training(*SIZES, "trainer.micro_batch=2", name="fixed")
    memory(rows=3)
    with caplog.at_level("WARNING", "qa_arch"):
        auto = run_training(*AUTO)
    assert auto.record.batch == BatchSizes(micro=2, accumulate=4, devices=1, global_size=8)
    warnings = [message for message in caplog.messages if message.startswith("out of memory")]
    assert len(warnings) == 2
    assert "trainer.micro_batch=2, accumulated 4 times" in warnings[-1]
    assert auto.weights == fixed.weights
    assert auto.record.scores == fixed.record.scores
    assert [epoch.step for epoch in auto.record.epochs] == [epoch.step for epoch in fixed.record.epochs]


def test_twins_that_do_not_fit_are_out_of_memory(run_training, memory):
    """One window is half of a pair."""
    memory(rows=1)
    assert run_training(*AUTO, "loss=twins", "loss.twin_likeness=0.01").record.status == "oom"


@pytest.mark.slow
def test_resumed_run_keeps_its_micro_batch(run_training, memory, monkeypatch):
    memory(rows=4)
    uninterrupted = run_training(*AUTO, name="uninterrupted")
    with monkeypatch.context() as patch:
        save = KeepLast._save

        def save_and_stop(self, trainer):
            save(self, trainer)
            if trainer.accumulate_grad_batches == 2:  # the size that fits
                raise KeyboardInterrupt

        patch.setattr(KeepLast, "_save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run_training(*AUTO, "trainer.checkpoint_minutes=1e-9")
    memory(rows=4, after=0)
    resumed = run_training(*AUTO, resume=True)
    assert resumed.record.batch == BatchSizes(micro=4, accumulate=2, devices=1, global_size=8)
    assert resumed.record.batch == uninterrupted.record.batch
    assert resumed.weights == uninterrupted.weights


@pytest.mark.parametrize(
    ("rows", "after", "epoch", "micro"),
    [(0, 2, 0, 1), (4, 1, 1, 8)],
    ids=["a single window does not fit", "an epoch has completed at this size"],
)
def test_no_smaller_size_is_tried(run_training, memory, monkeypatch, rows, after, epoch, micro):
    monkeypatch.setattr("qa_arch.training.run.discard", discard)
    memory(rows, after=after, epoch=epoch)
    done = run_training(*AUTO, "trainer.checkpoint_minutes=1e-9")
    assert (done.record.status, done.record.batch.micro) == ("oom", micro)
    assert len(read_record(done.folder).epochs) == epoch
    assert done.checkpoint.exists() == (epoch == 1), "a checkpoint of a larger size"


@pytest.mark.parametrize("overrides", [["trainer.devices=2"], ["trainer=fsdp", "trainer.devices=1"]])
def test_auto_is_refused_beside_other_devices(configure, overrides):
    with pytest.raises(ConfigError, match="auto tries sizes on one device"):
        configure(*AUTO, *overrides)


@pytest.fixture
def press(before_step):
    """``press(batch, *signals)``: send these signals (default: SIGINT) before the training step.

    The default handler is restored: background jobs of a shell ignore interrupts.
    """
    presses = {}

    def interrupt(module, batch, batch_idx):
        for number in presses.pop(batch_idx, ()):
            os.kill(os.getpid(), number)

    before_step(interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda batch, *signals: presses.update({batch: signals or (signal.SIGINT,)})
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("batch", "number", "limit"),
    [
        (1, signal.SIGTERM, "limit_train_batches=3"),
        (5, signal.SIGINT, "max_steps=-1"),
        (5, signal.SIGINT, "max_steps=5"),
        (3, signal.SIGINT, "max_steps=2"),
    ],
    ids=["inside an epoch", "last batch", "last batch with max_steps", "last step"],
)
def test_interrupted_run_resumes_exactly(
    train_once, run_training, press, caplog, capfd, tmp_path, batch, number, limit
):
    """Six batches per epoch, two per step."""
    settings = ("trainer.epochs=2", "trainer.accumulate=2", "encoder.hidden_dropout=0.1", "model.dropout=0.1")
    settings = (*settings, f"trainer.{limit}")
    uninterrupted = train_once(*settings)
    press(batch, number)
    handler = signal.getsignal(number)
    with caplog.at_level("INFO", "qa_arch"), pytest.raises(KeyboardInterrupt):
        run_training(*settings)
    folder = tmp_path / "run"
    assert signal.getsignal(number) is handler
    assert read_record(folder).status == "killed"
    assert "Ctrl-C again quits at once" in capfd.readouterr().err
    steps = (batch + 1) // 2
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == steps
    assert f"{folder}/last.ckpt: the checkpoint after step {steps}" in caplog.messages
    assert len(read_record(folder).epochs) == (batch > 1)
    resumed = run_training(*settings, resume=True)
    assert resumed.results == uninterrupted.results
    assert resumed.weights == uninterrupted.weights


def test_second_ctrl_c_quits_at_once(run_training, press, tmp_path):
    press(0, signal.SIGTERM, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run_training("trainer.batch_size=1", "trainer.accumulate=1000")
    assert read_record(tmp_path / "run").status == "killed"
    assert not (tmp_path / "run" / "last.ckpt").exists()


def test_ignored_interrupts_stay_ignored(run_training, press):
    """Background jobs of a shell ignore them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        press(1)
        assert run_training().record.status == "ok"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_resume_command_has_the_options_of_the_interrupted_one(
    tiny_run, press, caplog, qa_arch, tmp_path
):
    press(0)
    own = tmp_path / "conf"
    write_atomic(own / "optim" / "slow.yaml", "lr: 1e-5\n")
    machine = ["logger=csv", f"logger.save_dir={tmp_path}/csv"]
    options = ["--config-dir", str(own), "--trust", "my_package"]
    with caplog.at_level("INFO", "qa_arch"):
        assert qa_arch("train", *tiny_run(), *options, *machine, "--folder", tmp_path / "run")[0] == 130
    (line,) = [message for message in caplog.messages if message.startswith("resume: ")]
    assert f" {shlex.join([*options, 'features.cache_dir=null', *machine])} " in line


@pytest.mark.slow
@pytest.mark.parametrize("both", [True, False], ids=["Ctrl-C", "SIGTERM"])
def test_two_ranks_stop_at_the_same_step(
    run_training, before_step, press, monkeypatch, caplog, tmp_path, both
):
    """The terminal interrupts both ranks, perhaps in different steps; SIGTERM may reach only the first."""
    others, start = [], ranks.start_rank
    monkeypatch.setattr(ranks, "start_rank", lambda *a: others.append(start(*a)) or others[-1])
    before_step(
        lambda module, batch, batch_idx: batch_idx == 1 and both and others[0].send_signal(signal.SIGINT)
    )
    press(2, signal.SIGINT if both else signal.SIGTERM)
    with caplog.at_level("INFO", "qa_arch"), pytest.raises(KeyboardInterrupt):
        run_training("trainer.devices=2", "trainer.epochs=9")
    saved = torch.load(tmp_path / "run" / LAST, weights_only=True)
    assert f"{tmp_path}/run/last.ckpt: the checkpoint after step {saved['global_step']}" in caplog.messages
    assert len(saved["random"]) == 2
    assert read_record(tmp_path / "run").status == "killed"
