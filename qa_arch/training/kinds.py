"""The kinds of task that can be trained: what each brings to a run, by ``model.task``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from qa_arch.config.schema import Config
from qa_arch.features.glove import WordVectors
from qa_arch.training import spans
from qa_arch.training.final import Final
from qa_arch.training.module import Task
from qa_arch.training.selection import kind as selection
from qa_arch.types.records import SplitFacts


class Parts(Protocol):
    """What a run is made of; each of its ``sets`` (train, calibration, dev) has a ``fingerprint``."""

    @property
    def sets(self) -> Mapping[str, Any]: ...
    @property
    def vectors(self) -> WordVectors | None: ...
    @property
    def model(self) -> nn.Module: ...


class Kind(Protocol):
    """One kind of task, a module of functions; ``parts`` is what its own ``assemble`` gave."""

    def assemble(self, config: Config, trusted: Sequence[str]) -> Any:
        """Read the data, build features and model."""

    def facts(self, parts: Any) -> dict[str, SplitFacts]:
        """What the record says of each split."""

    def save(self, folder: Path, parts: Any) -> None:
        """All of the model but its weights."""

    def data(self, config: Config, parts: Any, *, pin: bool) -> Any:
        """A LightningDataModule whose ``sampler(world=)`` plans the training batches."""

    def task(self, config: Config, parts: Any, *, total_steps: int) -> Task: ...

    def score(self, config: Config, parts: Any, folder: Path, *, gpu: bool, trusted: Sequence[str]) -> Final:
        """Score what the config opens with the weights that were kept; write predictions."""


KINDS: dict[str, Kind] = {
    "span": spans,
    "sequence": spans,
    "selection": selection,
    "classification": selection,
}


def kind_of(config: Config) -> Kind:
    """The kind of the config's model; ``validate`` has checked that there is one."""
    return KINDS[config.model["task"]]
