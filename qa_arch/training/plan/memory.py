"""Memory arithmetic of a plan: fixed states, activations of a batch, largest micro batch that fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.training.optim import Optimizer
from qa_arch.training.plan.live import LinearMemory

HEADROOM = 0.65
"""Share of the memory that a proposal may fill; the rest is for freed blocks that the allocator keeps."""
MIB = 2**20
_FLOAT = 4
_SMALLEST_8BIT, _BLOCK = 4096, 256
"""bitsandbytes keeps the moments of smaller parameters in 32 bits, and one scale for each block."""


@dataclass(frozen=True)
class States:
    """Bytes that do not depend on the batch."""

    weights: int
    vectors: int
    """Fixed tensors without gradients: word vectors."""
    gradients: int
    optimizer: int
    step: int
    """Temporary bytes of an optimizer step: an optimizer that is not fused copies the gradients."""
    exchange: int
    """Buckets in which DDP averages gradients over ranks."""

    @property
    def resident(self) -> int:
        """Bytes allocated during the whole run, without gradients."""
        return self.weights + self.vectors + self.optimizer + self.exchange


def states(model: nn.Module, *, optimizer: Optimizer, bits: int, fused: bool, world: int) -> States:
    """The states of ``model`` on one of ``world`` ranks; ``bits``: 32 or 8 for each moment."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = _bytes(trained)
    return States(
        weights=_bytes(model.parameters()),
        vectors=_bytes(model.buffers()),
        gradients=gradients,
        optimizer=sum(_moments(parameter.numel(), bits) for parameter in trained),
        step=0 if bits == 8 or (optimizer == "adamw" and fused) else gradients,
        exchange=gradients if world > 1 else 0,
    )


def _moments(count: int, bits: int) -> int:
    """Two moments of ``count`` values (AdamW's; Adamax's mean and infinity norm), and torch's step number."""
    if bits == 32:
        return 2 * _FLOAT * count + _FLOAT
    return 2 * (count + _FLOAT * -(-count // _BLOCK) if count >= _SMALLEST_8BIT else _FLOAT * count)


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Demand:
    """Memory demand of one device at its peak, in bytes."""

    states: States
    training: LinearMemory
    reading: LinearMemory
    """The same without gradients, for predicting the calibration split between epochs."""
    reading_rows: int
    process: int = 0
    """Bytes of the process itself, if the memory of the machine is counted; on a GPU those that its library
    of matrix products takes for itself."""

    def activations(self, rows: int, accumulate: int) -> int:
        """Bytes that a forward and backward pass over ``rows`` windows adds to states and gradients."""
        return self.total(rows, accumulate) - self.process - self.states.resident - self.states.gradients

    def total(self, rows: int, accumulate: int) -> int:
        """Peak over training on ``rows`` windows at a time, the optimizer step, and prediction."""
        passing = self.training.peak(rows, accumulated=accumulate > 1)
        stepping = self.states.gradients + self.states.step
        reading = self.states.gradients + self.reading.peak(self.reading_rows)
        return self.process + self.states.resident + max(passing, stepping, reading)


@dataclass(frozen=True)
class BatchSplit:
    """A batch of one device split into ``accumulate`` parts of ``micro`` windows each (or padded tokens)."""

    micro: int
    accumulate: int

    def overrides(self, unit: Literal["batch_size", "token_budget"]) -> list[str]:
        return [f"trainer.{unit}={self.micro}", f"trainer.accumulate={self.accumulate}"]


def batch_splits(batch: int) -> list[BatchSplit]:
    """All splits of a batch into equal parts, the largest parts first; the global batch stays the same."""
    return [BatchSplit(batch // parts, parts) for parts in range(1, batch + 1) if batch % parts == 0]


def largest_fit(demand: Demand, batch: int, available: int, *, row: int = 1) -> BatchSplit:
    """Split with the largest parts that needs at most ``HEADROOM`` of the ``available`` bytes.

    ``row``: size of one window in units of ``batch`` (1, or its padded tokens under a token budget).
    Raises ConfigError if a single window does not fit.
    """
    allowed = HEADROOM * available
    for split in batch_splits(batch):
        if split.micro >= row and demand.total(split.micro // row, split.accumulate) <= allowed:
            return split
    minimum = demand.total(1, 2)
    limit = f"{HEADROOM:.0%} of {available / MIB:,.0f} MiB is {allowed / MIB:,.0f}"
    raise ConfigError(
        f"--memory: one window at a time needs {minimum / MIB:,.0f} MiB, and {limit}; try"
        " trainer.gradient_checkpointing=true, trainer.optimizer_bits=auto, a shorter features.max_length,"
        " encoder.freeze, a smaller trainer.eval_batch_size or a smaller encoder"
    )
