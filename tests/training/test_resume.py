"""Stopped and resumed is the same as never stopped: every bit of state, the order of ids, the history."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from pytorch_lightning import LightningModule
from pytorch_lightning.plugins.precision import MixedPrecision
from stops import stopped_after

from qa_arch.errors import RunError
from qa_arch.records import read_record, write_record
from qa_arch.spans.task import SpanTask
from qa_arch.training import checkpoint, loop
from qa_arch.training.checkpoint import LAST, PREVIOUS, newest, random_state
from qa_arch.training.module import TrainingModule

TWO_EPOCHS = (
    "trainer.epochs=2",
    "trainer.accumulate=2",
    "trainer.checkpoint_minutes=1e-9",
    "encoder.hidden_dropout=0.1",  # so that the random states matter
    "model.dropout=0.1",
)
"""21 questions in batches of 4, two batches a step: checkpoints after steps 1 and 2, then the epoch's."""


@pytest.fixture
def straight(train_once):
    """The run that nothing stopped."""
    return train_once(*TWO_EPOCHS)


@pytest.fixture
def order(monkeypatch):
    """The window numbers of each batch as it is trained on, by (epoch, batch)."""
    seen: dict[tuple[int, int], list[int]] = {}
    step = TrainingModule.training_step

    def noting(self, batch, batch_idx):
        seen[self.current_epoch, batch_idx] = batch.index.tolist()
        return step(self, batch, batch_idx)

    monkeypatch.setattr(TrainingModule, "training_step", noting)
    return seen


@pytest.fixture
def stopped(run_training):
    """Train until the n-th checkpoint and no further."""

    def run(checkpoints: int, *overrides: str, resume: bool = False) -> None:
        with stopped_after(checkpoints):
            run_training(*overrides, name="stopped", resume=resume)

    return run


def test_four_epochs_in_three_sittings(run_training, stopped, same, order):
    """Stopped after epoch 2, again inside epoch 4, then finished."""
    four = (*TWO_EPOCHS, "trainer.epochs=4")
    straight = run_training(*four, name="straight")
    expected = dict(order)
    epochs = [[ids for (at, _), ids in expected.items() if at == epoch] for epoch in range(4)]
    assert all(item != other for n, item in enumerate(epochs) for other in epochs[:n])
    order.clear()
    stopped(6, *four)
    assert list(order) == list(expected)[:12]
    stopped(4, *four, resume=True)
    assert list(order) == list(expected)[:20]
    resumed = run_training(*four, name="stopped", resume=True)
    assert list(order.items()) == list(expected.items())
    assert resumed.weights == straight.weights
    assert resumed.results == straight.results
    same(resumed.state, straight.state)


def test_patience_goes_on_where_it_stood(run_training, stopped, monkeypatch):
    """The best epoch is the second; stopped in the third, it ends for good after the fourth."""
    scores = iter([20.0, 30.0, 10.0, 10.0, 99.0])
    monkeypatch.setattr(SpanTask, "validation_scores", lambda *_: {"calibration_f1": next(scores)})
    settings = (*TWO_EPOCHS, "trainer.epochs=6", "trainer.patience=2")
    stopped(7, *settings)
    record = run_training(*settings, name="stopped", resume=True).record
    assert [epoch.value("calibration_f1") for epoch in record.epochs] == [20.0, 30.0, 10.0, 10.0]
    assert record.best_epoch == 1
    again = run_training(*settings, name="stopped", resume=True).record
    assert (len(again.epochs), next(scores)) == (4, 99.0)


def test_the_scale_of_half_precision_goes_on_too(run_training, stopped, same, monkeypatch):
    """fp16 on a CPU, with a scaler that grows within the run: its scale and its count of good steps."""

    def half(*, plugins, precision, **settings):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
        return trainer(plugins=[*plugins, MixedPrecision("16-mixed", "cpu", scaler=scaler)], **settings)

    trainer = loop.pl.Trainer
    monkeypatch.setattr(loop.pl, "Trainer", half)
    straight = run_training(*TWO_EPOCHS, name="straight")
    assert straight.state["MixedPrecision"]["scale"] == 2.0**7  # six steps
    stopped(4, *TWO_EPOCHS)
    resumed = run_training(*TWO_EPOCHS, name="stopped", resume=True)
    assert resumed.weights == straight.weights
    same(resumed.state, straight.state)


def test_a_damaged_checkpoint_costs_only_itself(run_training, straight, stopped, same, caplog, tmp_path):
    stopped(5, *TWO_EPOCHS)
    folder = tmp_path / "stopped"
    shutil.copytree(folder, tmp_path / "copy")
    _harm(folder / LAST, "one bit")
    with caplog.at_level(logging.WARNING, "qa_arch"):
        resumed = run_training(*TWO_EPOCHS, name="stopped", resume=True)
    assert "last.ckpt: damaged" in caplog.text
    assert resumed.weights == straight.weights
    same(resumed.state, straight.state)
    for harm in ("cut short", "empty", "one bit"):
        for name in (LAST, PREVIOUS):
            shutil.copy(tmp_path / "copy" / name, folder)
        _harm(folder / LAST, harm)
        assert newest(folder).name == PREVIOUS
        _harm(folder / PREVIOUS, harm)
        with pytest.raises(RunError, match=r"last\.ckpt and previous\.ckpt cannot be read"):
            newest(folder)


class Trap:
    def __reduce__(self):
        return pytest.fail, ("a pickle was run",)


def test_a_pickle_is_no_checkpoint(run_training, straight, tmp_path):
    """It could run code, and is not opened."""
    shutil.copytree(straight.folder, tmp_path / "run")
    write_record(tmp_path / "run", replace(straight.record, status="killed"))
    torch.save({"made by": Trap()}, tmp_path / "run" / LAST)
    with pytest.raises(RunError, match=r"last\.ckpt: holds more than tensors and plain values"):
        run_training(*TWO_EPOCHS, resume=True)


def _harm(path, how: str) -> None:
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes({"cut short": whole[:-100], "empty": b"", "one bit": whole}[how])


def test_a_full_disk_costs_only_what_it_had_no_room_for(run_training, straight, same, monkeypatch, caplog):
    """Room for the first two: the run ends all the same, and may go on from the second."""
    write, saved = torch.save, iter(range(2))

    def save(value, file):
        if next(saved, None) is None:
            file.write(b"half a checkpoint")
            raise OSError(28, "No space left on device")
        write(value, file)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "qa_arch"):
        patch.setattr(checkpoint.torch, "save", save)
        through = run_training(*TWO_EPOCHS, name="through")
    assert through.weights == straight.weights
    assert sorted(path.name for path in through.folder.glob("*.ckpt")) == [LAST, PREVIOUS]
    assert through.state["global_step"] == 2
    assert not list(through.folder.glob(".last*"))
    assert "last.ckpt: cannot be written (No space left on device)" in caplog.text
    assert "the previous checkpoint is kept, and training continues" in caplog.text
    resumed = run_training(*TWO_EPOCHS, name="through", resume=True)
    assert resumed.weights == straight.weights
    same(resumed.state, straight.state)


@pytest.mark.parametrize(("wrote", "now"), [(1, 2), (2, 1)])
def test_a_checkpoint_is_of_so_many_ranks(wrote, now):
    """``devices=auto`` is one config on any number of them; batches are shared out otherwise on each."""
    module = TrainingModule.__new__(TrainingModule)
    LightningModule.__init__(module)
    module._trainer = SimpleNamespace(world_size=now)
    with pytest.raises(RunError, match=rf"world size {wrote} cannot be resumed with world size {now}"):
        module.on_load_checkpoint({"random": [random_state()] * wrote})


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
def test_killed_processes_go_on(run_training, small, tmp_path, world):
    """Every process killed at once, five times, a little later each time; then left to finish."""
    settings = [*TWO_EPOCHS, "trainer.epochs=4", f"trainer.devices={world}"]
    straight = run_training(*settings, name="straight")
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "qa_arch.cli.main", "train", *small, *settings, "--resume"]
    killed = 0
    for sitting in range(5):
        seen = _written(folder)
        process = subprocess.Popen([*command, "--folder", str(folder)], start_new_session=True)
        while process.poll() is None and _written(folder) == seen:
            time.sleep(0.005)
        time.sleep(0.05 * sitting)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
    assert killed >= 2
    assert subprocess.run([*command, "--folder", str(folder)]).returncode == 0
    assert (folder / "model" / "model.safetensors").read_bytes() == straight.weights
    assert read_record(folder).scores == straight.record.scores


def _written(folder) -> int:
    path = folder / LAST
    return path.stat().st_mtime_ns if path.is_file() else 0
