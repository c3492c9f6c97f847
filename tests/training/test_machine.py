"""What a run takes from the machine it finds, and what it refuses there; GPUs are made up."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from qa_arch.cli.compose import compose
from qa_arch.config.schema import Config, validate
from qa_arch.errors import ConfigError
from qa_arch.records import read_record
from qa_arch.training import devices, run


def configured(*overrides: str) -> Config:
    return validate(compose(["data=demo", *overrides]))


@pytest.fixture
def installed(monkeypatch):
    """``installed(there)``: pretend that bitsandbytes is there, or is not."""
    find = importlib.util.find_spec

    def arrange(there: bool) -> None:
        spec = object() if there else None
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *a: spec if name == "bitsandbytes" else find(name, *a)
        )

    return arrange


@pytest.mark.parametrize(
    ("capability", "precision"),
    [((6, 1), "fp16"), ((7, 5), "fp16"), ((8, 0), "bf16")],
)
def test_the_preset_for_8_gb_by_compute_capability(monkeypatch, installed, capability, precision):
    """The thesis's card is of 6.1: half precision with a scaler there, bf16 from 8.0 on."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    trainer = configured("experiment=squad2", "trainer=8gb").trainer
    assert (trainer.accelerator, trainer.precision, trainer.gradient_checkpointing) == ("gpu", "auto", True)
    installed(False)
    actual = devices.resolve(trainer, gpu=True)
    assert (actual.precision, actual.optimizer_bits) == (precision, 32)
    installed(True)
    assert devices.resolve(trainer, gpu=True).optimizer_bits == 8
    on_cpu = devices.resolve(trainer, gpu=False)
    assert (on_cpu.precision, on_cpu.optimizer_bits) == ("fp32", 32)


@pytest.mark.parametrize(
    ("overrides", "micro", "accumulate"),
    [
        (["experiment=squad2"], 6, 4),
        (["experiment=squad2", "trainer.batch_size=32"], 4, 8),
        (["experiment=squad2", "trainer.batch_size=12", "trainer.accumulate=2"], 6, 4),
        (["experiment=squad2", "trainer.batch_size=7"], 1, 7),
        (["experiment=squad2", "trainer.micro_batch=null"], 24, 1),
    ],
)
def test_the_preset_keeps_the_global_batch(overrides, micro, accumulate):
    """The largest part of at most 6 that divides the batch; what is small enough stays as it is."""
    trainer = configured(*overrides, "trainer=8gb").trainer
    assert (trainer.batch_size, trainer.accumulate) == (micro, accumulate)


@pytest.mark.parametrize(
    ("overrides", "gpu", "message"),
    [
        (["trainer.strategy=fsdp"], False, "fsdp shards a model across GPUs, and none is available"),
        (["trainer.strategy=fsdp", "trainer.precision=fp16"], True, "no gradient scaler for fp16"),
        (["trainer=deepspeed"], False, "deepspeed shards a model across GPUs"),
        (["trainer=deepspeed", "trainer.accumulate=2"], True, "accumulate: 2, but deepspeed"),
        (["trainer=deepspeed", "trainer.micro_batch=2"], True, "trainer.micro_batch=null"),
    ],
)
def test_what_a_strategy_needs(overrides, gpu, message):
    with pytest.raises(ConfigError, match=message):
        devices.require_strategy(configured(*overrides).trainer, gpu=gpu)


def test_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"trainer\.devices: 3, but 2 GPUs are"):
        devices.require_strategy(configured("trainer.devices=3").trainer, gpu=True)
    devices.require_strategy(configured("trainer.devices=2").trainer, gpu=True)
    devices.require_strategy(configured("trainer.devices=3").trainer, gpu=False)  # processes on a CPU
    started = {"RANK": 0, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "LOCAL_RANK": 0}
    for name, value in (*started.items(), ("MASTER_ADDR", "here"), ("MASTER_PORT", 1)):
        monkeypatch.setenv(name, str(value))
    devices.require_strategy(configured("trainer.devices=4").trainer, gpu=True)  # on two machines


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no way to forget the peak")
def test_the_peak_of_an_earlier_run_is_forgotten():
    block = bytearray(os.urandom(1)) * (300 << 20)
    before = devices.peak_memory_mb(gpu=False)
    del block
    devices.reset_peak_memory(gpu=False)
    assert devices.peak_memory_mb(gpu=False) < before - 250


def test_a_strategy_that_cannot_work_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "task_of", lambda *_: pytest.fail("something was loaded"))
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
        ("deepspeed", 2, "deepspeed"),
    ],
)
def test_the_name_of_what_trains(strategy, world, name):
    assert devices.strategy_name(configured(f"trainer.strategy={strategy}").trainer, world) == name
