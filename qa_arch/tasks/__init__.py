"""Interface of a task: everything about a run that depends on the kind of question, in one object.

``model.task`` names it, and its ``TaskEntry`` the module that implements it; read ``spans.task`` first. A run
takes a question through these steps, most of them methods of its task::

    raw data -> Example           Task.open, Task.load_splits
    -> Feature                    Task.assemble, Predictor.table
    -> Batch                      Task.batches
    -> logits                     the model
    -> ranked answers             Task.collector, read_table
    -> Scores                     Task.points
    -> run.json                   training.run, evaluation.runs

Training, evaluation and the commands call these methods and never ask which task they have.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn

from qa_arch.config.schema import Calibration, Config, Data, task_entry
from qa_arch.config.target import TRUSTED
from qa_arch.features.batches import BucketBatchSampler
from qa_arch.features.vectors import WordVectors
from qa_arch.nn.precision import Precision, mixed
from qa_arch.records import Fits, Parameters, Point, Points, RunRecord, SplitFacts

Watch = Callable[[int, int], None]
"""Progress callback, called with the number of rows read so far and their total."""


@dataclass(frozen=True)
class Parts:
    """Data, features, model and loss of a run; ``sets`` and ``tables`` by split: train, calibration, dev."""

    sets: Mapping[str, Any]
    """Question sets, which have a ``fingerprint`` and a ``protocol``."""
    tables: Mapping[str, Any]
    """The features of these sets."""
    vectors: WordVectors | None
    model: nn.Module
    loss: Any
    """A ``Loss``; None for a loaded model, which is not trained."""
    distiller: Any = field(default=None, kw_only=True)
    """Computes the loss if there is a teacher."""


class Collator(Protocol):
    """Turns rows of a feature table, as a sampler yields them, into a Batch."""

    @property
    def lengths(self) -> Any:
        """(rows,) length of every row of the table, used to form batches."""
        ...

    def __call__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True)
class Batches:
    """Collators for training and validation, and the sampler of training rows."""

    train: Collator
    calibration: Collator | None
    sampler: Callable[..., BucketBatchSampler] = BucketBatchSampler


class Collector(Protocol):
    """Collects a model's outputs batch by batch; with several processes, each rank those of its own rows."""

    def add(self, batch: Any, output: Any) -> None: ...
    def result(self) -> Any:
        """The outputs for every row of the table."""
        ...

    parts: list[Any]
    """The outputs so far, as values that processes can exchange; a row that two computed counts once."""


class Predictor(ABC):
    """A trained model with tokenizer and vectors, ready for new questions of its task."""

    model: nn.Module
    config: Config
    record: RunRecord | None
    precision: Precision
    null_threshold: float
    """An answer is given unless "no answer" scores higher by more than this; ``inf``: always given."""
    library: str = "torch"
    """Library that computes the logits: ``onnx`` for a graph, ``onnx + torch`` for an ensemble of both."""
    temperature: float = 1.0
    """Divides scores before they become confidences (``metrics.confidence``)."""

    @property
    def engine(self) -> str:
        """The ``library`` and its precision, as scores record them: ``torch fp32``."""
        return f"{self.library} {self.precision}"

    @abstractmethod
    def table(self, questions: Any, *, cache: bool = True) -> Any:
        """Features of a set, with the settings that the model was trained with."""

    @abstractmethod
    def try_out(self) -> None:
        """Read something short, so that files that do not fit together fail when they are loaded."""

    @abstractmethod
    def reading(self, questions: Any, table: Any) -> tuple[Collator, Collector]:
        """Collator of the features ``table`` of a set, and an empty collector of the model's outputs."""

    def read(
        self, questions: Any, *, table: Any = None, batch_size: int | None = None, watch: Watch | None = None
    ) -> Any:
        """The model's outputs for each question of a set, in order.

        ``table`` may hold the set's features if they exist already. ``watch`` counts rows of the table.
        """
        collate, collector = self.reading(questions, self.table(questions) if table is None else table)
        return read_table(
            self.model,
            collate,
            collector,
            batch_size=batch_size or self.config.trainer.eval_batch_size,
            precision=self.precision,
            watch=watch,
        )


class Task(ABC):
    """A kind of question; stateless, so that one object serves all runs."""

    name: ClassVar[str]
    """Name in ``model.task``."""
    output: ClassVar[Any]
    """Type of a model's output: a dataclass of tensors, or a tensor with named axes."""
    monitor: ClassVar[str | None] = None
    """Calibration score that selects the best epoch, in place of ``trainer.select``."""
    has_validation_loss: ClassVar[bool] = True
    """Whether the loss of the calibration split is computed and recorded with its scores."""
    reference_method: ClassVar[str | None] = None
    """Method that ``references`` must have: ``predict`` for texts, ``rank`` for candidates; None if the task
    has no references."""
    has_null: ClassVar[bool] = False
    """Whether the task has "no answer", given above a null threshold."""
    has_search: ClassVar[bool] = False
    """Whether ``decode.search`` affects the answers."""

    # Data ---------------------------------------------------------------------------------------

    @abstractmethod
    def open(self, source: str | list[str], *, name: str = "", on_error: Any = "raise") -> Any:
        """Open the set that ``source`` names. Raises DataError for data of another kind of question."""

    @abstractmethod
    def load_splits(self, data: Data) -> dict[str, Any]:
        """Train, calibration and dev, as configured or held out."""

    @abstractmethod
    def facts(self, questions: Any, table: Any, *, titles: bool) -> SplitFacts:
        """Facts of a set for the record; with its article titles if ``titles``, to detect later overlaps."""

    # Building -----------------------------------------------------------------------------------

    @abstractmethod
    def assemble(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parts:
        """Read the data; build features, model and loss."""

    @abstractmethod
    def count_parameters(self, config: Config, trusted: Sequence[str] = TRUSTED) -> Parameters:
        """Count the parameters of the configured model, without allocating weights."""

    @abstractmethod
    def save(self, folder: Path, parts: Any) -> None:
        """Write everything of the model but its weights."""

    def finish(self, folder: Path, parts: Any) -> None:
        """Write what only a trained model has besides weights; nothing by default."""
        return

    @abstractmethod
    def load(self, folder: Path, config: Config, trusted: Sequence[str]) -> Parts:
        """Load what ``save`` wrote, and build the model with random weights; no sets, tables or loss."""

    @abstractmethod
    def predictor(
        self, config: Config, parts: Any, record: RunRecord | None = None, precision: Precision | None = None
    ) -> Predictor:
        """Predictor of a trained model; casts its weights to ``precision`` (None: that of the run)."""

    # Training -----------------------------------------------------------------------------------

    @abstractmethod
    def batches(self, config: Config, parts: Any) -> Batches:
        """Batches of train and calibration.

        A batch has ``labels``, the second argument of the loss, and ``weight`` (B,): 1 for a real row, 0 for
        a padding row that keeps an idle rank in step.
        """

    @abstractmethod
    def collector(self, config: Config, parts: Any, split: str) -> Collector:
        """An empty collector for the outputs on a split."""

    @abstractmethod
    def validation_scores(self, questions: Any, outputs: Any) -> dict[str, float]:
        """``calibration_*`` scores of an epoch."""

    # Scoring ------------------------------------------------------------------------------------

    def fit(self, questions: Any, outputs: Any, settings: Calibration | None = None) -> Fits:
        """Fit null threshold, answerability and the temperature at that threshold on a calibration split.

        Unanswerable questions are weighted to the share ``settings.prior`` if there are both kinds.
        """
        return Fits()

    def confidence(self, outputs: Any, threshold: float, temperature: float) -> list[float] | None:
        """Probability per question that the given answer is right; None if the task has no confidence."""
        return None

    @abstractmethod
    def points(
        self, questions: Any, outputs: Any, threshold: float, extra_threshold: float | None = None
    ) -> Points:
        """Scores at every operating point; ``extra_threshold`` is one more null threshold to score at."""

    @abstractmethod
    def rows(self, questions: Any, outputs: Any, threshold: float) -> dict[str, list[Any]]:
        """Columns of ``questions.parquet``, one row per question, without texts."""

    @abstractmethod
    def write_predictions(self, folder: Path, questions: Any, outputs: Any, threshold: float) -> None:
        """Write the model's answers in the usual file formats of the task."""

    def reference_scores(self, heuristic: Any, calibration: Any, questions: Any) -> Point:
        """Scores of a heuristic, fitted on ``calibration`` if there is one."""
        raise NotImplementedError(f"task {self.name} has no heuristics")

    def warning(self, questions: Any, outputs: Any, threshold: float) -> str | None:
        """Warning about unusable outputs (a collapsed model), or None."""
        return None


def gather(collector: Collector) -> Any:
    """Outputs of all ranks, returned on every rank, so that all take the same decisions."""
    if dist.is_available() and dist.is_initialized():
        rank_parts: list[list[Any]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(rank_parts, collector.parts)
        collector.parts = [part for parts in rank_parts for part in parts]
    return collector.result()


def run_device(config: Config) -> Literal["cuda", "cpu"]:
    """Device for a run of ``config``: a GPU, unless none is available or the config says cpu."""
    return "cuda" if torch.cuda.is_available() and config.trainer.accelerator != "cpu" else "cpu"


def read_table(
    model: nn.Module,
    collate: Collator,
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
    was_training = model.training
    model.eval()
    done, total = 0, len(collate.lengths)
    with torch.inference_mode(), mixed(precision, device.type):
        for rows in batches:
            batch = collate(rows).to(device)
            collector.add(batch, model(batch))
            done += len(batch)
            if watch is not None:
                watch(done, total)
    model.train(was_training)
    return collector.result()


def device_of(model: nn.Module) -> torch.device:
    """Device of a model's parameters; the CPU if it has none."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def task_named(name: Any) -> Task:
    """The task of that name. Raises ConfigError, listing the known ones."""
    module, _, constant = task_entry(name).module.partition(":")
    return getattr(importlib.import_module(module), constant or "TASK")


def task_of(model: Mapping[str, Any]) -> Task:
    """The task of a config's ``model`` section."""
    return task_named(model.get("task", "span"))
