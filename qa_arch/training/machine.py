"""The machine a run uses: device, precision, peak memory, seeds."""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from qa_arch.config import extras
from qa_arch.config.schema import Trainer
from qa_arch.errors import ConfigError
from qa_arch.results.provenance import processor
from qa_arch.types.records import Device

BF16 = (8, 0)
"""The compute capability from which GPUs have bf16 (Ampere)."""
HOPPER = (9, 0)
PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def uses_gpu(settings: Trainer) -> bool:
    """Whether the run computes on a GPU; ConfigError where one is demanded and there is none."""
    available = torch.cuda.is_available()
    if settings.accelerator == "gpu" and not available:
        raise ConfigError("trainer.accelerator: gpu, but torch sees no CUDA device; use trainer=cpu")
    if settings.precision == "fp16" and not available:
        raise ConfigError("trainer.precision: fp16 needs a GPU; use bf16 or fp32 on a CPU")
    return available and settings.accelerator != "cpu"


def resolve(settings: Trainer, *, gpu: bool) -> Trainer:
    """``settings`` with what they leave to the machine: precision and optimizer bits."""
    precision, bits = settings.precision, settings.optimizer_bits
    if precision == "auto":
        precision = "fp32" if not gpu else "bf16" if torch.cuda.get_device_capability() >= BF16 else "fp16"
    packed = has_bitsandbytes()
    if bits == "auto":
        bits = 8 if gpu and packed else 32
    elif bits == 8 and not gpu:
        raise ConfigError("trainer.optimizer_bits: 8 bits need a GPU; use 32, or auto")
    elif bits == 8:
        extras.require("8bit", "trainer.optimizer_bits", ", or use 32")
    return replace(settings, precision=precision, optimizer_bits=bits)


def has_bitsandbytes() -> bool:
    """Whether the optimizer's state can be held in 8 bits."""
    return importlib.util.find_spec("bitsandbytes") is not None


def matmul_workspace() -> int:
    """Bytes of GPU memory that torch allocates for cuBLAS, once: four times as much from Hopper on.

    Those of an older card where there is none.
    """
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() >= HOPPER
    return (32 if hopper else 8) * 2**20


def describe(gpu: bool) -> Device:
    """The device's kind and name, the cores and threads of the machine, and the GPU's memory."""
    memory = round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if gpu else None
    return Device(
        kind="cuda" if gpu else "cpu",
        name=torch.cuda.get_device_name() if gpu else processor(),
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        memory_gb=memory,
    )


def reset_peak(gpu: bool) -> None:
    """Reset the memory peak, which would otherwise be an earlier run's in the same process."""
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    else:
        with suppress(OSError):  # no Linux, or a sandbox: the peak stays that of the whole process
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # proc(5): VmHWM starts anew


def peak_memory_mb(gpu: bool) -> float:
    """Peak of allocated GPU memory, else of the process's resident memory, in MiB."""
    if gpu:
        return round(torch.cuda.max_memory_allocated() / 2**20, 1)
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.exists() else ()
    for line in lines:
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 2**10, 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)


def resident_bytes() -> int:
    """Bytes of this process that are in memory now; without /proc, the peak so far."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return round(peak_memory_mb(gpu=False) * 2**20)


def total_memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch, without Lightning's variable that leaks into later runs."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the device or the machine had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
