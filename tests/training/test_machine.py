"""Settings that depend on the machine, and strategies that it cannot run; GPUs are faked."""

import importlib.util
import os

import pytest
import torch

from qa_arch.config.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError, UnavailableError
from qa_arch.records import read_record
from qa_arch.training import devices, run


def configured(*overrides: str) -> Config:
    return validate(compose(["data=demo", *overrides]))


@pytest.fixture
def bitsandbytes(monkeypatch):
    """``bitsandbytes(installed)``: pretend that bitsandbytes is installed or missing."""
    find = importlib.util.find_spec

    def patch(installed: bool) -> None:
        spec = object() if installed else None
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: spec if name == "bitsandbytes" else find(name, *a)
        )

    return patch


@pytest.mark.parametrize(("capability", "precision"), [((6, 1), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16")])
def test_8gb_preset_by_compute_capability(monkeypatch, bitsandbytes, capability, precision):
    """fp16 with a scaler below 8.0 (the thesis's GPU has 6.1), bf16 from 8.0 on."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    trainer = configured("experiment=squad2", "trainer=8gb").trainer
    assert (trainer.accelerator, trainer.precision, trainer.gradient_checkpointing) == ("gpu", "auto", True)
    bitsandbytes(False)
    actual = devices.resolve(trainer, gpu=True)
    assert (actual.precision, actual.optimizer_bits) == (precision, 32)
    bitsandbytes(True)
    assert devices.resolve(trainer, gpu=True).optimizer_bits == 8
    on_cpu = devices.resolve(trainer, gpu=False)
    assert (on_cpu.precision, on_cpu.optimizer_bits) == ("fp32", 32)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.accelerator=gpu", "torch sees no CUDA device; use trainer=cpu"),
        ("trainer.precision=fp16", "fp16 needs a GPU; use bf16 or fp32"),
        ("trainer.optimizer_bits=8", "8 bits need a GPU; use 32"),
    ],
)
def test_settings_for_gpus_are_refused_without_one(monkeypatch, override, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=rf"^{override.partition('=')[0]}: .*{message}"):
        devices.require(configured(override).trainer)


def test_missing_bitsandbytes_is_named(bitsandbytes):
    bitsandbytes(False)
    with pytest.raises(UnavailableError, match=r"trainer\.optimizer_bits.*, or use 32"):
        devices.resolve(configured("trainer.optimizer_bits=8").trainer, gpu=True)


@pytest.mark.parametrize(
    ("overrides", "micro", "accumulate"),
    [
        (["experiment=squad2"], 6, 4),
        (["experiment=squad2", "trainer.global_batch=32"], 4, 8),
        (
            [
                "experiment=squad2",
                "trainer.global_batch=null",
                "trainer.batch_size=12",
                "trainer.accumulate=2",
            ],
            6,
            4,
        ),
        (["experiment=squad2", "trainer.global_batch=7"], 1, 7),
        (["experiment=squad2", "trainer.micro_batch=null"], 24, 1),
    ],
)
def test_8gb_preset_keeps_the_global_batch(overrides, micro, accumulate):
    """Micro batch: the largest divisor of the batch up to 6; smaller batches are not split."""
    trainer = configured(*overrides, "trainer=8gb").trainer
    assert (trainer.batch_size, trainer.accumulate) == (micro, accumulate)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    "overrides", [[], ["trainer=8gb"], ["trainer.batch_size=1"], ["trainer.micro_batch=2"]]
)
def test_global_batch_is_the_same_on_any_number_of_devices(monkeypatch, gpus, overrides):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    for count in ("auto", gpus):
        trainer = configured("experiment=squad2", *overrides, f"trainer.devices={count}").trainer
        used, _ = devices.require(trainer)
        assert used.batch_size * used.accumulate * gpus == 24
        assert used.global_batch is None
    if not overrides:
        assert (used.batch_size, used.accumulate) == (24 // gpus, 1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=5"],
        ["trainer.batch_size=16"],
        ["trainer.batch_size=32"],
        ["trainer.accumulate=5"],
        ["trainer.accumulate=48"],
        ["trainer.batch_size=6", "trainer.accumulate=2"],
        ["trainer.batch_size=24", "trainer.devices=2"],
    ],
)
def test_global_batch_that_cannot_be_divided_is_refused(overrides):
    with pytest.raises(ConfigError, match=r"global_batch: 24 cannot be divided with"):
        configured("experiment=squad2", *overrides)


def test_batch_of_zero_needs_a_global_batch():
    with pytest.raises(ConfigError, match=r"trainer\.batch_size: 0 stands for"):
        configured("trainer.batch_size=0")


@pytest.mark.parametrize(
    ("overrides", "gpu", "message"),
    [
        (["trainer.strategy=fsdp"], False, "fsdp shards a model across GPUs, and none is available"),
        (["trainer.strategy=fsdp", "trainer.precision=fp16"], True, "no gradient scaler for fp16"),
    ],
)
def test_unmet_requirements_of_a_strategy_are_refused(overrides, gpu, message):
    with pytest.raises(ConfigError, match=message):
        devices.require_strategy(configured(*overrides).trainer, gpu=gpu)


def test_more_devices_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.devices: 3, but 2 GPUs are"):
        devices.require_strategy(configured("trainer.devices=3").trainer, gpu=True)
    devices.require_strategy(configured("trainer.devices=2").trainer, gpu=True)
    devices.require_strategy(configured("trainer.devices=3").trainer, gpu=False)  # processes on a CPU
    torchrun = {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 0}
    for name, value in (*torchrun.items(), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    devices.require_strategy(configured("trainer.devices=4").trainer, gpu=True)  # on two machines


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak cannot be reset")
def test_peak_memory_of_an_earlier_run_is_reset():
    block = bytearray(os.urandom(1)) * (300 << 20)
    before = devices.peak_memory_mb(gpu=False)
    del block
    devices.reset_peak_memory(gpu=False)
    assert devices.peak_memory_mb(gpu=False) < before - 250


def test_unusable_strategy_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "train_spans", lambda *_: pytest.fail("something was loaded"))
    with pytest.raises(ConfigError, match="trainer=ddp"):
        run.train(configured("trainer.strategy=fsdp"), folder=tmp_path)
    assert read_record(tmp_path).status == "failed"


@pytest.mark.parametrize(
    ("strategy", "world", "name"),
    [
        ("auto", 1, "single"),
        ("ddp", 1, "single"),
        ("auto", 2, "ddp"),
        ("ddp_spawn", 2, "ddp_spawn"),
        ("fsdp", 1, "fsdp"),
    ],
)
def test_strategy_name(strategy, world, name):
    assert devices.strategy_name(configured(f"trainer.strategy={strategy}").trainer, world) == name
