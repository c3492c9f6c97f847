"""A plan: what a config will need on its device, and how its batch is best cut for the memory there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from qa_arch.config.schema import Config, Trainer
from qa_arch.errors import ConfigError
from qa_arch.tasks import task_of
from qa_arch.training import machine
from qa_arch.training.plan.bare import Bare, bare
from qa_arch.training.plan.memory import MIB, Cut, Demand, cuts, largest_fit, states
from qa_arch.training.plan.passes import Pace, pace, passes
from qa_arch.training.strategies import SHARDED

SHOWN = 8
"""Ways to cut the batch that a plan lists."""


@dataclass(frozen=True)
class Plan:
    """Sizes in MiB, on one device; ``memory`` adds up to ``total``."""

    device: str
    """``cuda`` or ``cpu``: where the run would compute."""
    parameters: int
    trainable: int
    longest: int
    """Tokens of the longest window, for which the memory is reckoned."""
    batch: dict[str, int]
    memory: dict[str, float]
    total: float
    cuts: list[dict[str, float]]
    """Other ways to cut the same batch: micro, accumulate, total."""
    room: float | None
    """The memory that was given or found."""
    proposal: list[str] | None
    """Overrides that fill the memory best and keep the global batch."""
    epoch: dict[str, float] | None
    """Training time of an epoch as proposed, measured on this machine; None where it cannot be."""
    notes: list[str]


def plan(config: Config, *, room: int | None, timed: bool, trusted: Sequence[str]) -> Plan:
    """Plan the run of ``config``. No weights are loaded; a GPU is used for the timing alone.

    ``room``: bytes of memory to fit into; None: what the device has, where it is here.
    Raises ConfigError where the run cannot be planned, or does not fit one window at a time.
    """
    config, gpu, here = _on_device(_require_plannable(config))
    found = bare(_for_counting(config, gpu=gpu), trusted)
    notes = list(found.notes)
    demand, longest = _demand(config, found, gpu=gpu)
    settings = config.trainer
    row = longest if settings.token_budget else 1
    micro = settings.token_budget or settings.batch_size
    rows, whole = max(1, micro // row), micro * settings.accumulate
    room = room or (_room(gpu) if here else None)
    proposal = None
    if room:
        fit = largest_fit(demand, whole, room, row=row)
        proposal = fit.overrides("token_budget" if settings.token_budget else "batch_size")
        config = replace(config, trainer=_cut(settings, fit))
    else:
        notes.append("no GPU is here to fit the batch to: say how much memory it has (--memory 8GB)")
    parameters = list(found.parts.model.parameters())
    return Plan(
        device="cuda" if gpu else "cpu",
        parameters=sum(p.numel() for p in parameters),
        trainable=sum(p.numel() for p in parameters if p.requires_grad),
        longest=longest,
        batch={"micro": micro, "accumulate": settings.accumulate, "windows": rows},
        memory=_memory(demand, rows, settings.accumulate),
        total=_mib(demand.total(rows, settings.accumulate)),
        cuts=_cuts(demand, whole, row),
        room=_mib(room) if room else None,
        proposal=proposal,
        epoch=_epoch(config, found, gpu=gpu, here=here, notes=notes) if timed else None,
        notes=notes,
    )


def _demand(config: Config, found: Bare, *, gpu: bool) -> tuple[Demand, int]:
    """What the run holds, and the tokens of its longest window."""
    training, reading, longest = passes(config, found)
    held = states(
        found.parts.model,
        optimizer=config.optim.name,
        bits=int(config.trainer.optimizer_bits),
        fused=config.trainer.precision != "fp16",
        world=_world(config, gpu=gpu),
    )
    process = 0 if gpu else found.process
    return Demand(held, training, reading, config.trainer.eval_batch_size, process), longest


def _require_plannable(config: Config) -> Config:
    task = task_of(config.model)
    if not task.has_plan:
        raise ConfigError(
            f"model.task: plan tells what models of spans and sequences need, not of {task.name}"
        )
    if config.trainer.strategy in SHARDED:
        raise ConfigError(
            f"trainer.strategy: plan does not know the shards of {config.trainer.strategy}; try a run of"
            " three steps (trainer.max_steps=3) and read its peak memory, or plan trainer=ddp"
        )
    return config


def _on_device(config: Config) -> tuple[Config, bool, bool]:
    """The config with nothing left to the machine, whether it is for a GPU, and whether that is here."""
    settings = config.trainer
    found = torch.cuda.is_available()
    gpu = settings.accelerator == "gpu" or (settings.accelerator == "auto" and found)
    if gpu and not found:  # a card that is not here is taken for one that knows bf16: fp16 is as wide
        bits = settings.optimizer_bits if settings.optimizer_bits != "auto" else _packed_bits()
        precision = "bf16" if settings.precision == "auto" else settings.precision
        assumed = replace(settings, precision=precision, optimizer_bits=bits)
        return replace(config, trainer=assumed), True, False
    return replace(config, trainer=machine.resolve(settings, gpu=gpu)), gpu, True


def _packed_bits() -> Literal[8, 32]:
    return 8 if machine.has_bitsandbytes() else 32


def _cut(settings: Trainer, cut: Cut) -> Trainer:
    if settings.token_budget:
        return replace(settings, token_budget=cut.micro, accumulate=cut.accumulate)
    return replace(settings, batch_size=cut.micro, accumulate=cut.accumulate)


def _for_counting(config: Config, *, gpu: bool) -> Config:
    """On a GPU fused attention drops out without leaving the kernel; a CPU's would keep all weights."""
    return replace(config, encoder=replace(config.encoder, attention_dropout=0.0)) if gpu else config


def _world(config: Config, *, gpu: bool) -> int:
    devices = config.trainer.devices
    if devices != "auto":
        return devices
    return max(1, torch.cuda.device_count()) if gpu else 1


def _room(gpu: bool) -> int:
    return torch.cuda.get_device_properties(0).total_memory if gpu else machine.total_memory()


def _memory(demand: Demand, rows: int, accumulate: int) -> dict[str, float]:
    held = asdict(demand.states)
    held.pop("step")
    held["activations"] = demand.activations(rows, accumulate)
    held["process"] = demand.process
    return {name: _mib(size) for name, size in held.items() if size}


def _cuts(demand: Demand, whole: int, row: int) -> list[dict[str, float]]:
    def line(cut: Cut) -> dict[str, float]:
        total = demand.total(cut.micro // row, cut.accumulate)
        return {"micro": cut.micro, "accumulate": cut.accumulate, "total": _mib(total)}

    return [line(cut) for cut in cuts(whole) if cut.micro >= row][:SHOWN]


def _epoch(
    config: Config, found: Bare, *, gpu: bool, here: bool, notes: list[str]
) -> dict[str, float] | None:
    if not here or not found.real:
        missing = "the questions" if here else "the GPU"
        notes.append(f"time needs {missing}, out of reach here")
        return None
    measured: Pace = pace(config, found, gpu=gpu, world=_world(config, gpu=gpu))
    return {**asdict(measured), "seconds": round(measured.seconds, 1)}


def _mib(size: float) -> float:
    return round(size / MIB, 1)
