"""Stopped and resumed is the same as never stopped: weights bit for bit, history, best epoch."""

from __future__ import annotations

import pytest
import torch

from qa_arch.training.checkpoint import KeepLast

TWO_EPOCHS = (
    "trainer.epochs=2",
    "trainer.accumulate=2",
    "trainer.checkpoint_minutes=1e-9",
    "encoder.hidden_dropout=0.1",  # so that the random states matter
    "model.dropout=0.1",
)


class StoppedError(Exception):
    pass


@pytest.fixture
def stop_after(monkeypatch):
    """Raise right after the n-th checkpoint was written."""

    def arrange(checkpoints: int, error: type[BaseException] = StoppedError) -> None:
        save, count = KeepLast._save, iter(range(1, 1000))

        def stopping(self, trainer):
            save(self, trainer)
            if next(count) == checkpoints:
                raise error

        monkeypatch.setattr(KeepLast, "_save", stopping)

    return arrange


def told(record) -> tuple:
    """What a record says, less the clock."""
    clocks = ("train_seconds", "windows_per_second")
    epochs = [{k: v for k, v in epoch.items() if k not in clocks} for epoch in record.epochs]
    return epochs, record.best_epoch, record.margin, record.scores, record.config_hash, record.parameters


def test_the_same_seed_gives_the_same_run(run_training):
    first, second = (run_training(*TWO_EPOCHS, name=name) for name in ("a", "b"))
    other = run_training(*TWO_EPOCHS, "seed=14", name="c")
    assert first.weights == second.weights != other.weights
    assert told(first.record) == told(second.record)


@pytest.mark.parametrize("stop", [1, 2, 3, 5], ids=["first", "mid-epoch", "epoch's end", "second epoch"])
def test_resumed_is_the_same_as_never_stopped(run_training, stop_after, monkeypatch, stop):
    """21 questions in batches of 4, two batches a step: checkpoints after steps 1 and 2, then the epoch's."""
    straight = run_training(*TWO_EPOCHS, name="straight")
    with monkeypatch.context():
        stop_after(stop)
        with pytest.raises(StoppedError):
            run_training(*TWO_EPOCHS, name="stopped")
    monkeypatch.undo()
    resumed = run_training(*TWO_EPOCHS, name="stopped", resume=True)
    assert told(resumed.record) == told(straight.record)
    assert resumed.weights == straight.weights
    last, expected = (torch.load(run.checkpoint, weights_only=True) for run in (resumed, straight))
    assert last["state_dict"].keys() == expected["state_dict"].keys()
    for name, value in expected["state_dict"].items():
        assert torch.equal(last["state_dict"][name], value), name
