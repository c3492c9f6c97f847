"""What a run keeps while it trains: checkpoints to resume from, the best weights, its state at Ctrl-C."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import torch.distributed as dist
from pytorch_lightning.plugins.io import TorchCheckpointIO
from pytorch_lightning.strategies import DeepSpeedStrategy

from qa_arch.config.files import replacing
from qa_arch.errors import QaArchError, RunError
from qa_arch.tasks import Task
from qa_arch.training.devices import whole_weights
from qa_arch.training.module import TrainingModule

log = logging.getLogger(__name__)
LAST = "last.ckpt"
PREVIOUS = "previous.ckpt"


class KeepLast(pl.Callback):
    """Writes ``last.ckpt`` at each epoch's end, and inside an epoch every ``minutes``.

    After Ctrl-C on rank 0 it writes one more at the next of these places where a step is whole, and raises
    KeyboardInterrupt on all ranks. It is the last of the callbacks, so that the state of the others at the
    same moment is in it.
    """

    def __init__(self, folder: Path, minutes: float, accumulate: int, interrupt: Interrupt) -> None:
        self.path = folder / LAST
        self.seconds, self.accumulate = 60 * minutes, accumulate
        self.interrupt = interrupt

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.saved = time.monotonic()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # Gradients half accumulated are not in a checkpoint, so it waits for the optimizer step.
        if (batch_idx + 1) % self.accumulate or trainer.is_last_batch:
            return
        due = time.monotonic() - self.saved >= self.seconds
        stop, due = trainer.strategy.broadcast((self.interrupt.pressed, due))
        if stop or due:
            self._save(trainer)
        if stop:
            self._stop(trainer)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._save(trainer)
        if trainer.strategy.broadcast(self.interrupt.pressed):
            self._stop(trainer)

    def _stop(self, trainer: pl.Trainer) -> None:
        self.interrupt.step = trainer.global_step
        raise KeyboardInterrupt

    def _save(self, trainer: pl.Trainer) -> None:
        if isinstance(trainer.strategy, DeepSpeedStrategy):  # a folder, to which every rank adds its shard
            partial = self.path.with_suffix(".partial")
            trainer.save_checkpoint(partial, weights_only=False)
            if trainer.is_global_zero:
                rotate(partial)
            trainer.strategy.barrier()
        else:
            trainer.save_checkpoint(self.path, weights_only=False)  # optimizer and loops as well
        self.saved = time.monotonic()


class DurableCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint beside the last, which becomes the previous once the new checkpoint is on disk.

    A full disk costs the new checkpoint and nothing else: the run goes on with a warning. Lightning calls
    this on rank 0 alone, where an error would leave the other ranks waiting for it.
    """

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        target = Path(path)
        try:
            with replacing(target) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                if target.is_file():
                    target.replace(target.with_name(PREVIOUS))
        except QaArchError as error:
            left = "the checkpoint before it is kept" if target.is_file() else "there is none yet"
            log.warning("%s; %s, and training goes on: free some space", error, left)


def rotate(written: Path) -> None:
    """Make the folder ``written`` the last checkpoint, and the last one the previous one."""
    last, previous = (written.with_name(name) for name in (LAST, PREVIOUS))
    if last.exists():
        shutil.rmtree(previous, ignore_errors=True)
        last.replace(previous)
    written.replace(last)


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint of a run folder; None where none was ever written.

    Raises RunError where there are checkpoints and none of them is whole.
    """
    paths = [path for path in (folder / LAST, folder / PREVIOUS) if path.exists()]
    for path in paths:
        if _is_whole(path):
            return path
        log.warning("%s: damaged, it is left out", path)
    if paths:
        names = " and ".join(path.name for path in paths)
        raise RunError(f"{folder}: {names} cannot be read; --if-exists replace starts the run anew")
    return None


def _is_whole(path: Path) -> bool:
    """Whether every part of the file has the checksum it was written with."""
    if path.is_dir():  # moved into place once all ranks had written
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError):
        return False


MONITORS = {
    "f1": ("calibration_f1", 1.0),
    "exact": ("calibration_exact", 1.0),
    "loss": ("calibration_loss", -1.0),
    "spans_auc": ("calibration_spans_auc", 1.0),
}
"""What can choose the epoch of a span model: the metric, and the sign that makes a higher value better."""


def monitored(task: Task, select: str) -> tuple[str, float]:
    """The metric that chooses the epoch and its sign; a task with a ``monitor`` of its own has no choice."""
    if task.monitor:
        return task.monitor, -1.0 if task.lower_is_better else 1.0
    return MONITORS[select]


@dataclass(eq=False)
class SameConfig(pl.Callback):
    """Raises RunError, before the model is wrapped, where ranks train different configs.

    A rank of another run that came to this one's address would share its gradients, and nothing would fail.
    """

    config_hash: str

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        if trainer.world_size == 1:
            return
        hashes: list[Any] = [None] * trainer.world_size
        dist.all_gather_object(hashes, self.config_hash)
        if len(set(hashes)) > 1:
            listed = ", ".join(f"rank {rank}: {value[:8]}" for rank, value in enumerate(hashes))
            raise RunError(f"the ranks of this run have different configs ({listed}); start it again")


@dataclass(eq=False)
class BestWeights(pl.Callback):
    """Calls ``save`` after each epoch that is the best so far on calibration (rank 0 only).

    ``select``: a key of ``MONITORS`` for the highest score or the lowest loss, or ``last``. The
    ``monitor`` of a task that has one takes the place of scores. Without a calibration split the last epoch
    is selected. Where the trained model is in shards, ``whole`` is a copy of it that takes the gathered
    weights.
    """

    save: Callable[[torch.nn.Module], Any]
    select: str = "f1"
    whole: torch.nn.Module | None = None
    best: float = float("-inf")
    epoch: int | None = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if self.select == "last":
            value = float(trainer.current_epoch)
        else:
            metric, sign = monitored(pl_module.task, self.select)
            value = float(sign * trainer.callback_metrics[metric])
        self._consider(trainer, pl_module, value)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.val_dataloaders:
            self._consider(trainer, pl_module, float(trainer.current_epoch))

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.epoch is None:  # stopped by max_steps inside the first epoch, or no score was a number
            self._consider(trainer, pl_module, 0.0)
            self.epoch = trainer.current_epoch - 1  # that epoch is counted as done by now

    def _consider(self, trainer: pl.Trainer, pl_module: pl.LightningModule, value: float) -> None:
        if value > self.best:
            self.best, self.epoch = value, trainer.current_epoch
            assert isinstance(pl_module, TrainingModule)
            if self.whole is not None:
                weights = whole_weights(trainer.strategy)
                if trainer.is_global_zero:
                    self.whole.load_state_dict(weights)
            if trainer.is_global_zero:
                self.save(self.whole or pl_module.model)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "epoch": self.epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best, self.epoch = (state_dict[key] for key in ("best", "epoch"))


class Patience(pl.callbacks.EarlyStopping):
    """Stops after ``patience`` epochs without a better score, also a run that had stopped so and is resumed.

    Only an epoch that was validated counts, and one whose score is no number is no better.
    """

    def __init__(self, task: Task, select: str, patience: int) -> None:
        metric, sign = monitored(task, select)
        mode = "max" if sign > 0 else "min"
        super().__init__(
            metric, patience=patience, mode=mode, check_finite=False, check_on_train_epoch_end=False
        )

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        trainer.should_stop = trainer.should_stop or self.wait_count >= self.patience


@dataclass(eq=False)
class RandomState(pl.Callback):
    """Saves and restores the random generators of every rank, which Lightning's checkpoints leave out."""

    pending: list[dict[str, Any]] = field(default_factory=list)
    """Of each rank, from the checkpoint that training goes on with."""

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict
    ) -> None:
        states: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            dist.all_gather_object(states, random_state())
        else:
            states = [random_state()]
        checkpoint["random"] = states

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict
    ) -> None:
        wrote = len(checkpoint["random"])
        if wrote != trainer.world_size:  # devices=auto, on a machine with more or fewer
            raise RunError(
                f"a checkpoint of world size {wrote} cannot be resumed with world size {trainer.world_size}:"
                " some windows would be trained twice and others not; give the run as many devices as it had,"
                " or --if-exists replace"
            )
        self.pending = checkpoint["random"]

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self.pending:
            restore_random_state(self.pending[trainer.global_rank])
        self.pending = []


def random_state() -> dict[str, Any]:
    """The generators of Python, NumPy and torch as plain values, which load with ``weights_only=True``."""
    version, internal, gauss = random.getstate()
    kind, keys, *rest = np.random.get_state()
    position, has_gauss, cached = rest
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Set the generators to what ``random_state`` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all([part.cpu() for part in state["cuda"]])


PROMISE = (
    b"\nCtrl-C: a checkpoint is saved after this step (or validation), then the run stops;"
    b"\n        Ctrl-C again leaves at once\n"
)


@dataclass
class Interrupt:
    """Whether Ctrl-C was pressed, and after which optimizer step the run stopped for it, its state saved."""

    pressed: bool = False
    step: int | None = None


@contextmanager
def deferred(interrupt: Interrupt, *, announce: bool) -> Iterator[None]:
    """Note the first SIGINT of the body and leave the next to whom it went before; ``announce`` says so.

    Only where the main thread would be interrupted: elsewhere, and where SIGINT is ignored, nothing changes.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.pressed = True
        signal.signal(signal.SIGINT, before)
        if announce:
            os.write(2, PROMISE)  # a signal may come while Python's own stream is being written to

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
