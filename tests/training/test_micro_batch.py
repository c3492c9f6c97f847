"""``trainer.micro_batch=auto``: the run is the one that had asked for the size it settles on."""

from __future__ import annotations

import pytest
import torch

from qa_arch.errors import ConfigError
from qa_arch.records import BatchSizes, read_record
from qa_arch.training.checkpoint import KeepLast
from qa_arch.training.module import TrainingModule

SIZES = ("trainer.batch_size=8", "trainer.epochs=2", "model.dropout=0.1")
AUTO = (*SIZES, "trainer.micro_batch=auto")


@pytest.fixture
def memory(monkeypatch):
    """``memory(rows)``: a step of more rows has no memory, from batch ``after`` of ``epoch`` on."""
    step = TrainingModule.training_step

    def arrange(rows: int, *, after: int = 1, epoch: int = 0) -> None:
        def training_step(self, batch, batch_idx):
            if len(batch.index) > rows and (self.current_epoch, batch_idx) >= (epoch, after):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return step(self, batch, batch_idx)

        monkeypatch.setattr(TrainingModule, "training_step", training_step)

    return arrange


def test_the_run_is_the_one_that_asked_for_this_size(run_training, memory, caplog):
    asked = run_training(*SIZES, "trainer.micro_batch=2", name="asked")
    memory(rows=3)
    with caplog.at_level("WARNING", "qa_arch"):
        found = run_training(*AUTO)
    assert found.record.batch == BatchSizes(micro=2, accumulate=4, devices=1, global_size=8)
    told = [message for message in caplog.messages if message.startswith("out of memory")]
    assert len(told) == 2
    assert "trainer.micro_batch=2, accumulated 4 times" in told[-1]
    assert found.weights == asked.weights
    assert found.record.scores == asked.record.scores
    assert [epoch.step for epoch in found.record.epochs] == [epoch.step for epoch in asked.record.epochs]


def test_a_resumed_run_keeps_its_size(run_training, memory, monkeypatch):
    memory(rows=4)
    whole = run_training(*AUTO, name="whole")
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
    done = run_training(*AUTO, resume=True)
    assert (
        done.record.batch == whole.record.batch == BatchSizes(micro=4, accumulate=2, devices=1, global_size=8)
    )
    assert done.weights == whole.weights


@pytest.mark.parametrize(
    ("rows", "after", "epoch", "micro"),
    [(0, 2, 0, 1), (4, 1, 1, 8)],
    ids=["a single window has no room", "an epoch has shown that it fits"],
)
def test_where_no_smaller_size_is_tried(run_training, memory, rows, after, epoch, micro):
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
def test_what_does_not_go_with_it_is_refused(configure, overrides, message):
    with pytest.raises(ConfigError, match=message):
        configure(*AUTO, *overrides)
