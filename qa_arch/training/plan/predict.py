"""Plan of a run: memory and time on its device, and the best micro batch for the available memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from qa_arch.config.schema import Config, Trainer
from qa_arch.errors import ConfigError
from qa_arch.tasks import task_of
from qa_arch.training import machine
from qa_arch.training.plan.memory import MIB, BatchSplit, Demand, batch_splits, largest_fit, states
from qa_arch.training.plan.passes import memory_of_passes, time_epoch
from qa_arch.training.plan.untrained import UntrainedParts, build_untrained
from qa_arch.training.strategies import SHARDED

MAX_SPLITS = 8
"""Maximal number of batch splits that a plan lists."""


@dataclass(frozen=True)
class Plan:
    """Sizes in MiB, on one device; ``memory`` adds up to ``total``."""

    device: str
    """``cuda`` or ``cpu``: where the run would compute."""
    parameters: int
    trainable: int
    longest: int
    """Tokens of the longest window, for which the memory is computed."""
    batch: dict[str, int]
    memory: dict[str, float]
    total: float
    cuts: list[dict[str, float]]
    """Other splits of the same batch: micro, accumulate, total."""
    room: float | None
    """Available memory, given or measured."""
    proposal: list[str] | None
    """Overrides for the largest micro batch that fits and keeps the global batch."""
    epoch: dict[str, float] | None
    """Training time of an epoch as proposed, measured on this machine; None if it cannot be."""
    notes: list[str]


def plan(config: Config, *, available: int | None, timed: bool, trusted: Sequence[str]) -> Plan:
    """Plan the run of ``config``. No weights are loaded; a GPU is used only for timing.

    ``available``: bytes of memory to fit into; None: that of the device, if it is present.
    Raises ConfigError if the run cannot be planned, or a single window does not fit.
    """
    config, gpu, local = _on_device(_require_plannable(config))
    untrained = build_untrained(_for_counting(config, gpu=gpu), trusted)
    notes = list(untrained.notes)
    demand, longest = _demand(config, untrained, gpu=gpu)
    settings = config.trainer
    row = longest if settings.token_budget else 1
    micro = settings.token_budget or settings.batch_size
    rows, batch = max(1, micro // row), micro * settings.accumulate
    available = available or (_available_memory(gpu) if local else None)
    proposal = None
    if available:
        fit = largest_fit(demand, batch, available, row=row)
        proposal = fit.overrides("token_budget" if settings.token_budget else "batch_size")
        config = replace(config, trainer=_apply_split(settings, fit))
    else:
        notes.append("no GPU on this machine to fit the batch to: give its memory (--memory 8GB)")
    parameters = list(untrained.parts.model.parameters())
    return Plan(
        device="cuda" if gpu else "cpu",
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        longest=longest,
        batch={"micro": micro, "accumulate": settings.accumulate, "windows": rows},
        memory=_memory(demand, rows, settings.accumulate),
        total=_mib(demand.total(rows, settings.accumulate)),
        cuts=_listed_splits(demand, batch, row),
        room=_mib(available) if available else None,
        proposal=proposal,
        epoch=_epoch(config, untrained, gpu=gpu, local=local, notes=notes) if timed else None,
        notes=notes,
    )


def _demand(config: Config, untrained: UntrainedParts, *, gpu: bool) -> tuple[Demand, int]:
    """Memory demand of the run, and the tokens of its longest window."""
    measured = memory_of_passes(config, untrained)
    fixed = states(
        untrained.parts.model,
        optimizer=config.optim.name,
        bits=int(config.trainer.optimizer_bits),
        fused=config.trainer.precision != "fp16",
        world=_world(config, gpu=gpu),
    )
    process = machine.matmul_workspace() if gpu else untrained.process
    rows = config.trainer.eval_batch_size
    return Demand(fixed, measured.training, measured.reading, rows, process), measured.longest


def _require_plannable(config: Config) -> Config:
    task = task_of(config.model)
    if not task.has_plan:
        raise ConfigError(f"model.task: plan supports span and sequence models, not {task.name}")
    if config.trainer.strategy in SHARDED:
        raise ConfigError(
            f"trainer.strategy: plan does not support {config.trainer.strategy}; try a run of"
            " three steps (trainer.max_steps=3) and read its peak memory, or plan trainer=ddp"
        )
    return config


def _on_device(config: Config) -> tuple[Config, bool, bool]:
    """Config without ``auto`` settings, whether it is for a GPU, and whether its device is present."""
    settings = config.trainer
    has_gpu = torch.cuda.is_available()
    gpu = settings.accelerator == "gpu" or (settings.accelerator == "auto" and has_gpu)
    if gpu and not has_gpu:  # a missing card is assumed to support bf16; fp16 is as wide
        bits = settings.optimizer_bits if settings.optimizer_bits != "auto" else _packed_bits()
        precision = "bf16" if settings.precision == "auto" else settings.precision
        assumed = replace(settings, precision=precision, optimizer_bits=bits)
        return replace(config, trainer=assumed), True, False
    return replace(config, trainer=machine.resolve(settings, gpu=gpu)), gpu, True


def _packed_bits() -> Literal[8, 32]:
    return 8 if machine.has_bitsandbytes() else 32


def _apply_split(settings: Trainer, split: BatchSplit) -> Trainer:
    if settings.token_budget:
        return replace(settings, token_budget=split.micro, accumulate=split.accumulate)
    return replace(settings, batch_size=split.micro, accumulate=split.accumulate)


def _for_counting(config: Config, *, gpu: bool) -> Config:
    """Config without attention dropout for a GPU: its fused attention, unlike a CPU's, stores no weights."""
    return replace(config, encoder=replace(config.encoder, attention_dropout=0.0)) if gpu else config


def _world(config: Config, *, gpu: bool) -> int:
    devices = config.trainer.devices
    if devices != "auto":
        return devices
    return max(1, torch.cuda.device_count()) if gpu else 1


def _available_memory(gpu: bool) -> int:
    return torch.cuda.get_device_properties(0).total_memory if gpu else machine.total_memory()


def _memory(demand: Demand, rows: int, accumulate: int) -> dict[str, float]:
    sizes = asdict(demand.states)
    sizes.pop("step")
    sizes["activations"] = demand.activations(rows, accumulate)
    sizes["process"] = demand.process
    return {name: _mib(size) for name, size in sizes.items() if size}


def _listed_splits(demand: Demand, batch: int, row: int) -> list[dict[str, float]]:
    def line(split: BatchSplit) -> dict[str, float]:
        total = demand.total(split.micro // row, split.accumulate)
        return {"micro": split.micro, "accumulate": split.accumulate, "total": _mib(total)}

    return [line(split) for split in batch_splits(batch) if split.micro >= row][:MAX_SPLITS]


def _epoch(
    config: Config, untrained: UntrainedParts, *, gpu: bool, local: bool, notes: list[str]
) -> dict[str, float] | None:
    if not local or not untrained.real:
        missing = "the questions are" if local else "the GPU is"
        notes.append(f"no time: {missing} not available on this machine")
        return None
    measured = time_epoch(config, untrained, gpu=gpu, world=_world(config, gpu=gpu))
    return {**asdict(measured), "seconds": round(measured.seconds, 1)}


def _mib(size: float) -> float:
    return round(size / MIB, 1)
