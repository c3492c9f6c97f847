"""Devices of a run: precision, peak memory, seeds, and the strategy for training on several."""

from __future__ import annotations

import gc
import importlib.util
import os
import random
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning.strategies import DDPStrategy, ModelParallelStrategy

from qa_arch.config import extras
from qa_arch.config.launched import launched
from qa_arch.config.schema import Trainer, divide_batch
from qa_arch.errors import ConfigError
from qa_arch.provenance import processor
from qa_arch.records import Device

BF16 = (8, 0)
"""Compute capability of the first GPUs with bf16 (Ampere)."""
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def uses_gpu(settings: Trainer) -> bool:
    """Whether the run uses a GPU. Raises ConfigError if it requires one and none is available."""
    available = torch.cuda.is_available()
    if settings.accelerator == "gpu" and not available:
        raise ConfigError("trainer.accelerator: gpu, but torch sees no CUDA device; use trainer=cpu")
    if settings.precision == "fp16" and not available:
        raise ConfigError("trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    return available and settings.accelerator != "cpu"


def resolve(settings: Trainer, *, gpu: bool) -> Trainer:
    """Replace precision and optimizer bits ``auto`` by the values for this machine."""
    precision, bits = settings.precision, settings.optimizer_bits
    if precision == "auto":
        precision = "fp32" if not gpu else "bf16" if torch.cuda.get_device_capability() >= BF16 else "fp16"
    if bits == "auto":
        bits = 8 if gpu and importlib.util.find_spec("bitsandbytes") else 32
    elif bits == 8 and not gpu:
        raise ConfigError("trainer.optimizer_bits: 8 bits need a GPU; use 32, or auto")
    elif bits == 8:
        extras.require("8bit", "trainer.optimizer_bits", ", or use 32")
    return replace(settings, precision=precision, optimizer_bits=bits)


def require(settings: Trainer) -> tuple[Trainer, bool]:
    """Return the settings resolved for this machine, with the batch of a device, and whether a GPU is used.

    Raises ConfigError or UnavailableError if the machine lacks what they need; loads nothing.
    """
    gpu = uses_gpu(settings)
    settings = resolve(settings, gpu=gpu)
    require_strategy(settings, gpu=gpu)
    return divide_batch(settings, world_size(settings, gpu=gpu)), gpu


def world_size(settings: Trainer, *, gpu: bool) -> int:
    """Number of processes that train together."""
    if settings.devices == "auto":
        return torch.cuda.device_count() if gpu else 1
    return settings.devices


def describe(gpu: bool) -> Device:
    """Device kind and name, CPU cores, torch threads and GPU memory."""
    memory = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if gpu else None
    return Device(
        kind="cuda" if gpu else "cpu",
        name=torch.cuda.get_device_name() if gpu else processor(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_gb=memory,
    )


def reset_peak_memory(gpu: bool) -> None:
    """Free unused memory and reset its peak, which may stem from an earlier run in this process."""
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    else:
        with suppress(OSError):  # not Linux, or sandboxed: the peak stays that of the whole process
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): resets VmHWM


def peak_memory_mb(gpu: bool) -> float:
    """Peak allocated GPU memory, or peak resident memory of the process, in MiB."""
    if gpu:
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.exists() else ()
    for line in lines:
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 2**10, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, without Lightning's environment variable, which leaks into later runs."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def strategy_name(settings: Trainer, world: int) -> str:
    """Strategy name for the record; ``single`` for one process."""
    if settings.strategy == "fsdp":
        return "fsdp"
    return "single" if world == 1 else "ddp" if settings.strategy == "auto" else settings.strategy


def require_strategy(settings: Trainer, *, gpu: bool) -> None:
    """Raise ConfigError or UnavailableError if the strategy cannot run here; loads nothing."""
    count = max(1, torch.cuda.device_count()) if gpu and launched() is None else None
    if count is not None and isinstance(settings.devices, int) and settings.devices > count:
        raise ConfigError(
            f"trainer.devices: {settings.devices}, but {count} GPU{'s are' if count > 1 else ' is'} visible"
            " here; request at most that many, or trainer.devices=auto"
        )
    if settings.strategy == "fsdp" and not gpu:
        raise ConfigError(
            "trainer.strategy: fsdp shards a model across GPUs, and none is available; use trainer=ddp, or"
            " trainer=cpu"
        )
    if settings.strategy == "fsdp" and settings.precision == "fp16":
        raise ConfigError("trainer.precision: fsdp has no gradient scaler for fp16; use bf16 or fp32")


def make_strategy(name: str, *, world: int) -> Any:
    """Strategy argument of ``pl.Trainer``."""
    if name == "fsdp":
        return ModelParallelStrategy(
            data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False
        )
    # Our only buffers are frozen word vectors, which need no broadcast.
    return "auto" if name == "single" else DDPStrategy(broadcast_buffers=False)
