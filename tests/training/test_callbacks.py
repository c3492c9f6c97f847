"""Lightning's callbacks and the flags of its Trainer in runs."""

import inspect
from dataclasses import fields, replace

import pytest
import pytorch_lightning as pl
import stub_loggers
from stops import stopped_after

from qa_arch.config.schema import Trainer
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.training.fit import build_callbacks
from qa_arch.training.run import train

STOPPING = (
    "callbacks=early_stopping",
    "callbacks.early_stopping.patience=1",
    "+callbacks.early_stopping.min_delta=1000",
)
"""Ends a training after its second epoch."""


def test_each_flag_of_lightnings_trainer_is_a_setting_or_refused_by_name():
    flags = inspect.signature(pl.Trainer).parameters.keys()
    own = {setting.name for setting in fields(Trainer)}
    assert flags == (flags & own) | Trainer.refused.keys()
    assert not own & Trainer.refused.keys()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_callbacks_stop_a_run_and_the_profile_is_in_its_folder(run_training, devices):
    """On two devices each rank has its own callbacks, and all stop."""
    flags = ("trainer.epochs=4", "trainer.profiler=simple", f"trainer.devices={devices}")
    done = run_training(*STOPPING, *flags)
    assert (done.record.status, len(done.record.epochs)) == ("ok", 2)
    assert done.record.config["callbacks"]["early_stopping"]["min_delta"] == 1000
    assert "run_training_epoch" in next(done.folder.glob("fit-profile*.txt")).read_text()


def test_run_that_a_callback_ended_ends_again_when_it_is_resumed(run_training):
    """It was interrupted while it was scored, after its last checkpoint."""
    with stopped_after(2):
        run_training(*STOPPING, "trainer.epochs=4")
    assert len(run_training(*STOPPING, "trainer.epochs=4", resume=True).record.epochs) == 2


@pytest.mark.parametrize("limit", [3, 0.4])
def test_limited_epochs_have_whole_steps_and_the_schedule_ends_with_them(run_training, limit):
    """Of some seven batches, three or their 0.4 are two steps of two batches."""
    settings = ("trainer.epochs=2", "trainer.accumulate=2", "optim.warmup=0.0", "trainer.log_every=1")
    done = run_training(*settings, f"trainer.limit_train_batches={limit}")
    first, last = done.record.epochs
    size = done.record.batch.micro * done.record.batch.accumulate
    assert [(epoch.step, epoch.windows) for epoch in (first, last)] == [(2, 2 * size), (4, 2 * size)]
    assert 0 <= last.lr < 1e-9 < first.lr


MONITOR = "+callbacks.stats._target_=pytorch_lightning.callbacks.DeviceStatsMonitor"


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_callback_logs_with_the_loggers_of_the_run(run_training, devices):
    """Only rank 0 has them."""
    done = run_training(MONITOR, "logger=csv", f"trainer.devices={devices}")
    assert "DeviceStatsMonitor" in next(done.folder.rglob("metrics.csv")).read_text()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["callbacks=early_stopping", "data=demo", "data.calibration=null", "data.hold_out_articles=0"],
            "early_stopping: EarlyStopping needs a calibration split and there is none; set",
        ),
        ([MONITOR, "logger=none"], "stats: DeviceStatsMonitor needs a logger and there is none;"),
    ],
)
def test_callbacks_that_would_fail_in_training_are_refused(configure, overrides, message):
    with pytest.raises(ConfigError, match=rf"^callbacks\.{message}"):
        build_callbacks(configure(*overrides), TRUSTED)


def test_a_callback_of_ones_own_needs_trust(configure, tmp_path, monkeypatch):
    calls: list = []
    monkeypatch.setattr(stub_loggers, "calls", calls)
    config = replace(configure("trainer.epochs=1"), callbacks={"mine": {"_target_": "stub_loggers.Counter"}})
    with pytest.raises(
        ConfigError, match=r"callbacks\.mine\._target_: .* was not imported; .* --trust stub_lo"
    ):
        build_callbacks(config, TRUSTED)
    train(config, folder=tmp_path / "run", trusted=(*TRUSTED, "stub_loggers"))
    assert calls == [("epoch", 0)]
    assert read_record(tmp_path / "run").config["callbacks"] == config.callbacks


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"_target_": "pytorch_lightning.callbacks.Timer", "duratoin": "x"},
            "did you mean 'callbacks.x.duration",
        ),
        (
            {"_target_": "pytorch_lightning.callbacks.Timer", "duration": "soon"},
            "Timer: .* is not a valid duration",
        ),
        (
            {"_target_": "pytorch_lightning.callbacks.ModelCheckpoint"},
            "ModelCheckpoint: a run keeps its best and",
        ),
        (
            {"_target_": "pytorch_lightning.callbacks.LearningRateMonitor"},
            "a run logs the rates of its groups",
        ),
        ({"_target_": "pytorch_lightning.callbacks.EMAWeightAveraging"}, "not be those that were validated"),
        (
            {"_target_": "pytorch_lightning.callbacks.OnExceptionCheckpoint", "dirpath": "/"},
            "a run keeps its best",
        ),
        (
            {"_target_": "qa_arch.training.loggers.Outcome"},
            "Outcome is not a subclass of Lightning's Callback",
        ),
        (
            {"_target_": "pytorch_lightning.callbacks.EarlyStopping", "monitor": "calibration_f11"},
            r"monitor: no score 'calibration_f11' \(did you mean 'calibration_f1'",
        ),
        ({"monitor": "x"}, "has no _target_"),
    ],
)
def test_callbacks_that_cannot_be_used_are_refused(configure, section, message):
    with pytest.raises(ConfigError, match=rf"^(callbacks\.x|unknown setting .callbacks\.x).*{message}"):
        build_callbacks(replace(configure(), callbacks={"x": section}), TRUSTED)
