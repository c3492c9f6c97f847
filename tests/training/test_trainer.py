"""Settings of the trainer: what the machine resolves or refuses (with fake GPUs), Lightning's callbacks."""

import importlib.util
import inspect
import os
from dataclasses import fields, replace

import pytest
import pytorch_lightning as pl
import stub_loggers
import torch
from stops import stopped_after

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, Trainer, validate
from qa_arch.config.target import TRUSTED
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.training.fit import (
    build_callbacks,
    peak_memory_mb,
    require_machine,
    reset_peak_memory,
    resolve,
    start_process,
    strategy_name,
)
from qa_arch.training.run import train


def configured(*overrides: str) -> Config:
    return validate(compose(["data=demo", *overrides]))


@pytest.fixture
def fake_gpus(monkeypatch):
    """``fake_gpus(count, capability, bitsandbytes)``: pretend that there are so many GPUs, or none."""
    find = importlib.util.find_spec

    def patch(count: int, capability: tuple[int, int] = (8, 0), *, bitsandbytes: bool = True) -> None:
        spec = object() if bitsandbytes else None
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: spec if name == "bitsandbytes" else find(name, *a)
        )
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)

    return patch


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp16"), ((8, 0), "bf16")])
def test_8gb_preset_by_compute_capability(fake_gpus, capability, precision):
    """fp16 with a scaler below 8.0 (the thesis's GPU has 6.1), bf16 from 8.0 on."""
    trainer = configured("experiment=squad2", "trainer=8gb").trainer
    assert (trainer.accelerator, trainer.precision, trainer.gradient_checkpointing) == ("gpu", "auto", True)
    for installed in (False, True):
        fake_gpus(1, capability, bitsandbytes=installed)
        actual = resolve(trainer)
        assert (actual.precision, actual.optimizer_bits) == (precision, 8 if installed else 32)
    fake_gpus(0)
    on_cpu = resolve(trainer)
    assert (on_cpu.accelerator, on_cpu.precision, on_cpu.optimizer_bits) == ("cpu", "fp32", 32)


@pytest.mark.parametrize("faster", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_emulated_bf16_is_said(monkeypatch, caplog, precision, faster):
    """With AVX2 alone, a step with MiniLM takes ten times as long as in fp32."""
    monkeypatch.setattr("qa_arch.training.fit.bf16_is_faster", lambda: faster)
    start_process(configured("trainer=cpu", f"trainer.precision={precision}"))
    warned = "this processor only emulates bf16" in caplog.text
    assert warned == (precision == "bf16" and not faster)


@pytest.mark.parametrize(("optimizer", "bits"), [("adamw", 8), ("adamax", 32)])
def test_only_adamw_counts_as_trained_in_8_bits(fake_gpus, optimizer, bits):
    fake_gpus(1)
    config = configured("trainer.optimizer_bits=auto", f"optim.name={optimizer}")
    assert start_process(config).trainer.optimizer_bits == bits


@pytest.mark.parametrize(
    ("gpus", "overrides", "message"),
    [
        (0, ["trainer.accelerator=gpu"], "accelerator: .*torch sees no CUDA device; use trainer=cpu"),
        (0, ["trainer.precision=fp16"], "precision: .*fp16 needs a GPU; use bf16 or fp32"),
        (0, ["trainer.optimizer_bits=8"], "optimizer_bits: .*8 bits need a GPU; use 32"),
        (0, ["trainer.strategy=fsdp"], "strategy: fsdp shards a model across GPUs, and none is available"),
        (1, ["trainer.strategy=fsdp", "trainer.precision=fp16"], "precision: .*no gradient scaler for fp16"),
        (2, ["trainer.devices=3"], "devices: 3, but 2 GPUs are"),
        (1, ["trainer.accelerator=mps"], "accelerator: mps, but torch sees no Apple GPU; use trainer=cpu"),
    ],
)
def test_settings_that_the_machine_cannot_meet_are_refused(fake_gpus, gpus, overrides, message):
    fake_gpus(gpus)
    with pytest.raises(ConfigError, match=rf"^trainer\.{message}"):
        require_machine(configured(*overrides))


def test_an_apple_gpu_trains_alone_and_in_fp32(fake_gpus, monkeypatch):
    fake_gpus(0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    config = configured("trainer.accelerator=mps", "trainer.precision=auto", "trainer.devices=auto")
    require_machine(config)
    used = resolve(config.trainer)
    assert (used.accelerator, used.precision, used.devices) == ("mps", "fp32", 1)
    assert resolve(configured().trainer).accelerator == "cpu"
    for other in ("trainer.devices=2", "trainer.precision=bf16"):
        with pytest.raises(ConfigError, match="mps trains on one device in fp32"):
            require_machine(configured("trainer.accelerator=mps", other))


def test_processes_may_outnumber_gpus_on_a_cpu_and_on_several_machines(fake_gpus, monkeypatch):
    fake_gpus(2)
    require_machine(configured("trainer.devices=2"))
    require_machine(configured("trainer.devices=3", "trainer.accelerator=cpu"))
    torchrun = {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 0}
    for name, value in (*torchrun.items(), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    require_machine(configured("trainer.devices=4"))


SPLIT = ["trainer.global_batch=null", "trainer.batch_size=12", "trainer.accumulate=2"]


@pytest.mark.parametrize(
    ("overrides", "micro", "accumulate"),
    [([], 6, 4), (["trainer.global_batch=7"], 1, 7), (["trainer.micro_batch=null"], 24, 1), (SPLIT, 6, 4)],
)
def test_8gb_preset_keeps_the_global_batch(overrides, micro, accumulate):
    """Micro batch: the largest divisor of the batch up to 6; smaller batches are not split."""
    limit = ("trainer.limit_train_batches=5", *overrides)
    trainer = configured("experiment=squad2", *limit, "trainer=8gb").trainer
    assert (trainer.batch_size, trainer.accumulate) == (micro, accumulate)
    whole = configured("experiment=squad2", *limit, "trainer=8gb", "trainer.micro_batch=null").trainer
    assert trainer.limit_train_batches * micro == 5 * whole.batch_size, "an epoch has as many windows"


@pytest.mark.parametrize("gpus", [1, 3])
@pytest.mark.parametrize(
    "overrides", [[], ["trainer=8gb"], ["trainer.batch_size=1"], ["trainer.micro_batch=2"]]
)
def test_global_batch_is_the_same_on_any_number_of_devices(fake_gpus, gpus, overrides):
    fake_gpus(gpus)
    for count in ("auto", gpus):
        config = configured("experiment=squad2", *overrides, f"trainer.devices={count}")
        require_machine(config)
        used = resolve(config.trainer)
        assert (used.devices, used.batch_size * used.accumulate * gpus) == (gpus, 24)
        assert used.global_batch is None
    if not overrides:
        assert (used.batch_size, used.accumulate) == (24 // gpus, 1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=5"],
        ["trainer.batch_size=16"],
        ["trainer.accumulate=5"],
        ["trainer.batch_size=24", "trainer.devices=2"],
    ],
)
def test_global_batch_that_cannot_be_divided_is_refused(overrides):
    with pytest.raises(ConfigError, match=r"global_batch: 24 cannot be divided with"):
        configured("experiment=squad2", *overrides)


def test_batch_of_zero_needs_a_global_batch():
    with pytest.raises(ConfigError, match=r"trainer\.batch_size: 0 stands for"):
        configured("trainer.batch_size=0")


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset")
def test_peak_memory_of_an_earlier_run_is_reset():
    block = bytearray(os.urandom(1)) * (300 << 20)
    before = peak_memory_mb(gpu=False)
    del block
    reset_peak_memory()
    assert peak_memory_mb(gpu=False) < before - 250


@pytest.mark.parametrize(
    ("strategy", "devices", "name"),
    [("ddp", 1, "single"), ("auto", 2, "ddp"), ("ddp_spawn", 2, "ddp_spawn"), ("fsdp", 1, "fsdp")],
)
def test_strategy_name(strategy, devices, name):
    settings = configured(f"trainer.strategy={strategy}", f"trainer.devices={devices}").trainer
    assert strategy_name(settings) == name


STOPPING = (
    "callbacks=early_stopping",
    "callbacks.early_stopping.patience=1",
    "+callbacks.early_stopping.min_delta=1000",
)
"""Ends a training after its second epoch."""
CALLBACKS = "pytorch_lightning.callbacks"
MONITOR = f"+callbacks.stats._target_={CALLBACKS}.DeviceStatsMonitor"


def test_each_flag_of_lightnings_trainer_is_a_setting_or_refused_by_name():
    flags = inspect.signature(pl.Trainer).parameters.keys()
    own = {setting.name for setting in fields(Trainer)}
    assert flags == (flags & own) | Trainer.refused.keys()
    assert not own & Trainer.refused.keys()


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_callbacks_stop_a_run_and_log_with_its_loggers(run_training, devices):
    """On two devices each rank has its own callbacks, and all stop; only rank 0 has loggers."""
    flags = ("trainer.epochs=4", "trainer.profiler=simple", f"trainer.devices={devices}")
    done = run_training(*STOPPING, *flags, MONITOR, "logger=csv")
    assert (done.record.status, len(done.record.epochs)) == ("ok", 2)
    assert done.record.config["callbacks"]["early_stopping"]["min_delta"] == 1000
    assert "run_training_epoch" in next(done.folder.glob("fit-profile*.txt")).read_text()
    assert "DeviceStatsMonitor" in next(done.folder.rglob("metrics.csv")).read_text()


def test_run_that_a_callback_ended_ends_again_when_it_is_resumed(run_training):
    """It was interrupted while it was scored, after its last checkpoint."""
    with stopped_after(2):
        run_training(*STOPPING, "trainer.epochs=4")
    assert len(run_training(*STOPPING, "trainer.epochs=4", resume=True).record.epochs) == 2


def test_limited_epochs_have_whole_steps_and_the_schedule_ends_with_them(run_training):
    """Of some seven batches, 0.4 are two steps of two batches."""
    settings = ("trainer.epochs=2", "trainer.accumulate=2", "optim.warmup=0.0", "trainer.log_every=1")
    done = run_training(*settings, "trainer.limit_train_batches=0.4")
    first, last = done.record.epochs
    size = done.record.batch.micro * done.record.batch.accumulate
    assert [(epoch.step, epoch.windows) for epoch in (first, last)] == [(2, 2 * size), (4, 2 * size)]
    assert 0 <= last.lr < 1e-9 < first.lr


def test_callbacks_that_would_fail_in_training_are_refused(configure):
    alone = ["callbacks=early_stopping", "data=demo", "data.calibration=null", "data.hold_out_articles=0"]
    with pytest.raises(
        ConfigError, match=r"^callbacks\.early_stopping: EarlyStopping needs a calibration split"
    ):
        build_callbacks(configure(*alone), TRUSTED)
    with pytest.raises(
        ConfigError, match=r"^callbacks\.stats: DeviceStatsMonitor needs a logger and there is"
    ):
        build_callbacks(configure(MONITOR, "logger=none"), TRUSTED)


def test_a_callback_of_ones_own_needs_trust(configure, tmp_path, monkeypatch):
    calls: list = []
    monkeypatch.setattr(stub_loggers, "calls", calls)
    config = replace(configure("trainer.epochs=1"), callbacks={"mine": {"_target_": "stub_loggers.Counter"}})
    with pytest.raises(ConfigError, match=r"callbacks\.mine\._target_: .* not imported; .* --trust stub_lo"):
        build_callbacks(config, TRUSTED)
    train(config, folder=tmp_path / "run", trusted=(*TRUSTED, "stub_loggers"))
    assert calls == [("epoch", 0)]
    assert read_record(tmp_path / "run").config["callbacks"] == config.callbacks


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"_target_": f"{CALLBACKS}.Timer", "duratoin": "x"}, "did you mean 'callbacks.x.duration"),
        ({"_target_": f"{CALLBACKS}.Timer", "duration": "soon"}, "Timer: .* is not a valid duration"),
        ({"_target_": f"{CALLBACKS}.ModelCheckpoint"}, "ModelCheckpoint: a run keeps its best and"),
        ({"_target_": f"{CALLBACKS}.LearningRateMonitor"}, "a run logs the rates of its groups"),
        ({"_target_": f"{CALLBACKS}.EMAWeightAveraging"}, "not be those that were validated"),
        ({"_target_": "qa_arch.training.loggers.Outcome"}, "Outcome is not a subclass of Lightning's"),
        ({"_target_": f"{CALLBACKS}.EarlyStopping", "monitor": "calibration_f11"}, "mean 'calibration_f1'"),
        ({"monitor": "x"}, "has no _target_"),
    ],
)
def test_callbacks_that_cannot_be_used_are_refused(configure, section, message):
    with pytest.raises(ConfigError, match=rf"^(callbacks\.x|unknown setting .callbacks\.x).*{message}"):
        build_callbacks(replace(configure(), callbacks={"x": section}), TRUSTED)
