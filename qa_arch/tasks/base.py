"""What a task is: everything about a run that depends on what is asked of the model, in one object.

``model.task`` names the module of this package that holds it. A task opens its data, builds features and
model, gives the loss, collects outputs over ranks, scores them and makes the predictor; training, evaluation
and the commands call it and never ask which task they have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from qa_arch.config.schema import Config, Data
from qa_arch.config.target import TRUSTED
from qa_arch.features.glove import WordVectors
from qa_arch.features.sampler import BucketBatchSampler
from qa_arch.nn.losses import Loss
from qa_arch.nn.precision import Precision
from qa_arch.types.records import Point, Points, RunRecord, SplitFacts

Watch = Callable[[int, int], None]
"""Called with the number of rows that were read and that of all."""


@dataclass(frozen=True)
class Parts:
    """What a run is made of. ``sets`` and ``tables`` by split: train, calibration, dev."""

    sets: Mapping[str, Any]
    """What was read: each has a ``fingerprint`` and a ``protocol``."""
    tables: Mapping[str, Any]
    """The same in numbers."""
    vectors: WordVectors | None
    model: nn.Module
    loss: Loss


class Collator(Protocol):
    """Makes a batch of the rows that a sampler yields."""

    @property
    def lengths(self) -> Any:
        """(rows,) what batches of similar length are formed by."""
        ...

    def __call__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Batches:
    """What training and validation read: a collator each, and how training rows are drawn."""

    train: Collator
    calibration: Collator | None
    sampler: type[BucketBatchSampler] = BucketBatchSampler


class Collector(Protocol):
    """Takes a model's outputs batch by batch, on each rank those of its own rows."""

    parts: list[Any]
    """What was taken so far, as values that processes can exchange."""

    def add(self, batch: Any, output: Any) -> None: ...
    def merge(self, others: Iterable[list[Any]]) -> None:
        """Replace ``parts`` by what all processes took; a row that came twice counts once."""
        ...

    def result(self) -> Any:
        """The outputs for every row of the table."""
        ...


class Predictor(ABC):
    """A trained model with what it needs to read new questions of its task."""

    model: nn.Module
    config: Config
    record: RunRecord | None
    precision: Precision
    margin: float
    """An answer is given unless "no answer" scores higher by more than this; ``inf``: always given."""

    @abstractmethod
    def table(self, questions: Any, *, cache: bool = True) -> Any:
        """The set in numbers, under the settings that the model was trained with."""

    @abstractmethod
    def read(
        self, questions: Any, *, table: Any = None, batch_size: int | None = None, watch: Watch | None = None
    ) -> Any:
        """The model's outputs for each question of a set, in order."""


class Task(ABC):
    """One kind of question; stateless, so that one object serves every run."""

    name: ClassVar[str]
    """As ``model.task`` names it."""
    monitor: ClassVar[str | None] = None
    """A calibration score, the higher the better, that chooses the epoch in place of ``trainer.select``."""
    has_validation_loss: ClassVar[bool] = True
    """Whether the loss of the calibration split says something beside its scores."""
    lengths_are_tokens: ClassVar[bool] = False
    """Whether the lengths of training rows count all tokens that are computed, so that padding is known."""
    has_null: ClassVar[bool] = False
    """Whether "no answer" is an answer, given above a null margin."""
    has_search: ClassVar[bool] = False
    """Whether ``decode.search`` changes what is read off the model."""
    has_plan: ClassVar[bool] = False
    """Whether ``qa-arch plan`` can count its passes."""

    # Data ---------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, source: str | list[str], *, name: str = "", on_error: Any = "raise") -> Any:
        """The set that ``source`` names, as this task reads it. Raises DataError for another kind."""

    @abstractmethod
    def load_splits(self, data: Data) -> dict[str, Any]:
        """Train, calibration and dev as the config names them or holds them out."""

    @abstractmethod
    def facts(self, questions: Any, table: Any, *, titles: bool) -> SplitFacts:
        """What a record says of a set; ``titles`` tell later whether a scored set was trained on."""

    # Building -----------------------------------------------------------------------------------

    @abstractmethod
    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
        """Read the data, build features and model."""

    @abstractmethod
    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> dict[str, Any]:
        """total, trainable, blocks and word_vectors of the configured model, made without weights."""

    @abstractmethod
    def save(self, folder: Path, parts: Any) -> None:
        """Write all of the model but its weights."""

    @abstractmethod
    def load(
        self, folder: Path, record: RunRecord, config: Config, device: Any, precision: Precision, trusted: Any
    ) -> Predictor:
        """The predictor of a finished run from its model folder."""

    @abstractmethod
    def predictor(self, config: Config, parts: Any) -> Predictor:
        """The predictor of a model that was just trained; its weights are cast to the run's precision."""

    # Training -----------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, config: Config, parts: Any) -> Batches:
        """The batches of train and calibration."""

    @abstractmethod
    def labels(self, batch: Any) -> Any:
        """What the loss compares the model's output with."""

    @abstractmethod
    def weight(self, batch: Any) -> Tensor:
        """(B,) 1 for a row that counts, 0 for padding that keeps an idle rank in step."""

    @abstractmethod
    def collector(self, config: Config, parts: Any, split: str) -> Collector:
        """An empty collector of the outputs for a split."""

    @abstractmethod
    def validation_scores(self, questions: Any, outputs: Any) -> dict[str, float]:
        """``calibration_*`` scores of an epoch."""

    # Scoring ------------------------------------------------------------------------------------

    def fit_margin(self, questions: Any, outputs: Any) -> float:
        """The null margin that suits ``questions`` best; ``inf`` where "no answer" is never given."""
        return 0.0

    @abstractmethod
    def points(self, questions: Any, outputs: Any, margin: float, given: float | None = None) -> Points:
        """Scores at every operating point, ``given`` being one more that the user asks for."""

    @abstractmethod
    def rows(self, questions: Any, outputs: Any, margin: float) -> dict[str, list[Any]]:
        """Columns of ``questions.parquet``, one row a question, no text."""

    @abstractmethod
    def write_predictions(self, folder: Path, questions: Any, outputs: Any, margin: float) -> None:
        """What the model answered, in the files that the task's users know."""

    @abstractmethod
    def reference_scores(self, heuristic: Any, calibration: Any, questions: Any) -> Point:
        """Scores of a row that needs no learning, fitted on ``calibration`` where there is one."""

    def warning(self, questions: Any, outputs: Any, margin: float) -> str | None:
        """Why a user should not take these outputs for a result; None where nothing speaks against it."""
        return None


def gather(collector: Collector) -> Any:
    """The outputs of all ranks; each rank gets the whole, so that all decide alike."""
    if dist.is_available() and dist.is_initialized():
        everyone: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(everyone, collector.parts)
        collector.merge(everyone)
    return collector.result()


def synchronize() -> None:
    """Wait for the GPU, so that a time that is taken now is that of finished work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
