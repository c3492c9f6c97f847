"""Run a model over the rows of a feature table, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import nn

from qa_arch.config.schema import Config
from qa_arch.errors import UnavailableError, first_line
from qa_arch.features.batches import BucketBatchSampler
from qa_arch.nn.precision import Precision, mixed

Place = str | int | torch.device
Watch = Callable[[int, int], None]
"""Progress callback, called with the number of rows read so far and their total."""


class Collate(Protocol):
    """Turns rows of a feature table, as a sampler yields them, into a batch.

    To train on, a batch has ``labels``, the second argument of the loss, and ``weight`` (B,): 1 for a real
    row, 0 for a padding row that keeps an idle rank in step.
    """

    @property
    def lengths(self) -> Any:
        """(rows,) length of every row of the table, used to form batches."""
        ...

    def __call__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Batches:
    """Collators for training and validation, and the sampler of training rows."""

    train: Collate
    calibration: Collate | None
    sampler: Callable[..., BucketBatchSampler] = BucketBatchSampler
    least: int = 1
    """Rows that a batch must be able to hold: two of a pair."""


class Collector(Protocol):
    """Collects a model's outputs batch by batch; with several processes, each rank those of its own rows."""

    def add(self, batch: Any, output: Any) -> None: ...
    def result(self) -> Any:
        """The outputs for every row of the table."""
        ...

    parts: list[Any]
    """The outputs so far, as values that processes can exchange; a row that two computed counts once."""


class RowCollector:
    """Collects one value for each row: a padding row repeats that of a row of another process."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, Any]] = []

    def result(self) -> list[Any]:
        """The values of all rows, in order."""
        by_row = dict(self.parts)
        return [by_row[row] for row in sorted(by_row)]


def run_model(
    model: nn.Module,
    collate: Collate,
    collector: Any,
    *,
    batch_size: int,
    precision: Precision = "fp32",
    watch: Watch | None = None,
) -> Any:
    """Run ``model`` once on every row of the collator's table and return ``collector.result()``.

    Under ``bf16`` and ``fp16`` the forward pass runs in autocast; ``cast_weights`` is what makes it fast.
    The model's training mode is restored afterwards.
    """
    device = device_of(model)
    batches = BucketBatchSampler(collate.lengths, batch_size=batch_size, seed=0, shuffle=False)
    done, total = 0, len(collate.lengths)
    with evaluating(model), torch.inference_mode(), mixed(precision, device.type):
        for rows in batches:
            batch = collate(rows).to(device)
            # Batches are sorted by length; their ``index`` says which rows they are.
            collector.add(batch, model(batch))
            done += len(batch)
            if watch is not None:
                watch(done, total)
    return collector.result()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put ``model`` into evaluation mode; afterwards each module is in the mode that it had."""
    # By module, as a frozen part may be in evaluation mode already.
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's parameters; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def require_device(device: Place) -> None:
    """Raise UnavailableError unless tensors can be made on ``device``, and read."""
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UnavailableError(
            f"device {device}: cannot be used ({first_line(error)}); use cpu (--device cpu)"
        ) from error


def run_device(config: Config) -> Literal["cuda", "cpu"]:
    """Device for a run of ``config``: a GPU, unless none is available or the config says cpu."""
    return "cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu"
