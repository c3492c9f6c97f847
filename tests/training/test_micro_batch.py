"""``trainer.micro_batch=auto``: the run equals one configured with the size it settles on."""

import pytest
import torch

from qa_arch.errors import ConfigError
from qa_arch.records import BatchSizes, read_record
from qa_arch.training.checkpoint import KeepLast, discard

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


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.devices=2"], "auto tries sizes on one device"),
        (["trainer=fsdp", "trainer.devices=1"], "auto tries sizes on one device"),
        (["trainer.micro_batch=half"], "trainer.micro_batch"),
    ],
)
def test_auto_is_refused_with_incompatible_settings(configure, overrides, message):
    with pytest.raises(ConfigError, match=message):
        configure(*AUTO, *overrides)
