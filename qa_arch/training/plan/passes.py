"""Forward and backward passes as in training, without a trainer: memory measurement and timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from qa_arch.config.schema import Config
from qa_arch.features.collate import Collator
from qa_arch.features.glove import vector_rows
from qa_arch.nn.precision import mixed
from qa_arch.tasks import task_of
from qa_arch.training.datamodule import TrainingData
from qa_arch.training.fitting import training_module
from qa_arch.training.module import TrainingModule
from qa_arch.training.optim import make_optimizer, parameter_groups
from qa_arch.training.plan.live import LinearMemory, measure_memory
from qa_arch.training.plan.untrained import UntrainedParts

SAMPLES = 5
"""Timed batches of an epoch: one from each of as many groups of similar length."""
LONG = 60.0
"""Time limit of the timing, seconds."""


@dataclass(frozen=True)
class EpochTime:
    """Training time of an epoch, without validation, extrapolated from some steps."""

    seconds: float
    windows: int
    steps: int
    """Optimizer steps of an epoch."""
    timed: int
    """Number of timed batches."""


class PassMemory(NamedTuple):
    """Memory of passes over the longest window of the training data."""

    training: LinearMemory
    """Forward and backward."""
    reading: LinearMemory
    """Forward alone, without gradients."""
    longest: int
    """Tokens of that window."""


def memory_of_passes(config: Config, untrained: UntrainedParts) -> PassMemory:
    """Memory of training and of prediction as functions of the rows, measured on the CPU for any device."""
    module = training_module(config, untrained.parts, total_steps=1)
    table = untrained.parts.tables["train"]
    collate = Collator(table, vector_rows(untrained.parts.vectors, table))
    longest = int(table.lengths.argmax())

    def train(rows: int) -> None:
        with mixed(config.trainer.precision, "cpu"):
            _loss(module, collate([longest] * rows)).backward()

    def read(rows: int) -> None:
        with torch.no_grad(), mixed(config.trainer.precision, "cpu"):
            module.model(collate([longest] * rows))

    module.train()
    training = measure_memory(train, module.parameters())
    for parameter in module.parameters():
        parameter.grad = None
    module.eval()
    return PassMemory(training, measure_memory(read), int(table.lengths[longest]))


def time_epoch(config: Config, untrained: UntrainedParts, *, gpu: bool, world: int) -> EpochTime:
    """Time training on some batches of the first epoch and extrapolate to the whole epoch.

    The batches are spread evenly over the padded lengths. With several ranks this is the time of one rank,
    without communication.
    """
    device = "cuda" if gpu else "cpu"
    module = training_module(config, untrained.parts, total_steps=1).to(device).train()
    data = TrainingData.of(config, task_of(config.model).batches(config, untrained.parts))
    batches = list(data.sampler(world=world))
    tokens = _padded_tokens(np.asarray(data.train.lengths), batches)
    middles = [int((part + 0.5) * len(batches) / SAMPLES) for part in (2, 0, 4, 1, 3)]
    chosen = np.argsort(tokens, kind="stable")[sorted(set(middles), key=middles.index)]
    settings = config.optim
    groups = parameter_groups(
        module.model,
        lr=settings.lr,
        head_lr=settings.head_lr,
        weight_decay=settings.weight_decay,
        layer_decay=settings.layer_decay,
    )
    optimizer = make_optimizer(
        settings.name,
        groups,
        fused=config.trainer.precision != "fp16",
        bits=config.trainer.optimizer_bits,  # type: ignore[arg-type]
    )

    def forth_and_back(batch: int) -> None:
        inputs = data.train(batches[batch]).to(device)
        with mixed(config.trainer.precision, device):
            _loss(module, inputs).backward()

    def step() -> None:
        if settings.clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), settings.clip)
        optimizer.step()
        optimizer.zero_grad()

    forth_and_back(chosen[0])
    step()
    passing, stepping = [], []
    for batch in chosen:
        passing.append(_seconds(lambda: forth_and_back(batch), gpu))  # noqa: B023
        stepping.append(_seconds(step, gpu))
        if sum(passing) > LONG:
            break
    steps = -(-len(batches) // config.trainer.accumulate)
    return EpochTime(
        seconds=float(np.mean(passing)) * len(batches) + float(np.mean(stepping)) * steps,
        windows=len(data.train.lengths),
        steps=steps,
        timed=len(passing),
    )


def _loss(module: TrainingModule, batch: object) -> torch.Tensor:
    losses, weight, _ = module.losses_and_weight(batch)
    return (losses * weight).sum() / len(weight)


def _padded_tokens(lengths: np.ndarray, batches: Sequence[Sequence[int]]) -> list[int]:
    rows = [np.asarray(batch) for batch in batches]
    return [len(batch) * int(lengths[np.where(batch < 0, -1 - batch, batch)].max()) for batch in rows]


def _seconds(work: Callable[[], None], gpu: bool) -> float:
    if gpu:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - begun
