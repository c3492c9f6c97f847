"""The arithmetic of a plan: what stays in memory, what a batch adds to it, which part of a batch fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from qa_arch.errors import ConfigError
from qa_arch.training.optim import Optimizer
from qa_arch.training.plan.live import Lines

HEADROOM = 0.65
"""Share of the given memory that a proposal may fill; the rest is for freed blocks that allocators keep."""
MIB = 2**20
_FLOAT = 4
_SMALLEST_8BIT, _BLOCK = 4096, 256
"""bitsandbytes keeps the moments of smaller parameters in 32 bits, and one scale for each block."""


@dataclass(frozen=True)
class States:
    """Bytes that do not depend on the batch."""

    weights: int
    vectors: int
    """Fixed tensors that no gradient reaches: word vectors."""
    gradients: int
    optimizer: int
    step: int
    """Besides, while the optimizer steps: an optimizer that is not fused works on a copy of the gradients."""
    exchange: int
    """DDP's buckets, through which the ranks average their gradients."""

    @property
    def resident(self) -> int:
        """What is there from the first step to the last, gradients left out."""
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
    """Everything that one device of a run holds at its fullest moment, in bytes."""

    states: States
    training: Lines
    reading: Lines
    """The same without gradients: calibration is read between two epochs."""
    reading_rows: int
    process: int = 0
    """What the process itself takes, where it is the machine's own memory that is counted."""

    def activations(self, rows: int, accumulate: int) -> int:
        """What a forward and a backward pass over ``rows`` windows add to the states and the gradients."""
        return self.total(rows, accumulate) - self.process - self.states.resident - self.states.gradients

    def total(self, rows: int, accumulate: int) -> int:
        """The fullest of: training on ``rows`` windows at a time, the optimizer's step, reading."""
        passing = self.training.peak(rows, accumulated=accumulate > 1)
        stepping = self.states.gradients + self.states.step
        reading = self.states.gradients + self.reading.peak(self.reading_rows)
        return self.process + self.states.resident + max(passing, stepping, reading)


@dataclass(frozen=True)
class Cut:
    """A batch of one device cut into ``accumulate`` parts of ``micro`` windows each (or padded tokens)."""

    micro: int
    accumulate: int

    def overrides(self, unit: Literal["batch_size", "token_budget"]) -> list[str]:
        return [f"trainer.{unit}={self.micro}", f"trainer.accumulate={self.accumulate}"]


def cuts(whole: int) -> list[Cut]:
    """Every way to cut a batch into equal parts, the largest parts first: each keeps the global batch."""
    return [Cut(whole // parts, parts) for parts in range(1, whole + 1) if whole % parts == 0]


def largest_fit(demand: Demand, whole: int, room: int, *, row: int = 1) -> Cut:
    """The cut with the largest parts that stays within ``HEADROOM`` of ``room`` bytes.

    ``row``: how much of ``whole`` one window is (1, or under a token budget its padded tokens).
    Raises ConfigError where one window at a time is too much.
    """
    allowed = HEADROOM * room
    for cut in cuts(whole):
        if cut.micro >= row and demand.total(cut.micro // row, cut.accumulate) <= allowed:
            return cut
    least = demand.total(1, 2)
    given = f"{HEADROOM:.0%} of {room / MIB:,.0f} MiB is {allowed / MIB:,.0f}"
    raise ConfigError(
        f"--memory: one window at a time needs {least / MIB:,.0f} MiB, and {given}; try"
        " trainer.gradient_checkpointing=true, trainer.optimizer_bits=auto, a shorter features.max_length,"
        " encoder.freeze, a smaller trainer.eval_batch_size or a smaller encoder"
    )
